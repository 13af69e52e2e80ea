"""Ranges: the period that the charts and figures of a page cover.

A range ends now, if it was chosen with the links at the top of a page, or in the past, if it was marked in a chart. Its
intervals are the finest for which points reach back that far.
"""

from __future__ import annotations

from typing import NamedTuple

from packhorse.core.clock import DAY, HOUR, MINUTE, from_datetime, to_datetime
from packhorse.core.errors import BadValue
from packhorse.monitor.filters import parse_moment
from packhorse.storage.records import Span
from packhorse.web.pages.page import PageRequest

_FEWEST = 2  # intervals; a single one makes no curve


class Range(NamedTuple):
    """How far back the charts go, and where they end."""

    name: str
    title: str
    length: int
    span: Span
    end: int | None = None  # None: now

    @property
    def width(self) -> int:
        """The width of one interval."""
        return self.span.level.width

    def bounds(self, now: int) -> tuple[int, int]:
        """The start of its first interval and the end of its last."""
        end = self.span.level.start_of(now) + self.width if self.end is None else self.end
        return end - self.length, end

    @property
    def short(self) -> str:
        """Its length, where there is little room, as in "48 h"."""
        return f"{self.name[:-1]} {self.name[-1]}"

    @property
    def within(self) -> str:
        """Its period, as a part of a sentence."""
        return f"in the {self.title}" if self.end is None else f"in {self.title}"

    def holds(self, at: int, now: int) -> bool:
        start, end = self.bounds(now)
        return start <= at < end


RANGES = {
    each.name: each
    for each in (
        Range("15m", "last 15 minutes", 15 * MINUTE, Span.TWO_HOURS),
        Range("1h", "last hour", HOUR, Span.TWO_HOURS),
        Range("2h", "last 2 hours", 2 * HOUR, Span.TWO_HOURS),
        Range("48h", "last 48 hours", 48 * HOUR, Span.TWO_DAYS),
        Range("7d", "last 7 days", 7 * DAY, Span.NINETY_DAYS),
        Range("90d", "last 90 days", 90 * DAY, Span.NINETY_DAYS),
    )
}
USUAL = "1h"


def chosen_range(request: PageRequest, now: int, usual: str = USUAL) -> Range:
    """Read the range from the address: `?range=1h`, or `?from=2030-01-31T07:00Z&to=2030-01-31T07:20Z`."""
    chosen = RANGES.get(request.query.get("range", ""), RANGES[usual])
    if "from" not in request.query or "to" not in request.query:
        return chosen
    start, end = (from_datetime(parse_moment(request.query[name])) for name in ("from", "to"))
    if start >= end:
        raise BadValue("the time ends before it begins", hint="`from` must be earlier than `to`")
    if start > now:
        raise BadValue("the time has not come yet", hint="`from` must be earlier than now")
    return _stretch(chosen.name, start, end, now)


def _stretch(name: str, start: int, end: int, now: int) -> Range:
    """Make a range of whole intervals, as fine as the points that reach back so far."""
    span = next((span for span in Span if start >= now - span.length), Span.NINETY_DAYS)
    level = span.level
    kept_from = level.start_of(now - span.length)
    if end <= kept_from:
        raise BadValue("nothing is kept of a time so long ago", hint="charts reach back 90 days")
    first = max(level.start_of(start), kept_from)
    last = min(level.start_of(end - 1), level.start_of(now))
    first = min(first, last - (_FEWEST - 1) * level.width)
    after = last + level.width
    return Range(name, _title(first, after, level.width), after - first, span, after)


def _title(start: int, end: int, width: int) -> str:
    if width >= DAY:
        return f"{to_datetime(start):%Y-%m-%d} to {to_datetime(end - width):%Y-%m-%d}"
    is_one_day = start // DAY == (end - 1) // DAY
    return f"{to_datetime(start):%m-%d %H:%M}–{to_datetime(end):{'%H:%M' if is_one_day else '%m-%d %H:%M'}} UTC"
