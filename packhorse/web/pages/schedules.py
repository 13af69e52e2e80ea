"""Schedules: each plan in words, its next slots and the results of the last ones; run, pause, skip."""

from __future__ import annotations

import functools
from itertools import islice
from typing import NamedTuple

from packhorse.client.schedule import cron_of
from packhorse.core.clock import DAY, MINUTE, to_datetime
from packhorse.core.cron import Cron
from packhorse.core.job import FINAL, Job
from packhorse.monitor.schedules import describe_schedule, late_by
from packhorse.storage.records import ScheduleInfo, Tick
from packhorse.web.context import Call
from packhorse.web.pages.filters import span
from packhorse.web.pages.page import PageRequest, PageResponse, Redirect, form_action, page, redirect_with_undo
from packhorse.web.security.operator import Role
from packhorse.web.text import safe

_TICKS = 20
_COMING = 3
_MOST_MARKS = 240
_JOBS_AT_ONCE = 50
_LOOKS = {
    "completed": "good",
    "dead": "bad",
    "missed": "bad",
    "retrying": "wait",
    "skipped": "wait",
    "aborted": "delay",
    "gone": "delay",
}
_MOST_BYTES = 4 << 20


class Square(NamedTuple):
    """The result of one slot; `look` is the CSS class that gives it colour and shape."""

    look: str
    says: str
    job_id: str | None = None


class Planned(NamedTuple):
    """A schedule as a row of the list. `marks` are its slots of the next day, each from 0 to 1000; `late` is how long
    it has been overdue."""

    info: ScheduleInfo
    says: str
    coming: list[int]
    skipped: int | None
    squares: list[Square]
    lately: str
    marks: list[int]
    late: int | None


@page("/schedules", "schedules")
def schedules(call: Call, request: PageRequest) -> PageResponse:
    """List every schedule, next due first."""
    now, infos = call.reader.now(), call.reader.schedules()
    ticks = {info.name: call.web.storage.ticks(info.name, limit=_TICKS)[::-1] for info in infos}
    jobs = _jobs(call, [tick.job_id for each in ticks.values() for tick in each if tick.job_id])
    planned = [_planned(info, now, ticks[info.name], jobs) for info in infos]
    return PageResponse("schedules.html", "Schedules", {"planned": planned})


def _jobs(call: Call, ids: list[str]) -> dict[str, Job]:
    """Return those of these jobs that are still kept, up to a limit on what is read for a row of squares."""
    found: dict[str, Job] = {}
    rest, size = iter(ids), 0
    while size < _MOST_BYTES and (some := list(islice(rest, _JOBS_AT_ONCE))):
        jobs = call.reader.these(some)
        found.update((job.id, job) for job in jobs)
        size += sum(len(job.args) + len(job.result or "") for job in jobs)
    return found


def _square(tick: Tick, jobs: dict[str, Job], now: int) -> Square:
    slot = f"{to_datetime(tick.slot):%Y-%m-%d %H:%M:%S} UTC"
    if tick.job_id is None:
        return _squared(tick.outcome, f"{slot}: {tick.outcome}")
    job = jobs.get(tick.job_id)
    if job is None:
        return _squared("gone", f"{slot}: its job is no longer kept", tick.job_id)
    return _squared(job.state, f"{slot}: {_outcome(job, now)}", tick.job_id)


def _squared(outcome: str, says: str, job_id: str | None = None) -> Square:
    return Square(_LOOKS.get(outcome, "first"), says, job_id)


def _outcome(job: Job, now: int) -> str:
    ran = job.took(now)
    return f"{job.state} {'after' if job.state in FINAL else 'for'} {span(ran)}" if ran is not None else job.state.value


def _planned(info: ScheduleInfo, now: int, ticks: list[Tick], jobs: dict[str, Job]) -> Planned:
    says, slots = describe_schedule(info, now, _COMING)
    skipped = info.options.get("skip")
    last = jobs.get(info.last_job_id or "")
    is_coming = isinstance(skipped, int) and skipped > now
    marks = _marks(cron_of(info), now // MINUTE * MINUTE) if slots else []
    late = late_by(info, now) if slots else None
    squares = [_square(tick, jobs, now) for tick in ticks]
    lately = _outcome(last, now) if last is not None else ""
    return Planned(info, safe(says), slots, skipped if is_coming else None, squares, lately, marks, late)


@functools.lru_cache(maxsize=2_000)
def _marks(cron: Cron, now: int) -> list[int]:
    """Return the positions of the slots of the coming day; slots that would touch are merged. Cached, because an open
    page is redrawn every few seconds, and hundreds of schedules have thousands of slots."""
    at, marks = now, []
    while (at := cron.next_after(at)) < now + DAY:
        marks.append(round(1000 * (at - now) / DAY))
        at += DAY // _MOST_MARKS
    return marks


@form_action("/schedules/{name}/run")
def run(call: Call, request: PageRequest, name: str) -> Redirect:
    """Enqueue its job now."""
    return Redirect(f"/jobs/{call.actions.run_schedule(name).id}?said=enqueued")


@form_action("/schedules/{name}/pause")
def pause(call: Call, request: PageRequest, name: str) -> Redirect:
    """Enqueue no jobs until it is resumed."""
    said = "schedule_paused" if call.actions.pause_schedule(name) else "unchanged"
    return redirect_with_undo(call, "/schedules", said, name)


@form_action("/schedules/{name}/resume")
def resume(call: Call, request: PageRequest, name: str) -> Redirect:
    """Undo a pause."""
    said = "schedule_resumed" if call.actions.resume_schedule(name) else "unchanged"
    return redirect_with_undo(call, "/schedules", said, name)


@form_action("/schedules/{name}/skip")
def skip(call: Call, request: PageRequest, name: str) -> Redirect:
    """Skip the next slot."""
    call.actions.skip_schedule(name)
    return Redirect("/schedules?said=schedule_skipped")


@form_action("/schedules/{name}/remove", Role.ADMIN)
def remove(call: Call, request: PageRequest, name: str) -> Redirect:
    """Delete the schedule."""
    return Redirect(f"/schedules?said={'schedule_removed' if call.actions.remove_schedule(name) else 'unchanged'}")
