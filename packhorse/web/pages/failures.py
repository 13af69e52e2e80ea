"""Failures by cause: what goes wrong, how often, since when; and one cause with its jobs."""

from __future__ import annotations

from packhorse.errors import BadValue, JobNotFound
from packhorse.failure import Failure
from packhorse.job import DEAD, RETRYING
from packhorse.measures import measured
from packhorse.storage.records import FailureGroup, Filter, Page, Span
from packhorse.web.pages.jobs import row_of
from packhorse.web.pages.page import Asked, Shown, page
from packhorse.web.pages.traceback import pieces_of
from packhorse.web.site import Call

_JOBS = 20


@page("/failures", "failures")
def failures(call: Call, asked: Asked) -> Shown:
    """Every cause, the latest first."""
    groups = call.reader.failures()
    task = asked.query.get("task")
    wanted = [group for group in groups if task in (None, group.task)]
    total = sum(group.number for group in wanted)
    ran = measured(call.reader.series(Span.TWO_DAYS)).runs
    return Shown("failures.html", "Failures", {"groups": wanted, "total": total, "task": task, "ran": ran})


@page("/failures/{cause}", "failures")
def failure(call: Call, asked: Asked, cause: str) -> Shown:
    """One cause: an example, the jobs, and what can be done to all of them."""
    group = _group(call, cause)
    now = call.reader.now()
    found = {
        state: call.reader.find(Filter(states=frozenset({state}), cause=cause), None, _JOBS)
        for state in (RETRYING, DEAD)
    }
    jobs = [job for page in found.values() for job in page.jobs]
    example = _example(call, group)
    context = {
        "group": group,
        "rows": [row_of(job, now) for job in jobs],
        "may_be_dead": _may_be(found[DEAD]),
        "may_be_some": any(map(_may_be, found.values())),
        "example": example,
        "pieces": pieces_of(example.traceback) if example and example.traceback else [],
        "seen_at": now,
    }
    return Shown("failure.html", f"{group.task}: {group.pattern}"[:80], context)


def _group(call: Call, cause: str) -> FailureGroup:
    for group in call.reader.failures():
        if group.cause == cause:
            return group
    raise BadValue(f"there is no failure {cause[:40]!r}", hint="see /failures")


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
