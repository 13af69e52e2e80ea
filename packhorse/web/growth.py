"""Growth: by how much the storage grows a day, as this process saw it. The glance fills it.

It lives in memory and takes a note whenever somebody looks at the storage's health, so it costs the storage nothing of
its own, and knows nothing of the time before this process began to look.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

_EVERY = 600.0  # seconds between two notes
_NOTES = 7 * 144  # a week of them
_SURE = 900.0  # seconds that must be known before anything is foretold
_DAY = 86_400.0


class Growth:
    """Sizes of the last week. `now` is a clock in seconds; any thread may ask and add."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._lock = threading.Lock()
        self._notes: deque[tuple[float, int]] = deque(maxlen=_NOTES)
        self._last: tuple[float, int] | None = None

    def add(self, size: int | None) -> None:
        """It has so many bytes now; None: nobody knows."""
        if size is None:
            return
        with self._lock:
            self._last = (self._now(), size)
            if not self._notes or self._last[0] - self._notes[-1][0] >= _EVERY:
                self._notes.append(self._last)

    def per_day(self) -> int | None:
        """Bytes a day, less than none if it shrank. None: it was not looked at for long enough."""
        with self._lock:
            if self._last is None:
                return None
            (began, first), (ended, last) = self._notes[0], self._last
        return round((last - first) * _DAY / (ended - began)) if ended - began >= _SURE else None
