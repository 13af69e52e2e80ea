"""The fetcher: decides how many jobs to ask for, and how long to sleep when there are none. Pure; the loop asks it.

A worker takes what its free slots can begin, plus a small buffer: as many as the slots will begin within 50 ms at the
pace of late. So short jobs come in large batches, and slow ones are never hoarded while another worker is free.
"""

from __future__ import annotations

from packhorse.core.clock import SECOND

LOOK_AHEAD = 0.05
"""Seconds of work that may wait in the buffer."""
MOST_BUFFERED = 1_000
_SMOOTHING = 0.3
_IDLE_WAITS = (0.0, 0.01, 0.1, 1.0)
_LONG_IDLE = 15
"""After so many looks in vain a worker looks seldom: the storage wakes it, and its foreman, who looks more often, tells
it of jobs that it has missed."""
LONGEST_WAIT = 10.0


class Fetcher:
    """The pace of one worker."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self._mean: float | None = None  # seconds a job runs, of late
        self._empty = 0  # how often in a row the storage had nothing

    def note(self, runs: list[int]) -> None:
        """These attempts ran so many microseconds."""
        if not runs:
            return
        mean = sum(runs) / len(runs) / SECOND
        self._mean = mean if self._mean is None else self._mean + _SMOOTHING * (mean - self._mean)

    def hoarded(self) -> None:
        """Jobs have waited here for too long: the pace is slower than was thought. No more buffer, until jobs that end
        say otherwise."""
        self._mean = max(self._mean or 0.0, 2 * self.slots * LOOK_AHEAD)

    def room(self, pace: float) -> int:
        """How many jobs may wait here for a slot when those in the slots have run for so many seconds, on average."""
        if pace <= (self._mean or 0.0):
            return MOST_BUFFERED
        return int(self.slots * LOOK_AHEAD / pace)

    @property
    def buffer(self) -> int:
        """How many jobs may wait here for a slot."""
        if self._mean is None:
            return 0
        return min(MOST_BUFFERED, int(self.slots * LOOK_AHEAD / max(self._mean, 1e-6)))

    def wanted(self, in_hand: int) -> int:
        """How many to ask for when so many are in hand."""
        return max(0, self.slots + self.buffer - in_hand)

    def found(self, asked: int, got: int) -> None:
        """The storage was asked for so many and had so many."""
        self._empty = 0 if got >= asked else self._empty + 1

    def woken(self) -> None:
        """There may be work: ask again at once."""
        self._empty = 0

    @property
    def idle_wait(self) -> float:
        """Seconds to sleep before asking again."""
        if self._empty > _LONG_IDLE:
            return LONGEST_WAIT
        return _IDLE_WAITS[min(self._empty, len(_IDLE_WAITS) - 1)]
