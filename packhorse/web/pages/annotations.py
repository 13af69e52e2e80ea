"""Annotations: events of foremen, workers and queues, drawn as vertical lines across the charts.

The start of a foreman marks a rebooted machine or a deployment; if the workers report a version, the line names it. The
death of a foreman, or a pause, explains what the curves do after it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from packhorse.core.event import Event, Kind, Subject
from packhorse.monitor.text import shorten
from packhorse.web.pages.chart import Annotation, Chart
from packhorse.web.text import safe

_LONG = 60
_MOST = 40
_LOOKS = {
    Kind.DEPLOYED: "first",
    Kind.STARTED: "first",
    Kind.DIED: "bad",
    Kind.PAUSED: "wait",
    Kind.RESUMED: "good",
}


def annotated(charts: Sequence[Chart], events: Sequence[Event], queue: str | None = None) -> list[Chart]:
    """Add to each chart the events of its time. The chart of one queue leaves out the pauses of others."""
    marked = [event for event in events if event.kind in _LOOKS and queue in (None, event.queue or queue)]
    same = {event.id for event in _same_version(marked)}
    flags = [_flag(event) for event in marked if event.id not in same]
    return [replace(chart, flags=_within(chart, flags)) for chart in charts]


def _same_version(events: Sequence[Event]) -> Iterator[Event]:
    """Yield deployments of the version that was deployed already: all workers were gone for a while, or two started at
    the same time."""
    version = None
    for event in sorted((event for event in events if event.kind is Kind.DEPLOYED), key=lambda event: event.id):
        if (event.data or {}).get("version") == version:
            yield event
        version = (event.data or {}).get("version")


def _within(chart: Chart, flags: list[Annotation]) -> list[Annotation]:
    if not chart.times:
        return []
    first, last = chart.times[0], chart.times[-1] + chart.width
    return [flag for flag in flags if first <= flag.at < last][:_MOST]


def _flag(event: Event) -> Annotation:
    facts = event.data or {}
    if event.kind is Kind.DEPLOYED:
        text = f"deploy {facts.get('version', '')}"
    elif event.subject is Subject.QUEUE:
        by = f" by {facts['by']}" if facts.get("by") else ""
        text = f"{event.queue} {event.kind}{by}"
    else:
        where = f" on {facts['host']}" if facts.get("host") else f": {facts['why']}" if facts.get("why") else ""
        text = f"{event.subject} {event.kind}{where}"
    return Annotation(event.at, _LOOKS[event.kind], safe(shorten(text, _LONG)))
