"""Queues: what waits and runs in each, the flow of jobs, and pausing."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from typing import Any, NamedTuple
from urllib.parse import quote

from msgspec.structs import replace

from packhorse.core.clock import MINUTE
from packhorse.core.errors import BadValue
from packhorse.core.job import HELD, UNFINISHED, WAITING, Job, Operation, State
from packhorse.monitor.actions import JobAction
from packhorse.monitor.served_queues import ServingWorkers, serves, tasks_to_expect
from packhorse.monitor.stats import RunStats, stats_by_queue, stats_by_task
from packhorse.storage.queries import IN_LINE, encode_cursor
from packhorse.storage.records import Filter, Point, QueueInfo, Span, WorkerInfo
from packhorse.web.api.problem import Problem
from packhorse.web.context import Call
from packhorse.web.pages import chart
from packhorse.web.pages.annotations import annotated
from packhorse.web.pages.bulk import progress_page
from packhorse.web.pages.chart import Intervals
from packhorse.web.pages.jobs import row_of
from packhorse.web.pages.overview import charts_of
from packhorse.web.pages.page import (
    PageRequest,
    PageResponse,
    Redirect,
    address,
    form_action,
    page,
    redirect_with_undo,
    retry_form,
)
from packhorse.web.pages.time_range import chosen_range
from packhorse.web.security.operator import Role

_FLOW = 10 * MINUTE
_MOST = 500
_NEXT = 20
_RANKS = 13
_COUNTED = 2_000  # the longest line whose jobs are counted by priority
_BEHIND_ALL = 2**53 - 1  # after every job of a rank


class Flow(NamedTuple):
    """A queue as a row of the list; rates are per minute."""

    queue: QueueInfo
    held: int
    came: float
    went: float
    empty_in: float | None  # None: it is not shrinking, or is paused
    history: list[float]
    workers: int


@page("/queues", "queues")
def queues(call: Call, request: PageRequest) -> PageResponse:
    """List every queue."""
    now, found = call.reader.now(), call.reader.queues()
    points = call.reader.series(Span.TWO_HOURS)
    recent = stats_by_queue(point for point in points if point.at > now - _FLOW)
    history = _history(points, now)
    crew, tasks = ServingWorkers(_alive(call, now)), _tasks_to_expect(call)
    flows = [
        _flow(
            queue,
            recent.get(queue.name, RunStats()),
            history.get(queue.name, []),
            crew.number_serving(queue.name, tasks.get(queue.name, ())),
        )
        for queue in sorted(found, key=lambda queue: (-queue.counts.get(State.QUEUED, 0), queue.name))[:_MOST]
    ]
    return PageResponse("queues.html", "Queues", {"flows": flows, "total": len(found)})


def _alive(call: Call, now: int) -> list[WorkerInfo]:
    return [each for each in call.reader.workers() if call.reader.is_alive(each, now)]


def _tasks_to_expect(call: Call) -> dict[str, set[str]]:
    return tasks_to_expect(call.reader.tallies(), call.reader.tasks())


def _flow(queue: QueueInfo, recent: RunStats, history: list[float], workers: int) -> Flow:
    length = _FLOW / MINUTE
    came, went = recent.added / length, (recent.completed + recent.dead + recent.aborted) / length
    waiting = queue.counts.get(State.QUEUED, 0)
    is_shrinking = waiting and went > came and not queue.is_paused
    empty_in = 60 * waiting / (went - came) if is_shrinking else None
    return Flow(queue, sum(queue.counts.get(state, 0) for state in HELD), came, went, empty_in, history, workers)


def _history(points: list[Point], now: int) -> dict[str, list[float]]:
    """Return the completed jobs per minute over the last hour, by queue."""
    first = Span.TWO_HOURS.level.start_of(now) - 59 * MINUTE
    found: dict[str, list[float]] = {}
    for point in points:
        place = (point.at - first) // MINUTE
        if 0 <= place < 60:
            found.setdefault(point.queue, [0.0] * 60)[place] += point.values.get("completed", 0)
    return found


@page("/queues/{name}", "queues")
def queue(call: Call, request: PageRequest, name: str) -> PageResponse:
    """Show one queue."""
    return _queue_page(call, request, name, {"why": "", "duration": ""})


def _queue_page(
    call: Call, request: PageRequest, name: str, typed: dict[str, str], problem: Problem | None = None
) -> PageResponse:
    """Show a queue; `typed` and `problem` are the values and the error of a rejected pause form."""
    info, now = call.reader.queue(name), call.reader.now()
    chosen = chosen_range(request, now)
    charts, flow = charts_of(call.reader, chosen, lambda point: point.queue == name, info.oldest_queued_at)
    intervals = Intervals(call.reader.series(chosen.span, name), chosen, now)
    present = {name: sum(info.counts.get(state, 0) for state in UNFINISHED)}
    line = call.reader.find(Filter(states=frozenset({State.QUEUED}), queue=name), None, _NEXT).jobs
    tasks = _tasks_to_expect(call).get(name, ())
    workers = [worker for worker in _alive(call, now) if serves(worker, name, tasks)]
    context: dict[str, Any] = {
        "queue": info,
        "held": sum(info.counts.get(state, 0) for state in HELD),
        "charts": annotated(
            [charts[0], chart.unfinished(intervals, present, call.reader.began_at()), *charts[1:]],
            call.reader.turning_points(),
            name,
        )
        if not request.is_quick
        else [],
        "measured": flow,
        "tasks": sorted(stats_by_task(intervals.points).items(), key=lambda item: -item[1].ran),
        "rows": [row_of(job, now) for job in line],
        "urgencies": _urgencies(call, name, info.counts.get(State.QUEUED, 0)),
        "workers": workers,
        "typed": typed,
        "problem": problem,
    }
    if problem is not None:  # links lead to the queue, not to the form's address
        context["request"] = replace(request, path=f"/queues/{quote(name)}")
    return PageResponse("queue.html", f"Queue {name}", context, status=problem.status if problem else 200)


class Urgency(NamedTuple):
    """The waiting jobs of one priority: how many, if they were counted, and the first one."""

    priority: int
    number: int | None
    first: Job


def _urgencies(call: Call, name: str, queued: int) -> list[Urgency]:
    """Return what waits in line, most urgent first. A line is ordered by priority, so one short read finds where the
    next priority begins; the jobs are counted only if the line is short."""
    where, found = Filter(states=frozenset({State.QUEUED}), queue=name), dict[int, Job]()
    cursor = None
    for _ in range(_RANKS):
        jobs = call.reader.find(where, cursor, 1).jobs
        if not jobs:
            break
        found.setdefault(jobs[0].priority, jobs[0])
        cursor = encode_cursor(IN_LINE, (jobs[0].rank, _BEHIND_ALL))
    if queued > _COUNTED or len(found) == 1:
        return [Urgency(priority, queued if len(found) == 1 else None, found[priority]) for priority in _urgent(found)]
    urgencies, before = [], 0
    for priority in _urgent(found):
        upto = call.reader.count(replace(where, min_priority=priority)).number
        urgencies.append(Urgency(priority, max(0, upto - before), found[priority]))
        before = upto
    return urgencies


def _urgent(found: Iterable[int]) -> list[int]:
    return sorted(found, reverse=True)


@form_action("/queues/{name}/pause")
def pause(call: Call, request: PageRequest, name: str) -> PageResponse | Redirect:
    """Pause the queue; `again` restores the pause as it was before the queue was resumed."""
    call.reader.queue(name)
    typed = {"why": request.field("why"), "duration": request.field("duration")}
    return retry_form(
        lambda: _pause(call, request, name), lambda problem: _queue_page(call, request, name, typed, problem)
    )


def _pause(call: Call, request: PageRequest, name: str) -> Redirect:
    if request.field("again"):
        changed = call.actions.pause_again(name)
    else:
        changed = call.actions.pause(name, request.field("why") or None, request.field("duration") or None)
    said = "pause_over" if changed is None else "paused" if changed else "unchanged"
    return _told(call, request, name, said)


@form_action("/queues/{name}/resume")
def resume(call: Call, request: PageRequest, name: str) -> Redirect:
    """Undo a pause."""
    return _told(call, request, name, "resumed" if call.actions.resume(name) else "unchanged")


@page("/queues/{name}/purge", "queues")
def ask_to_purge(call: Call, request: PageRequest, name: str) -> PageResponse:
    """Ask for confirmation; the operator types the queue's name."""
    return _purge_form(call, name, is_wrong=False)


