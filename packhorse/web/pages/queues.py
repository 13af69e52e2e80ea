"""Queues: what waits and runs in each, how it flows, and pausing."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from packhorse.clock import MINUTE
from packhorse.job import HELD, UNFINISHED, State
from packhorse.measures import Measured, by_queue, by_task
from packhorse.storage.records import Filter, Point, QueueInfo, Span
from packhorse.web.pages import chart
from packhorse.web.pages.chart import RANGES, Intervals
from packhorse.web.pages.frame import chosen_range
from packhorse.web.pages.jobs import row_of
from packhorse.web.pages.overview import charts_of
from packhorse.web.pages.page import Asked, Elsewhere, Shown, deed, page
from packhorse.web.site import Call

_FLOW = 10 * MINUTE
_MOST = 500
_NEXT = 20


class Flow(NamedTuple):
    """A queue as a line of the list; rates are a minute."""

    queue: QueueInfo
    held: int
    came: float
    went: float
    empty_in: float | None
    history: list[float]
    workers: int


@page("/queues", "queues")
def queues(call: Call, asked: Asked) -> Shown:
    """Every queue."""
    now, found = call.reader.now(), call.reader.queues()
    points = call.reader.series(Span.TWO_HOURS)
    recent = by_queue(point for point in points if point.at > now - _FLOW)
    history = _history(points, now)
    serving = Counter(name for each in call.reader.workers() if call.reader.is_alive(each, now) for name in each.queues)
    flows = [
        _flow(queue, recent.get(queue.name, Measured()), history.get(queue.name, []), serving[queue.name])
        for queue in found
    ]
    flows.sort(key=lambda flow: (-flow.queue.counts.get(State.QUEUED, 0), flow.queue.name))
    return Shown("queues.html", "Queues", {"flows": flows[:_MOST], "total": len(flows)})


def _flow(queue: QueueInfo, recent: Measured, history: list[float], workers: int) -> Flow:
    length = _FLOW / MINUTE
    came, went = recent.added / length, (recent.completed + recent.dead + recent.aborted) / length
    waiting = queue.counts.get(State.QUEUED, 0)
    empty_in = 60 * waiting / (went - came) if waiting and went > came else None
    return Flow(queue, sum(queue.counts.get(state, 0) for state in HELD), came, went, empty_in, history, workers)


def _history(points: list[Point], now: int) -> dict[str, list[float]]:
    """Completed jobs a minute over the last hour, by queue."""
    first = Span.TWO_HOURS.level.start_of(now) - 59 * MINUTE
    found: dict[str, list[float]] = {}
    for point in points:
        place = (point.at - first) // MINUTE
        if 0 <= place < 60:
            found.setdefault(point.queue, [0.0] * 60)[place] += point.values.get("completed", 0)
    return found


@page("/queues/{name}", "queues")
def queue(call: Call, asked: Asked, name: str) -> Shown:
    """One queue."""
    info, now, chosen = call.reader.queue(name), call.reader.now(), chosen_range(asked)
    charts, flow = charts_of(call.reader, chosen, lambda point: point.queue == name, info.oldest_queued_at)
    intervals = Intervals(call.reader.series(chosen.span, name), chosen, now)
    present = {name: sum(info.counts.get(state, 0) for state in UNFINISHED)}
    line = call.reader.find(Filter(states=frozenset({State.QUEUED}), queue=name), None, _NEXT).jobs
    workers = [
        worker for worker in call.reader.workers() if name in worker.queues and call.reader.is_alive(worker, now)
    ]
    context = {
        "queue": info,
        "held": sum(info.counts.get(state, 0) for state in HELD),
        "charts": [charts[0], chart.unfinished(intervals, present), *charts[1:]],
        "measured": flow,
        "tasks": sorted(by_task(intervals.points).items(), key=lambda item: -item[1].ran),
        "rows": [row_of(job, now) for job in line],
        "workers": workers,
        "ranges": RANGES,
    }
    return Shown("queue.html", f"Queue {name}", context)


@deed("/queues/{name}/pause")
def pause(call: Call, asked: Asked, name: str) -> Elsewhere:
    """Let no job of it begin."""
    changed = call.steps.pause(name, asked.field("why") or None)
    return Elsewhere(f"{_back(asked, name)}?said={'paused' if changed else 'unchanged'}")


@deed("/queues/{name}/resume")
def resume(call: Call, asked: Asked, name: str) -> Elsewhere:
    """Undo a pause."""
    changed = call.steps.resume(name)
    return Elsewhere(f"{_back(asked, name)}?said={'resumed' if changed else 'unchanged'}")


def _back(asked: Asked, name: str) -> str:
    return "/queues" if asked.field("back") == "/queues" else f"/queues/{name}"
