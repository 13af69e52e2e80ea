"""Schedules: each plan in words, its next slots, what became of the last ones; run, pause, skip."""

from __future__ import annotations

from typing import NamedTuple

from packhorse.clock import DAY
from packhorse.coming import late_by, words_and_slots
from packhorse.schedule import cron_of
from packhorse.storage.records import ScheduleInfo, Tick
from packhorse.web.pages.page import Asked, Elsewhere, Shown, deed, page, undoable
from packhorse.web.pages.words import safe
from packhorse.web.security.operator import Role
from packhorse.web.site import Call

_TICKS = 20
_COMING = 3
_MOST_MARKS = 240


class Planned(NamedTuple):
    """A schedule as a line of the list. `marks` are its slots of the next day, each from 0 to 1000; `late` is how
    long ago it was due, if nobody has seen to it."""

    info: ScheduleInfo
    says: str
    coming: list[int]
    skipped: int | None
    ticks: list[Tick]
    marks: list[int]
    late: int | None


@page("/schedules", "schedules")
def schedules(call: Call, asked: Asked) -> Shown:
    """Every schedule, the next one first."""
    now = call.reader.now()
    return Shown(
        "schedules.html", "Schedules", {"planned": [_planned(call, info, now) for info in call.reader.schedules()]}
    )


def _planned(call: Call, info: ScheduleInfo, now: int) -> Planned:
    says, slots = words_and_slots(info, now, _COMING)
    skipped = info.options.get("skip")
    ticks = call.site.storage.ticks(info.name, limit=_TICKS)[::-1]
    is_coming = isinstance(skipped, int) and skipped > now
    marks = _marks(info, now) if slots else []
    late = late_by(info, now) if slots else None
    return Planned(info, safe(says), slots, skipped if is_coming else None, ticks, marks, late)


def _marks(info: ScheduleInfo, now: int) -> list[int]:
    """Where its slots of the coming day lie; those that would touch each other are told as one."""
    cron, at, marks = cron_of(info), now, []
    while (at := cron.next_after(at)) < now + DAY:
        marks.append(round(1000 * (at - now) / DAY))
        at += DAY // _MOST_MARKS
    return marks


@deed("/schedules/{name}/run")
def run(call: Call, asked: Asked, name: str) -> Elsewhere:
    """Its job, now."""
    return Elsewhere(f"/jobs/{call.steps.run_schedule(name).id}?said=enqueued")


@deed("/schedules/{name}/pause")
def pause(call: Call, asked: Asked, name: str) -> Elsewhere:
    """No jobs until it is resumed."""
    said = "schedule_paused" if call.steps.pause_schedule(name) else "unchanged"
    return undoable("/schedules", said, name, call.reader.now())


@deed("/schedules/{name}/resume")
def resume(call: Call, asked: Asked, name: str) -> Elsewhere:
    """Undo a pause."""
    said = "schedule_resumed" if call.steps.resume_schedule(name) else "unchanged"
    return undoable("/schedules", said, name, call.reader.now())


@deed("/schedules/{name}/skip")
def skip(call: Call, asked: Asked, name: str) -> Elsewhere:
    """Leave out the next slot."""
    call.steps.skip_schedule(name)
    return Elsewhere("/schedules?said=schedule_skipped")


@deed("/schedules/{name}/remove", Role.ADMIN)
def remove(call: Call, asked: Asked, name: str) -> Elsewhere:
    """Forget it."""
    return Elsewhere(f"/schedules?said={'schedule_removed' if call.steps.remove_schedule(name) else 'unchanged'}")
