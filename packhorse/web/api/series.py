"""Series: what happened over time, for charts."""

from __future__ import annotations

import msgspec

from packhorse.clock import SECOND
from packhorse.fields import PointFields, iso, point_fields
from packhorse.storage.records import Span
from packhorse.web.api.endpoint import Call, get


class SpanQuery(msgspec.Struct, forbid_unknown_fields=True):
    """How far back: `2h` has a point a minute, `48h` one an hour, `90d` one a day."""

    span: Span = Span.TWO_HOURS


class SeriesQuery(SpanQuery, forbid_unknown_fields=True):
    """How far back, and of what."""

    queue: str | None = None
    task: str | None = None


class Series(msgspec.Struct):
    """Points, each as wide as `width` seconds."""

    span: Span
    width: int
    now: str
    items: list[PointFields]


@get("/series")
def get_series(call: Call, query: SeriesQuery) -> Series:
    """What happened over time, by queue and task."""
    points = call.reader.series(query.span, query.queue, query.task)
    width = query.span.level.width // SECOND
    return Series(query.span, width, str(iso(call.reader.now())), [point_fields(point) for point in points])
