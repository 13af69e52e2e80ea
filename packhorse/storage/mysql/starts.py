"""Starts: where in a line the living jobs begin.

While somebody keeps a transaction open, the server cannot forget the jobs that have left a line, and whoever reserves
walks past all of them, further with every job. When a walk was long, `Working` notes how far it came and begins there
for a while; the whole line is walked again after ten times as long as it took, so that it costs a tenth of the time at
most. A job that came into line before such a start, urgent or come back, waits no longer than that. Better ranks are
not looked at meanwhile: whoever looks for jobs of a rank that has none walks on into those of the next.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence

from packhorse.core.job import Job

LONG_WALK = 0.05
"""Seconds of looking for jobs after which it is worth remembering where they were."""
_PATIENCE = 10
_LONGEST = 10.0
"""Seconds for which a start may hide a job, whatever a walk costs."""

Start = tuple[int, int]
"""A rank, and the number of a job."""


class Starts:
    """What one process remembers. Used by threads without a lock: a start that is lost costs one long walk."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._starts: dict[str, Start] = {}
        self._until: dict[str, float] = {}

    def forget(self, queues: Iterable[str] | None = None) -> None:
        """A job may have come into these lines, or into any, before its start."""
        for queue in list(self._starts) if queues is None else queues:
            self._starts.pop(queue, None)
            self._until.pop(queue, None)

    def note(self, queues: Iterable[str], jobs: Sequence[Job], took: float, *, is_all: bool) -> None:
        """A walk of so many seconds along these queues has found these jobs; `is_all`: there were no more."""
        if is_all:
            self.forget(queues)
            return
        last = {job.queue: (job.rank, job.seq) for job in sorted(jobs, key=lambda job: (job.rank, job.seq))}
        for queue, start in last.items():
            if queue in self._until or took >= LONG_WALK:
                self._starts[queue] = start
                self._until.setdefault(queue, self._now() + min(_PATIENCE * took, _LONGEST))

    def of(self, queue: str) -> Start | None:
        """Where the line of this queue begins, if that is known. What is too old is forgotten."""
        if not self._starts:
            return None
        if self._until.get(queue, 0.0) <= self._now():
            self.forget([queue])
        return self._starts.get(queue)
