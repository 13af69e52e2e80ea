"""What comes by the clock: a schedule's plan in words, and its next slots. The command line and the web tell of it."""

from __future__ import annotations

import msgspec

from packhorse.core.clock import MINUTE, SECOND
from packhorse.core.errors import BadValue
from packhorse.monitor.serializers import Moment, ScheduleFields, Seconds, iso, schedule_fields
from packhorse.storage.records import ScheduleInfo

_COMING = 3
_LATE = MINUTE  # a foreman that lives turns a schedule within a second


class ShownSchedule(ScheduleFields, kw_only=True):
    """A schedule; `says` is its cron text in words, `coming` its next slots, `late_by` how many seconds ago it was due,
    if nobody has seen to that."""

    is_paused: bool
    says: str
    coming: list[Moment]
    late_by: Seconds


def shown_schedule(schedule: ScheduleInfo, now: int) -> ShownSchedule:
    """A schedule as programs are told of it."""
    says, coming = words_and_slots(schedule, now)
    late = late_by(schedule, now)
    return ShownSchedule(
        **msgspec.structs.asdict(schedule_fields(schedule)),
        is_paused=schedule.paused_at is not None,
        says=says,
        coming=[] if schedule.paused_at is not None else [iso(at) for at in coming],
        late_by=None if late is None else late / SECOND,
    )


def late_by(schedule: ScheduleInfo, now: int) -> int | None:
    """How long ago a schedule was due that no foreman has turned since. None: it is in time, or paused."""
    late = now - schedule.next_at
    return late if schedule.paused_at is None and schedule.next_at > 0 and late > _LATE else None


def words_and_slots(schedule: ScheduleInfo, now: int, slots: int = _COMING) -> tuple[str, list[int]]:
    """The cron text in words, and its next slots; a text that cannot be read here says so."""
    from packhorse.core.cron import Cron  # not before it is needed: it brings cronsim along

    try:
        cron = Cron(schedule.cron, schedule.tz)
        coming: list[int] = []
        at = max(now, schedule.next_at - 1)
        while len(coming) < slots:
            at = cron.next_after(at)
            if at != schedule.options.get("skip"):
                coming.append(at)
        return cron.describe(), coming
    except BadValue as error:
        return error.what, []
