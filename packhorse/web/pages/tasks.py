"""Tasks: results of their jobs, where time goes, and the slowest runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from packhorse.core.clock import SECOND
from packhorse.core.errors import TaskNotFound
from packhorse.core.job import DEAD, FINAL
from packhorse.core.metrics import LIMITS
from packhorse.monitor.stats import RunStats, stats_by_task, step_counts
from packhorse.storage.records import Filter, Point
from packhorse.web.context import Call
from packhorse.web.pages.filters import span
from packhorse.web.pages.jobs import row_of
from packhorse.web.pages.overview import charts_of
from packhorse.web.pages.page import PageRequest, PageResponse, page
from packhorse.web.pages.time_range import chosen_range

_LOOKED_AT = 200
_SLOWEST = 20
_MOST = 500


@page("/tasks", "tasks")
def tasks(call: Call, request: PageRequest) -> PageResponse:
    """List every task."""
    now = call.reader.now()
    chosen = chosen_range(request, now)
    points = [point for point in call.reader.series(chosen.span) if chosen.holds(point.at, now)]
    ran: Counter[str] = Counter()
    for point in points:
        ran[point.task] += point.values.get("ran", 0)
    known = sorted(call.reader.tasks(), key=lambda task: (-ran[task.name], task.name))
    shown = {task.name: task for task in known[:_MOST]}
    found = stats_by_task(point for point in points if point.task in shown)
    rows = [(task, found.get(name, RunStats())) for name, task in shown.items()]
    whole = sum(ran[task.name] for task in known) / SECOND
    return PageResponse("tasks.html", "Tasks", {"rows": rows, "whole": whole, "total": len(known)})


@page("/tasks/{name}", "tasks")
def task(call: Call, request: PageRequest, name: str) -> PageResponse:
    """Show one task: charts, a histogram of its running times, the slowest recent runs."""
    info = next((task for task in call.reader.tasks() if task.name == name), None)
    if info is None:
        raise TaskNotFound(f"no task is called {name[:128]!r}", hint="the page Tasks has them all")
    now = call.reader.now()
    chosen = chosen_range(request, now)
    charts, sums = charts_of(call.reader, chosen, lambda point: point.task == name)
    ended = call.reader.find(Filter(states=FINAL, task=name), None, _LOOKED_AT).jobs
    slowest = sorted(ended, key=lambda job: -(job.took(now) or 0))[:_SLOWEST]
    points = [point for point in call.reader.series(chosen.span, task=name) if chosen.holds(point.at, now)]
    context = {
        "task": info,
        "queue": next((queue for queue in call.reader.queues() if queue.name == info.queue), None),
        "others": [each.name for each in call.reader.tasks() if each.queue == info.queue and each.name != name],
        "dead": call.reader.count(Filter(states=frozenset({DEAD}), task=name)).number,
        "charts": charts if not request.is_quick else [],
        "measured": sums,
        "histograms": [
            ("How long its attempts ran", _histogram(points, "run")),
            ("How long they had waited in line", _histogram(points, "wait")),
        ],
        "slowest": [row_of(job, now) for job in slowest],
        "failures": [group for group in call.reader.failures() if group.task == name],
    }
    return PageResponse("task.html", f"Task {name}", context)


def _histogram(points: Iterable[Point], kind: str) -> list[tuple[str, int]]:
    """How many attempts there are of each step that has one."""
    sums: Counter[str] = Counter()
    for point in points:
        sums.update(point.values)
    names = [*(f"≤ {span(limit)}" for limit in LIMITS), f"> {span(LIMITS[-1])}"]
    return [(name, number) for name, number in zip(names, step_counts(sums, kind), strict=True) if number]
