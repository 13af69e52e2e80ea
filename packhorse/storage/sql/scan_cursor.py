"""Where the scan of a queue begins, when the jobs before that point are known to be gone.

While someone keeps a transaction open, the server cannot remove the index entries of jobs that have left a queue, and
each reserve scans past all of them. When a scan was slow, the storage notes how far it came and begins there for a
while. It scans the whole queue again after ten times as long as the slow scan took, so that this costs a tenth of the
time at most. A job that another process puts before the cursor waits no longer than that.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import pairwise

from packhorse.core.job import RANKS, Job

_MANY_QUEUES = 100
"""A scan of more queues may take proportionally longer."""
_RESCAN_AFTER = 10  # times as long as the slow scan took
_LONGEST = 10.0
"""Seconds for which a cursor may hide a job, whatever a scan costs."""

Range = tuple[int, int, int]
"""From a rank to a rank, the jobs with this seq and later ones."""


class ScanCursor:
    """What one process remembers. Threads use it without a lock: a lost entry costs one slow scan.

    `slow` is how many seconds make a scan slow. With `skips_ranks` the ranks before the cursor are not scanned: on
    MySQL a scan for a rank without jobs runs on through the removed entries of the next."""

    def __init__(self, slow: float, *, skips_ranks: bool = False, now: Callable[[], float] = time.monotonic) -> None:
        self.slow = slow
        self._skips_ranks = skips_ranks
        self._now = now
        self._starts: dict[str, dict[int, int]] = {}  # queue -> rank -> seq
        self._until: dict[str, float] = {}

    def forget(self, queues: Iterable[str] | None = None) -> None:
        """A job may have come into these queues, or into any, before the cursor."""
        for queue in list(self._starts) if queues is None else queues:
            self._starts.pop(queue, None)
            self._until.pop(queue, None)

    def note(self, queues: Collection[str], jobs: Sequence[Job], took: float, *, is_all: bool) -> None:
        """A scan of these queues took so many seconds and found these jobs. `is_all`: it found all there are; else it
        found all that have a better rank than the last."""
        if is_all and self._skips_ranks:
            self.forget(queues)
            return
        is_slow = took >= self.slow * max(1.0, len(queues) / _MANY_QUEUES)
        if not jobs or not (is_slow or self._until):
            return
        newest, last_rank = max(job.seq for job in jobs), max(job.rank for job in jobs)
        for queue in queues:
            if not is_slow and queue not in self._until:
                continue
            last = [(job.rank, job.seq) for job in jobs if job.queue == queue]
            if self._skips_ranks:
                if last:
                    rank, seq = max(last)
                    self._starts[queue] = {rank: seq}
            else:
                starts = self._starts.setdefault(queue, {})
                starts.update([one for one in sorted(last) if one[0] == last_rank])
                # New jobs have higher numbers than all that were found.
                starts.update(dict.fromkeys(RANKS if is_all else range(RANKS[0], last_rank), newest))
            if queue in self._starts:
                self._until.setdefault(queue, self._now() + min(_RESCAN_AFTER * took, _LONGEST))

    def is_set(self, queues: Iterable[str]) -> bool:
        """Whether any of these queues has a cursor. Drops those that are too old."""
        if not self._starts:
            return False
        now = self._now()
        self.forget([queue for queue, until in self._until.copy().items() if until <= now])
        return any(queue in self._starts for queue in queues)

    def ranges(self, queue: str, low: int = RANKS[0], high: int = RANKS[-1]) -> list[Range]:
        """The queue between two ranks, in order: each rank that has a start of its own, and what lies between."""
        starts = self._starts.get(queue, {})
        if self._skips_ranks and any(low <= rank <= high for rank in starts):
            low = min(rank for rank in starts if low <= rank <= high)
        ranks = range(low, high + 1)
        lows = [rank for rank in ranks if rank in starts or rank - 1 in starts or rank == low]
        return [(first, following - 1, starts.get(first, 0)) for first, following in pairwise([*lows, ranks.stop])]

    def start(self, queue: str, rank: int) -> int:
        """The seq with which to begin."""
        return self._starts.get(queue, {}).get(rank, 0)
