"""What comes by the clock: a schedule's plan in words, and its next slots. The command line and the web tell of it."""

from __future__ import annotations

import msgspec

from packhorse.errors import BadValue
from packhorse.fields import Moment, ScheduleFields, iso, schedule_fields
from packhorse.schedule import cron_of
from packhorse.storage.records import ScheduleInfo

_COMING = 3


class ShownSchedule(ScheduleFields, kw_only=True):
    """A schedule; `says` is its cron text in words, `coming` its next slots."""

    is_paused: bool
    says: str
    coming: list[Moment]


def shown_schedule(schedule: ScheduleInfo, now: int) -> ShownSchedule:
    """A schedule as programs are told of it."""
    says, coming = words_and_slots(schedule, now)
    return ShownSchedule(
        **msgspec.structs.asdict(schedule_fields(schedule)),
        is_paused=schedule.paused_at is not None,
        says=says,
        coming=[] if schedule.paused_at is not None else [iso(at) for at in coming],
    )


def words_and_slots(schedule: ScheduleInfo, now: int, slots: int = _COMING) -> tuple[str, list[int]]:
    """The cron text in words, and its next slots; a text that cannot be read here says so."""
    try:
        cron = cron_of(schedule)
        coming: list[int] = []
        at = max(now, schedule.next_at - 1)
        while len(coming) < slots:
            at = cron.next_after(at)
            if at != schedule.options.get("skip"):
                coming.append(at)
        return cron.describe(), coming
    except BadValue as error:
        return error.what, []
