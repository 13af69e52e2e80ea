"""Flags: what happened to foremen, workers and queues, as upright lines across the charts.

A foreman that started is a deployment, or a machine that came back; one that died, and a pause, explain what the curves
do after it.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from packhorse.event import Event, Kind, Subject
from packhorse.job_text import cut
from packhorse.web.pages.chart import Chart, Flag
from packhorse.web.pages.words import safe

_LONG = 60
_MOST = 40
_LOOKS = {Kind.STARTED: "first", Kind.DIED: "bad", Kind.PAUSED: "wait", Kind.RESUMED: "good"}


def flagged(charts: Sequence[Chart], events: Sequence[Event], queue: str | None = None) -> list[Chart]:
    """The charts with the flags of their time; of a chart of one queue, no pauses of others."""
    flags = [_flag(event) for event in events if event.kind in _LOOKS and queue in (None, event.queue or queue)]
    return [replace(chart, flags=_within(chart, flags)) for chart in charts]


def _within(chart: Chart, flags: list[Flag]) -> list[Flag]:
    if not chart.times:
        return []
    first, last = chart.times[0], chart.times[-1] + chart.width
    return [flag for flag in flags if first <= flag.at < last][:_MOST]


def _flag(event: Event) -> Flag:
    facts = event.data or {}
    if event.subject is Subject.QUEUE:
        by = f" by {facts['by']}" if facts.get("by") else ""
        text = f"{event.queue} {event.kind}{by}"
    else:
        where = f" on {facts['host']}" if facts.get("host") else f": {facts['why']}" if facts.get("why") else ""
        text = f"{event.subject} {event.kind}{where}"
    return Flag(event.at, _LOOKS[event.kind], safe(cut(text, _LONG)))
