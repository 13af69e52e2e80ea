"""Failures by cause: what fails, how often, since when and since which version; and one cause with its jobs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from packhorse.core.clock import microseconds
from packhorse.core.job import ABORTED, DEAD, RETRYING, State
from packhorse.core.outcome import Failure
from packhorse.monitor.stats import run_stats
from packhorse.storage.records import Count, FailureGroup, Filter, Page, Point
from packhorse.web.context import Call
from packhorse.web.pages import chart
from packhorse.web.pages.annotations import annotated
from packhorse.web.pages.chart import Intervals
from packhorse.web.pages.error_text import pieces_of
from packhorse.web.pages.filters import pretty
from packhorse.web.pages.job_cards import issue_of
from packhorse.web.pages.jobs import row_of
from packhorse.web.pages.page import PageRequest, PageResponse, Redirect, form_action, page
from packhorse.web.pages.time_range import Range, chosen_range

_JOBS = 20
_ROWS = 25
_USUAL = "48h"  # failures are also looked at the next morning
NEXT_VERSION = "version"
DURATIONS = {"1h": "for an hour", "24h": "for a day", "7d": "for a week", "30d": "for a month"}
"""For how long a failure can be silenced, and its label."""


class Row(NamedTuple):
    """A cause in the list: how often it occurred in each interval, and how many of its jobs are left."""

    group: FailureGroup
    history: list[int]
    left: dict[str, Count] | None  # None: counting would take too long

    @property
    def number(self) -> int:
        return sum(self.history)


@page("/failures", "failures")
def failures(call: Call, request: PageRequest) -> PageResponse:
    """List the causes, latest first; silenced ones are listed separately."""
    reader, now = call.reader, call.reader.now()
    chosen = chosen_range(request, now, _USUAL)
    groups, task = reader.failures(), request.query.get("task")
    of_task = [group for group in groups if task in (None, group.task)]
    silenced = [group for group in of_task if group.is_silenced(now)]
    is_apart = request.query.get("show") == "silenced"
    wanted = silenced if is_apart else [group for group in of_task if not group.is_silenced(now)]
    first, counts = _first(request, len(wanted)), reader.failure_counts(chosen.span)
    intervals, listed = Intervals(reader.series(chosen.span), chosen, now), wanted[first : first + _ROWS]
    left = reader.left_of([group.cause for group in listed])
    context = {
        "rows": [_row(group, counts.get(group.cause, {}), intervals, left.get(group.cause)) for group in listed],
        "kinds": len(wanted),
        "first": first,
        "more": first + _ROWS if first + _ROWS < len(wanted) else None,
        "before": max(0, first - _ROWS) if first else None,
        "total": sum(within(counts.get(group.cause, {}), intervals) for group in wanted),
        "whole": sum(within(each, intervals) for each in counts.values()),
        "task": task,
        "range": chosen,
        "ran": run_stats(intervals.points).runs,
        "is_apart": is_apart,
        "open_number": len(of_task) - len(silenced),
        "silenced_number": len(silenced),
        "silenced_total": sum(within(counts.get(group.cause, {}), intervals) for group in silenced),
    }
    return PageResponse("failures.html", "Failures", context)


def _first(request: PageRequest, number: int) -> int:
    """Return the position of the first row on this page, from the address. Users can edit that, so a bad value counts
    as 0."""
    text = request.query.get("first", "")
    place = int(text) if text.isascii() and text.isdigit() and len(text) < 6 else 0
    return place if place < number else 0


def _row(group: FailureGroup, counts: Mapping[int, int], intervals: Intervals, left: dict[str, Count] | None) -> Row:
    return Row(group, [counts.get(at, 0) for at in intervals.times], left)


def within(counts: Mapping[int, int], intervals: Intervals) -> int:
    """Return how many fall into these intervals."""
    return sum(number for at, number in counts.items() if intervals.times[0] <= at <= intervals.times[-1])


@page("/failures/{cause}", "failures")
def failure(call: Call, request: PageRequest, cause: str) -> PageResponse:
    """Show one cause: an example, its jobs, and actions on all of them."""
    group, now = call.reader.failure(cause), call.reader.now()
    chosen = chosen_range(request, now, _USUAL)
    filters = {state: Filter(states=frozenset({state}), cause=cause) for state in (RETRYING, DEAD, ABORTED)}
    found = {state: call.reader.find(where, None, _JOBS) for state, where in filters.items()}
    jobs = [job for page in found.values() for job in page.jobs]
    counts = {state: call.reader.count(where) for state, where in filters.items()}
    example = call.reader.example_of(group)
    context = {
        "group": group,
        "range": chosen,
        "charts": annotated(
            [_over_time(call, group, chosen, now)], call.reader.turning_points(), _queue_of(call, group)
        ),
        "issue": _issue(call, group, example) if example else "",
        "is_silenced": group.is_silenced(now),
        "durations": _durations(group),
        "rows": [row_of(job, now) for job in jobs],
        "counts": {state.value: count for state, count in counts.items() if count.number or state is not ABORTED},
        "steps": list(_steps(found)),
        "example": example,
        "pieces": pieces_of(example.traceback) if example and example.traceback else [],
        "seen_at": now,
    }
    return PageResponse("failure.html", f"{group.task}: {group.pattern}"[:80], context)


@form_action("/failures/{cause}/silence")
def silence(call: Call, request: PageRequest, cause: str) -> Redirect:
    """List it separately for a while, or until the code version changes."""
    wanted = request.field("duration") or "24h"
    if wanted == NEXT_VERSION:
        call.actions.silence(cause, None, until_next_version=True)
    else:
        call.actions.silence(cause, microseconds(wanted))
    return Redirect(f"/failures/{cause}?said=silenced")


@form_action("/failures/{cause}/unsilence")
def unsilence(call: Call, request: PageRequest, cause: str) -> Redirect:
    """List it with the others again."""
    call.actions.unsilence(cause)
    return Redirect(f"/failures/{cause}?said=unsilenced")


def _steps(found: dict[State, Page]) -> Iterator[tuple[str, str, str, str]]:
    """Yield the actions on all jobs: the operation, the label and look of its button, and the states it applies to.
    Aborted jobs, whether by an operator or by their time limit, are retried only on request."""
    if _may_be(found[RETRYING]) or _may_be(found[DEAD]):
        yield "retry", "Retry all of this cause", "primary", "dead,retrying"
    if _may_be(found[ABORTED]):
        yield "retry", "Retry all that are aborted", "", "aborted"
    if _may_be(found[DEAD]):
        yield "delete", "Delete all that are dead …", "danger", "dead"


def _may_be(page: Page) -> bool:
    """Is there a job here, or perhaps on a later page?"""
    return bool(page.jobs or page.next)


def _durations(group: FailureGroup) -> dict[str, str]:
    """Return how long it can be silenced; until the next version too, if the present one is known."""
    version = {} if group.last_version is None else {NEXT_VERSION: "until the next version"}
    return {**version, **DURATIONS}


def _queue_of(call: Call, group: FailureGroup) -> str | None:
    return next((task.queue for task in call.reader.tasks() if task.name == group.task), None)


def _over_time(call: Call, group: FailureGroup, chosen: Range, now: int) -> chart.Chart:
    counts = call.reader.failure_counts(chosen.span).get(group.cause, {})
    points = [Point(at, "", group.task, {"failed": number}) for at, number in counts.items()]
    return chart.failed(Intervals(points, chosen, now))


def _issue(call: Call, group: FailureGroup, example: Failure) -> str:
    """Describe the example as text for an issue."""
    record = call.reader.get(group.last_job_id)
    return issue_of(call, record, example, pretty(record.args)[0])
