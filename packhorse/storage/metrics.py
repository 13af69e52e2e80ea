"""How long each kind of call waited for the storage, and how long the storage took.

Two numbers, because they have two remedies: waiting is contention (more connections, fewer writers), running is
load."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import deque

from packhorse.storage.records import OperationSums, OperationTimes

_NOTED = 256
"""How many calls are noted before they are counted: a note takes a tenth of the time."""

# Upper limits of the histogram in microseconds, in steps of the square root of two from 10 µs to about a minute.
_LIMITS = [round(10 * 2 ** (step / 2)) for step in range(46)]


class _Times:
    __slots__ = ("calls", "run", "run_max", "steps", "wait", "wait_max")

    def __init__(self) -> None:
        self.calls = 0
        self.wait = self.wait_max = self.run = self.run_max = 0.0
        self.steps = [0] * (len(_LIMITS) + 1)


class CallMetrics:
    """Counts the calls of one storage in this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._times: dict[str, _Times] = {}
        self._notes: deque[tuple[str, float, float]] = deque()
        self.busy_retries = 0

    def reset_lock(self) -> None:
        """In a forked child: a thread of the parent may hold the lock."""
        self._lock = threading.Lock()

    def record(self, name: str, wait: float, run: float) -> None:
        """One call: seconds until the storage was free for it, seconds that the storage took."""
        self._notes.append((name, wait, run))
        if len(self._notes) >= _NOTED:
            with self._lock:
                self._count()

    def _count(self) -> None:
        while self._notes:
            name, wait, run = self._notes.popleft()
            times = self._times.get(name)
            if times is None:
                times = self._times[name] = _Times()
            times.calls += 1
            times.wait += wait
            times.run += run
            if wait > times.wait_max:
                times.wait_max = wait
            if run > times.run_max:
                times.run_max = run
            times.steps[bisect_left(_LIMITS, run * 1e6)] += 1

    def report(self) -> list[OperationTimes]:
        """The times since the process began, by name."""
        return [each.times for each in self.sums()]

    def sums(self) -> list[OperationSums]:
        """The same as sums."""
        with self._lock:
            self._count()
            return [_summed(name, times) for name, times in sorted(self._times.items())]


def _summed(name: str, times: _Times) -> OperationSums:
    return OperationSums(
        name=name,
        calls=times.calls,
        wait=round(times.wait * 1e6),
        wait_max=round(times.wait_max * 1e6),
        run=round(times.run * 1e6),
        run_p95=_percentile(times, 0.95),
        run_max=round(times.run_max * 1e6),
    )


def _percentile(times: _Times, share: float) -> int:
    below = 0
    for limit, number in zip([*_LIMITS, round(times.run_max * 1e6)], times.steps, strict=True):
        below += number
        if below >= share * times.calls:
            return min(limit, round(times.run_max * 1e6))
    return 0
