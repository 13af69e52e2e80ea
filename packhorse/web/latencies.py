"""Latencies: how quickly the storage answered over the last hour, as this process saw it. The glance fills it.

It lives in memory and takes a note whenever somebody looks at the storage's health, so it costs the storage nothing of
its own; where nobody looked, there is a gap.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

import msgspec

MINUTES = 60


class Minute(msgspec.Struct):
    """The calls of one minute, in microseconds."""

    number: int  # of the minute, by a clock that only this process knows
    calls: int
    total: int
    longest: float

    @property
    def mean(self) -> float:
        return self.total / self.calls


class Latencies:
    """The last hour, minute by minute. `now` is a clock in seconds; any thread may ask and add."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._lock = threading.Lock()
        self._minutes: deque[Minute] = deque(maxlen=MINUTES)

    def add(self, took: int, calls: int = 1) -> None:
        """One call took so many microseconds, or several together."""
        number = int(self._now() // 60)
        with self._lock:
            if not self._minutes or self._minutes[-1].number < number:
                self._minutes.append(Minute(number, 0, 0, 0))
            minute = self._minutes[-1]
            minute.calls += calls
            minute.total += took
            minute.longest = max(minute.longest, took / calls)

    def last_hour(self) -> list[Minute | None]:
        """From the first minute that is known, at most an hour ago, to the present one; None where nobody looked."""
        present = int(self._now() // 60)
        with self._lock:
            known = {each.number: each for each in self._minutes if each.number > present - MINUTES}
        return [known.get(number) for number in range(min(known, default=present + 1), present + 1)]
