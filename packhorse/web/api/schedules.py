"""Schedules: their plans, their next and latest slots; run, pause, skip and remove."""

from __future__ import annotations

import msgspec

from packhorse.core.clock import from_datetime
from packhorse.core.errors import ScheduleNotFound
from packhorse.monitor.serializers import Moment, ShownSchedule, TickFields, iso, shown_schedule, tick_fields
from packhorse.web.api.endpoint import Call, delete, get, post
from packhorse.web.api.queues import Changed

_TICKS = 20


class ScheduleList(msgspec.Struct):
    """Every schedule, the next one first."""

    items: list[ShownSchedule]


class TickList(msgspec.Struct):
    """The latest slots, newest first."""

    items: list[TickFields]


class RunAnswer(msgspec.Struct):
    """The job that was enqueued."""

    job_id: str


class SkipAnswer(msgspec.Struct):
    """The slot that will be skipped."""

    skipped_at: Moment


@get("/schedules")
def list_schedules(call: Call) -> ScheduleList:
    """Every schedule: its plan, also in words, its next slots, its last job, and whether it is paused."""
    now = call.reader.now()
    return ScheduleList([shown_schedule(schedule, now) for schedule in call.reader.schedules()])


@get("/schedules/{name}/ticks")
def list_ticks(call: Call, name: str) -> TickList:
    """The outcomes of the latest slots of a schedule."""
    if name not in {schedule.name for schedule in call.reader.schedules()}:
        raise ScheduleNotFound(name[:128])
    return TickList([tick_fields(tick) for tick in call.web.storage.ticks(name, limit=_TICKS)])


@post("/schedules/{name}/run", status=201)
def run_schedule(call: Call, name: str) -> RunAnswer:
    """Enqueue the schedule's job now, even if it is paused; its slots do not change."""
    return RunAnswer(call.actions.run_schedule(name).id)


@post("/schedules/{name}/pause")
def pause_schedule(call: Call, name: str) -> Changed:
    """Pause a schedule: it enqueues no jobs until it is resumed."""
    return Changed(name, call.actions.pause_schedule(name))


@post("/schedules/{name}/resume")
def resume_schedule(call: Call, name: str) -> Changed:
    """Resume a schedule; it skips the slots that it missed."""
    return Changed(name, call.actions.resume_schedule(name))


@post("/schedules/{name}/skip")
def skip_schedule(call: Call, name: str) -> SkipAnswer:
    """Skip the next slot of a schedule."""
    return SkipAnswer(iso(from_datetime(call.actions.skip_schedule(name))))


@delete("/schedules/{name}")
def remove_schedule(call: Call, name: str) -> Changed:
    """Remove a schedule. One that is defined in code returns when the next worker starts."""
    return Changed(name, call.actions.remove_schedule(name))
