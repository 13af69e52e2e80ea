"""Marks: where in a line the living jobs begin.

While somebody keeps a transaction open, the server cannot forget the jobs that have left a line, and whoever reserves
walks past all of them, further with every job. When a walk was long, `Working` notes how far it came and begins there
for a while; the whole line is walked again after ten times as long as it took, so that it costs a tenth of the time at
most. A job that came back into line behind a mark, by another process, waits no longer than that.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import pairwise

from packhorse.core.clock import SECOND
from packhorse.core.job import RANKS, Job

LONG_WALK = 10_000
"""Microseconds of looking for jobs after which it is worth remembering where they were."""
_MANY_QUEUES = 100
"""Who looks into more than so many may take as much longer, without any jobs that are gone."""
_PATIENCE = 10
_LONGEST = 10.0
"""Seconds for which a mark may hide a job that came back into line, whatever a walk costs."""

Range = tuple[int, int, int]
"""From a rank to a rank, jobs with this number and later ones."""


class Marks:
    """What one process remembers. Used by threads without a lock: a mark that is lost costs one long walk."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._starts: dict[str, dict[int, int]] = {}  # queue -> rank -> number
        self._until: dict[str, float] = {}

    def forget(self) -> None:
        """A job may have come into line anywhere."""
        self._starts.clear()
        self._until.clear()

    def note(self, queues: Collection[str], jobs: Sequence[Job], took: int, *, is_all: bool) -> None:
        """A walk of `took` microseconds along these queues has found these jobs; `is_all`: there were no more. Else all
        are here that are of a better rank than the last."""
        if not jobs or took < LONG_WALK * max(1.0, len(queues) / _MANY_QUEUES):
            return
        newest, last_rank = max(job.seq for job in jobs), max(job.rank for job in jobs)
        for queue in queues:
            self._until.setdefault(queue, self._now() + min(_PATIENCE * took / SECOND, _LONGEST))
            starts = self._starts.setdefault(queue, {})
            last = [job.seq for job in jobs if job.rank == last_rank and job.queue == queue]
            if last:
                starts[last_rank] = max(last)
            for rank in RANKS if is_all else range(RANKS[0], last_rank):
                starts[rank] = newest  # whatever comes in is newer

    def are_there(self, queues: Iterable[str]) -> bool:
        """Is anything remembered of one of these queues? What is too old is forgotten."""
        if not self._starts:
            return False
        now = self._now()
        for queue in [queue for queue, until in self._until.copy().items() if until <= now]:
            self._starts.pop(queue, None)
            self._until.pop(queue, None)
        return any(queue in self._starts for queue in queues)

    def ranges(self, queue: str) -> list[Range]:
        """The line of this queue, in the order of its ranks: each that has a mark, and what lies between them."""
        starts = self._starts.get(queue, {})
        lows = [rank for rank in RANKS if rank in starts or rank - 1 in starts or rank == RANKS[0]]
        return [(low, next_low - 1, starts.get(low, 0)) for low, next_low in pairwise([*lows, RANKS.stop])]

    def start(self, queue: str, rank: int) -> int:
        """The number with which to begin."""
        return self._starts.get(queue, {}).get(rank, 0)
