"""The overview: what the system does, what fails and why, and where time goes, at a glance."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from packhorse.core.clock import HOUR
from packhorse.core.job import RETRYING, RUNNING, UNFINISHED, Job, State
from packhorse.core.settings import mask_url
from packhorse.monitor.schedules import describe_schedule
from packhorse.monitor.stats import RunStats, run_stats, stats_by_task
from packhorse.storage.records import FailureGroup, Filter, Point, QueueInfo
from packhorse.web.context import Call
from packhorse.web.pages import chart
from packhorse.web.pages.annotations import annotated
from packhorse.web.pages.chart import Intervals
from packhorse.web.pages.failures import within
from packhorse.web.pages.page import PageRequest, PageResponse, page
from packhorse.web.pages.time_range import Range, chosen_range
from packhorse.web.reader import Reader

_FEW = 5
_RUNNING = 10


@page("/", "overview")
def overview(call: Call, request: PageRequest) -> PageResponse:
    """Show cards, charts, failures, slow tasks, running jobs and what comes next."""
    reader, now = call.reader, call.reader.now()
    chosen = chosen_range(request, now)
    points = reader.series(chosen.span)
    intervals = Intervals(points, chosen, now)
    present = {queue.name: sum(queue.counts.get(state, 0) for state in UNFINISHED) for queue in reader.queues()}
    failures = reader.open_failures()
    failing = _failing(failures, reader.failure_counts(chosen.span), intervals)
    return PageResponse(
        "overview.html",
        "Overview",
        {
            "charts": _charts(reader, intervals, present) if not request.is_quick else [],
            "measured": run_stats(intervals.points),
            "before": _before(points, chosen, now),
            "seconds": chosen.length / 1e6,
            "next_retry": _next(reader, RETRYING),
            "failures": failing[:_FEW],
            "failing_count": len(failing),
            "failure_count": len(failures),
            "silenced_count": len(reader.failures()) - len(failures),
            "slow": _slow(intervals.points),
            "running": _running(reader),
            "coming": _coming(reader, now),
            "has_jobs": _has_jobs(reader, points),
            "url": mask_url(call.web.cache.health().url),
            "a_task": next((task.name for task in reader.tasks() if task.announced_at is not None), None),
        },
    )


def _charts(reader: Reader, intervals: Intervals, present: dict[str, int]) -> list[chart.Chart]:
    charts = [
        chart.throughput(intervals),
        chart.waiting_time(intervals, _oldest(reader.queues())),
        chart.unfinished(intervals, present, reader.began_at()),
        chart.running_time(intervals),
    ]
    return annotated(charts, reader.turning_points())


def charts_of(
    reader: Reader, chosen: Range, keep: Any, oldest: int | None = None
) -> tuple[list[chart.Chart], RunStats]:
    """Return throughput, waiting and running times of some points, and their statistics. `oldest` is when their oldest
    job in line was queued."""
    intervals = Intervals([point for point in reader.series(chosen.span) if keep(point)], chosen, reader.now())
    charts = [chart.throughput(intervals), chart.waiting_time(intervals, oldest), chart.running_time(intervals)]
    return charts, run_stats(intervals.points)


def _has_jobs(reader: Reader, points: list[Point]) -> bool:
    """Was there ever a job? Workers create queues when they announce their tasks, so a queue proves nothing."""
    return (
        bool(points)
        or any(any(queue.counts.values()) for queue in reader.queues())
        or any((reader.totals() or {}).values())
    )


def _oldest(queues: Iterable[QueueInfo]) -> int | None:
    """When the oldest job in line was queued; paused queues do not count."""
    return min((each.oldest_queued_at for each in queues if each.oldest_queued_at and not each.is_paused), default=None)


def _before(points: list[Point], chosen: Range, now: int) -> RunStats | None:
    """The statistics of the period before, if the points reach back that far."""
    end, _ = chosen.bounds(now)
    start = end - chosen.length
    if start < now - chosen.span.length - HOUR:
        return None
    return run_stats(point for point in points if start <= point.at < end)


def _next(reader: Reader, state: State) -> int | None:
    jobs = reader.find(Filter(states=frozenset({state})), None, 1).jobs
    return jobs[0].due_at if jobs else None


def _failing(
    groups: list[FailureGroup], counts: dict[str, dict[int, int]], intervals: Intervals
) -> list[tuple[FailureGroup, int]]:
    """The causes that occurred in this period, most frequent first; of equally frequent ones, the latest."""
    found = [(group, within(counts.get(group.cause, {}), intervals)) for group in groups]
    return sorted([each for each in found if each[1]], key=lambda each: -each[1])


def _slow(points: list[Point]) -> list[tuple[str, RunStats]]:
    """The tasks with the most running time. There may be thousands, so statistics are computed for these few only."""
    ran: Counter[str] = Counter()
    for point in points:
        ran[point.task] += point.values.get("ran", 0)
    names = [name for name, _ in ran.most_common(_FEW)]
    found = stats_by_task(point for point in points if point.task in names)
    return [(name, found[name]) for name in names if found[name].runs]


def _running(reader: Reader) -> list[Job]:
    jobs = reader.find(Filter(states=frozenset({RUNNING})), None, 200).jobs
    return sorted(jobs, key=lambda job: job.started_at or 0)[:_RUNNING]


def _coming(reader: Reader, now: int) -> list[tuple[int, str, str, str]]:
    """What is due next: schedules and delayed jobs, each as (time, text, path, task)."""
    found = []
    for schedule in reader.schedules():
        if schedule.paused_at is None:
            says, slots = describe_schedule(schedule, now, 1)
            found += [(at, f"{schedule.name}: {says}", "/schedules", schedule.task) for at in slots]
    delayed = reader.find(Filter(states=frozenset({State.SCHEDULED})), None, _FEW).jobs
    found += [(job.due_at or now, "delayed job", f"/jobs/{job.id}", job.task) for job in delayed]
    return sorted(found)[:_FEW]
