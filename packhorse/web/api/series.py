"""Series: what happened over time, for charts."""

from __future__ import annotations

import msgspec

from packhorse.core.clock import SECOND
from packhorse.monitor.serializers import Moment, PointFields, iso, point_fields
from packhorse.monitor.stats import RunStats, stats_by_time
from packhorse.storage.records import Span
from packhorse.web.api.endpoint import Call, get


class SpanQuery(msgspec.Struct, forbid_unknown_fields=True):
    """How far back: `2h` has a point a minute, `48h` one an hour, `90d` one a day."""

    span: Span = Span.TWO_HOURS


class SeriesQuery(SpanQuery, forbid_unknown_fields=True):
    """How far back, and of what."""

    queue: str | None = None
    task: str | None = None


class Interval(msgspec.Struct):
    """What all points of one interval come to: rates, means and percentiles over time."""

    at: Moment
    measured: RunStats


class Series(msgspec.Struct):
    """Points, each as wide as `width` seconds, and what those of each interval come to together. An interval in which
    nothing happened has neither."""

    span: Span
    width: int
    now: str
    items: list[PointFields]
    intervals: list[Interval]


@get("/series")
def get_series(call: Call, query: SeriesQuery) -> Series:
    """What happened over time, by queue and task, and all of it together: so many, and how long they waited and ran."""
    points = call.reader.series(query.span, query.queue, query.task)
    width = query.span.level.width // SECOND
    intervals = [Interval(iso(at), each) for at, each in stats_by_time(points).items()]
    return Series(query.span, width, str(iso(call.reader.now())), [point_fields(point) for point in points], intervals)
