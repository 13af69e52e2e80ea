"""When a schedule ticks, from its cron expression and its time zone.

The chore that ticks schedules calls `next_after` and, after a pause, `between`; the client and the command line check a
user's expression by making a `Cron`. The results depend only on expression, zone and time, so every process agrees.

Daylight saving follows Debian's cron. An expression with fixed hours and minutes runs once a day: a time that the clock
skips runs at the first moment after the gap, one that comes twice runs the first time. An expression whose hour or
minute begins with `*` follows the wall clock: it skips what is skipped and repeats what is repeated.
"""

from __future__ import annotations

import difflib
import zoneinfo
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from itertools import count, islice, takewhile

import msgspec
from cronsim import CronSim, CronSimError

from packhorse.core.clock import SECOND, from_datetime, microseconds, to_datetime
from packhorse.core.errors import BadCron, BadValue

_NICKNAMES = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
_FIELDS = {  # in the order of six fields; CronSim's error names one of them
    "second": "0-59, e.g. '*/10 * * * * *'",
    "minute": "0-59, e.g. '*/5 * * * *'",
    "hour": "0-23, e.g. '30 7 * * *'",
    "day-of-month": "1-31 (and in that month), or L for the last, e.g. '0 7 1,15 * *'",
    "month": "1-12 or JAN-DEC, e.g. '0 7 1 JAN,JUL *'",
    "day-of-week": "0-7 or SUN-SAT, e.g. '0 7 * * MON-FRI'",
}
_LONGEST_TEXT = 500
_SOME_DAY = datetime(2000, 1, 1, tzinfo=UTC)


class Cron(msgspec.Struct, frozen=True):
    """A checked cron expression: five fields, six with seconds first, a nickname such as @daily, or `@every 90s`.

    >>> to_datetime(Cron("30 7 * * *", "Europe/Ljubljana").next_after(1_800_000_000_000_000)).isoformat()
    '2027-01-16T06:30:00+00:00'
    """

    text: str
    tz: str = "UTC"

    def __post_init__(self) -> None:
        if not isinstance(self.text, str) or len(self.text) > _LONGEST_TEXT:
            raise BadCron(
                f"cron text must be text of at most {_LONGEST_TEXT} characters, not {str(self.text)[:40]!r}",
                hint="e.g. '30 7 * * *'",
            )
        _zone(self.tz)
        if self._interval() is None:
            _check_fields(self.text, self._fields())

    def next_after(self, at: int) -> int:
        """The first tick strictly after `at`; both in microseconds since 1970."""
        return next(self._ticks(at))

    def between(self, after: int, until: int, limit: int) -> list[int]:
        """The ticks after `after` up to and including `until`, oldest first, at most `limit` of them."""
        return list(islice(takewhile(lambda tick: tick <= until, self._ticks(after)), limit))

    def describe(self) -> str:
        """The expression in short English, such as "At 02:30 every day (Europe/Ljubljana)"."""
        if self._interval() is not None:
            return f"Every {self.text.split(maxsplit=1)[1]}"
        return f"{CronSim(self._fields(), _SOME_DAY).explain()} ({self.tz})"

    def _fields(self) -> str:
        return _NICKNAMES.get(self.text.strip().lower(), self.text)

    def _interval(self) -> int | None:
        word, duration = [*self.text.split(maxsplit=1), "", ""][:2]
        if word.lower() != "@every":
            return None
        try:
            interval = microseconds(duration, "the interval after @every")
        except BadValue as error:
            raise BadCron(
                f"cron text {self.text!r}: {error.what}", hint="e.g. '@every 90s' or '@every 1h30m'"
            ) from None
        if interval < SECOND:
            raise BadCron(f"cron text {self.text!r}: the interval must be a second or longer", hint="e.g. '@every 90s'")
        return interval

    def _ticks(self, after: int) -> Iterator[int]:
        if (interval := self._interval()) is not None:
            # Counted from 1970 rather than from a process's start, so that all processes tick together.
            first = (after // interval + 1) * interval
            return count(first, interval)
        return _rising(after, map(from_datetime, _moments(self._fields(), to_datetime(after), _zone(self.tz))))


def _is_fixed(fields: str) -> bool:
    minute, hour = fields.split()[-5:-3]
    return not minute.startswith("*") and not hour.startswith("*")


def _moments(fields: str, after: datetime, zone: tzinfo) -> Iterator[datetime]:
    """The ticks of the expression in its zone: computed on a clock without daylight saving, then converted."""
    fixed = _is_fixed(fields)
    again: list[datetime] = []
    for plain in CronSim(fields, _start(after, zone)):
        moment = plain.replace(tzinfo=zone)
        if _is_skipped(moment) and not fixed:
            continue
        while _is_skipped(moment):
            moment = moment.replace(second=0) + timedelta(minutes=1)
        second = moment.replace(fold=1)
        if second.utcoffset() != moment.utcoffset() and not fixed:
            again.append(second)
        else:
            # The repeated hour is over: its ticks come after all of its first round.
            yield from again
            again.clear()
        yield moment


def _start(after: datetime, zone: tzinfo) -> datetime:
    """The start of the computation: early enough to include an hour that is repeated."""
    near = timedelta(hours=3)
    offsets = {(after + shift).astimezone(zone).utcoffset() for shift in (-near, timedelta(0), near)}
    return after.astimezone(zone).replace(tzinfo=None) - (near if len(offsets) > 1 else timedelta(0))


def _is_skipped(moment: datetime) -> bool:
    return moment != moment.astimezone(UTC).astimezone(moment.tzinfo)


def _rising(after: int, ticks: Iterator[int]) -> Iterator[int]:
    """Without repeats: several skipped times fall on one moment, and a repeated hour begins in the past."""
    for tick in ticks:
        if tick > after:
            after = tick
            yield tick


def _check_fields(text: str, fields: str) -> None:
    parts = fields.split()
    if text.strip().startswith("@") and fields == text:
        known = ", ".join(_NICKNAMES)
        raise BadCron(f"cron text {text!r} is no known nickname", hint=f"use {known} or '@every 90s'")
    if len(parts) not in (5, 6):
        raise BadCron(
            f"cron text {text!r} has {len(parts)} fields; it needs 5, or 6 with seconds first",
            hint="minute hour day-of-month month day-of-week, e.g. '30 7 * * MON-FRI'",
        )
    try:
        next(CronSim(fields, _SOME_DAY))
    except CronSimError as error:
        field = str(error).removeprefix("Bad ")
        part = parts[list(_FIELDS).index(field) - 6]
        raise BadCron(f"cron text {text!r} has a wrong {field}: {part!r}", hint=f"write {_FIELDS[field]}") from None
    except StopIteration:
        raise BadCron(
            f"cron text {text!r} names a day that never comes: day-of-month {parts[-3]!r} with month {parts[-2]!r} "
            f"and day-of-week {parts[-1]!r}",
            hint="e.g. '0 7 L * *' for the last day of each month",
        ) from None


def _zone(name: str) -> tzinfo:
    if name == "UTC":
        return UTC  # without the time zone database, which small systems lack
    try:
        return zoneinfo.ZoneInfo(name)
    except (LookupError, ValueError, OSError, TypeError):
        known = zoneinfo.available_timezones()
    near = difflib.get_close_matches(str(name), known, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}?" if near else "use a name such as 'Europe/Ljubljana' or 'UTC'"
    if not known:
        hint = "this system has no time zones at all: pip install tzdata"
    raise BadCron(f"time zone {name!r} is not known", hint=hint)
