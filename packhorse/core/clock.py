"""Time in Packhorse: whole microseconds since 1970, by the storage's clock.

Clients never send their own time, only durations; a storage adds them to its own `now`. Tests give a storage a
`ManualClock` and turn it.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from packhorse.core.errors import BadValue

Now = Callable[[], int]
"""A clock: called without arguments, returns microseconds since 1970."""

Duration = float | timedelta | str
"""A duration as users write it: seconds, a timedelta, or text such as "90s", "10m", "1h30m", "2d"."""

SECOND = 1_000_000
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
DAY = 24 * HOUR
LONGEST = 10**11 * SECOND
"""The longest duration: about 3,000 years."""
LATEST = 95_617_584_000 * SECOND
"""The latest moment that users can name: the year 5000. Plus the longest duration, it is still a date."""
END = 253_402_214_400 * SECOND
"""The latest time at all: the last day of the year 9999, minus what time zones may add."""

_FIRST = -62_135_510_400 * SECOND  # the second day of the year 1

_UNITS = {"us": 1, "ms": 1_000, "s": SECOND, "m": MINUTE, "h": HOUR, "d": DAY, "w": 7 * DAY}
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*(us|ms|s|m|h|d|w)")


def now() -> int:
    """This machine's time in microseconds since 1970."""
    return time.time_ns() // 1_000


class ManualClock:
    """A clock that stands still until it is turned.

    >>> clock = ManualClock(1_000)
    >>> clock.turn("2s")
    >>> clock()
    2001000
    """

    def __init__(self, start: int = 1_800_000_000 * SECOND) -> None:
        self._now = start

    def __call__(self) -> int:
        return self._now

    def turn(self, by: Duration) -> None:
        """Move the time forward, or backward with a negative number of seconds."""
        self._now += round(by * SECOND) if isinstance(by, int | float) else microseconds(by)

    def set(self, at: int) -> None:
        """Move the time to `at` microseconds since 1970."""
        self._now = at


def microseconds(duration: Duration, name: str = "duration") -> int:
    """A user's duration as whole microseconds; `name` is its name in errors.

    >>> microseconds("1h30m") == 90 * MINUTE
    True
    """
    amount: float
    if isinstance(duration, timedelta):
        amount = duration // timedelta(microseconds=1)
    elif isinstance(duration, str):
        amount = _from_text(duration, name)
    elif isinstance(duration, int | float) and not isinstance(duration, bool) and duration == duration:
        amount = duration * SECOND
    else:
        raise BadValue(f"{name} must be seconds, a timedelta or text such as '10m', not {duration!r}")
    if amount > LONGEST:
        raise BadValue(f"{name} is too long: {str(duration)[:40]!r}", hint="the limit is about 3,000 years")
    if amount < 0:
        raise BadValue(f"{name} cannot be negative: {duration!r}")
    return round(amount)


def _from_text(text: str, name: str) -> float:
    rest = text.strip().lower()
    if re.fullmatch(r"\d+(\.\d+)?", rest):
        return float(rest) * SECOND
    total = 0.0
    position = 0
    for part in _PART.finditer(rest):
        if rest[position : part.start()].strip():
            break
        total += float(part[1]) * _UNITS[part[2]]
        position = part.end()
    if position == 0 or rest[position:].strip():
        raise BadValue(
            f"{name} cannot be understood: {text!r}", hint="write seconds, or a number with ms, s, m, h, d or w"
        )
    return total


def to_datetime(at: int) -> datetime:
    """A stored time as an aware datetime in UTC. A time outside the calendar becomes the nearest day in it, so that an
    invalid record can still be shown."""
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=min(max(at, _FIRST), END))


def from_datetime(at: datetime, name: str = "time") -> int:
    """An aware datetime as a stored time. A naive one is an error: the moment that it means is unknown."""
    if at.tzinfo is None:
        raise BadValue(f"{name} has no time zone: {at.isoformat()}", hint="use datetime.now(UTC) or add tzinfo=…")
    return (at - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