@form_action("/queues/{name}/purge", Role.ADMIN)
def purge(call: Call, request: PageRequest, name: str) -> PageResponse | Redirect:
    """Delete the waiting jobs, two seconds of work at a time."""
    if request.field("typed") != name:
        return _purge_form(call, name, is_wrong=True)
    seen_at = request.field("seen_at")
    if not seen_at.isdigit() or len(seen_at) > 18:
        raise BadValue(f"{seen_at[:20]!r} is not a time", hint="go back and try again")
    done = call.actions.purge(name, int(seen_at))
    skipped, back = sum(done.skipped.values()), f"/queues/{name}"
    if done.next is None:
        return Redirect(address(back, said="bulk", did="delete", changed=done.changed, skipped=skipped))
    words = f"waiting {shlex.quote(f'queue:{name}')}"
    return progress_page(JobAction(Operation.DELETE), words, int(seen_at), (done.changed, skipped), "", done.next, back)


def _purge_form(call: Call, name: str, *, is_wrong: bool) -> PageResponse:
    info = call.reader.queue(name)
    context = {
        "queue": info,
        "number": sum(info.counts.get(state, 0) for state in WAITING),
        "seen_at": call.reader.now(),
        "is_wrong": is_wrong,
    }
    return PageResponse("purge.html", f"Purge {name}?", context)


def _told(call: Call, request: PageRequest, name: str, said: str) -> Redirect:
    back = request.field("back")
    path = back if back == "/queues" or back in _pages_of_tasks(call, name) else f"/queues/{name}"
    return redirect_with_undo(call, path, said, name)


def _pages_of_tasks(call: Call, queue: str) -> list[str]:
    """Return the pages of its tasks: the button may have been on one of them."""
    return [f"/tasks/{task.name}" for task in call.reader.tasks() if task.queue == queue]
