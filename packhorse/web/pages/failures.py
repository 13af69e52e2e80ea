"""Failures by cause: what goes wrong, how often, since when; and one cause with its jobs."""

from __future__ import annotations

from collections.abc import Iterator

from packhorse.clock import microseconds
from packhorse.errors import JobNotFound
from packhorse.failure import Failure
from packhorse.job import ABORTED, DEAD, RETRYING, State
from packhorse.measures import measured
from packhorse.storage.records import FailureGroup, Filter, Page, Span
from packhorse.web.pages.jobs import row_of
from packhorse.web.pages.page import Asked, Elsewhere, Shown, deed, page
from packhorse.web.pages.traceback import pieces_of
from packhorse.web.site import Call
from packhorse.web.telltales import telltales_of

_JOBS = 20
DURATIONS = {"1h": "an hour", "24h": "a day", "7d": "a week", "30d": "a month"}
"""For how long a failure can be silenced, and how that is said."""


@page("/failures", "failures")
def failures(call: Call, asked: Asked) -> Shown:
    """Every cause, the latest first; what somebody has silenced is apart."""
    groups, task, now = call.reader.failures(), asked.query.get("task"), call.reader.now()
    of_task = [group for group in groups if task in (None, group.task)]
    silenced = [group for group in of_task if group.is_silenced(now)]
    is_apart = asked.query.get("show") == "silenced"
    wanted = silenced if is_apart else [group for group in of_task if not group.is_silenced(now)]
    context = {
        "groups": wanted,
        "total": sum(group.number for group in wanted),
        "task": task,
        "ran": measured(call.reader.series(Span.TWO_DAYS)).runs,
        "is_apart": is_apart,
        "open_number": len(of_task) - len(silenced),
        "silenced_number": len(silenced),
        "silenced_total": sum(group.number for group in silenced),
    }
    return Shown("failures.html", "Failures", context)


@page("/failures/{cause}", "failures")
def failure(call: Call, asked: Asked, cause: str) -> Shown:
    """One cause: an example, the jobs, and what can be done to all of them."""
    group, now = call.reader.failure(cause), call.reader.now()
    filters = {state: Filter(states=frozenset({state}), cause=cause) for state in (RETRYING, DEAD, ABORTED)}
    found = {state: call.reader.find(where, None, _JOBS) for state, where in filters.items()}
    jobs = [job for page in found.values() for job in page.jobs]
    counts = {state: call.reader.count(where) for state, where in filters.items()}
    example = _example(call, group)
    context = {
        "group": group,
        "is_silenced": group.is_silenced(now),
        "durations": DURATIONS,
        "rows": [row_of(job, now) for job in jobs],
        "counts": {state.value: count for state, count in counts.items() if count.number or state is not ABORTED},
        "steps": list(_steps(found)),
        "example": example,
        "pieces": pieces_of(example.traceback) if example and example.traceback else [],
        "telltales": telltales_of(call.reader, group),
        "seen_at": now,
    }
    return Shown("failure.html", f"{group.task}: {group.pattern}"[:80], context)


@deed("/failures/{cause}/silence")
def silence(call: Call, asked: Asked, cause: str) -> Elsewhere:
    """Show it apart for a while."""
    call.steps.silence(cause, microseconds(asked.field("duration") or "24h"))
    return Elsewhere(f"/failures/{cause}?said=silenced")


@deed("/failures/{cause}/unsilence")
def unsilence(call: Call, asked: Asked, cause: str) -> Elsewhere:
    """Show it among the others again."""
    call.steps.silence(cause, None)
    return Elsewhere(f"/failures/{cause}?said=unsilenced")


def _steps(found: dict[State, Page]) -> Iterator[tuple[str, str, str, str]]:
    """What can be done to all: the operation, its button's words and look, and the states that it is for. What was
    aborted, by its time limit or by somebody, is tried again only if that is asked for."""
    if _may_be(found[RETRYING]) or _may_be(found[DEAD]):
        yield "retry", "Retry all of this cause", "primary", "dead,retrying"
    if _may_be(found[ABORTED]):
        yield "retry", "Retry all that are aborted", "", "aborted"
    if _may_be(found[DEAD]):
        yield "delete", "Delete all that are dead …", "danger", "dead"


def _may_be(page: Page) -> bool:
    """Is there one, or might there be one further on?"""
    return bool(page.jobs or page.next)


def _example(call: Call, group: FailureGroup) -> Failure | None:
    """The last failure of this kind, as long as its job is there and has not failed otherwise since."""
    try:
        job = call.reader.get(group.last_job_id)
    except JobNotFound:
        return None
    return Failure.from_json(job.error) if job.error and job.cause == group.cause else None
