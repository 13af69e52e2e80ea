"""Ticks schedules: enqueues a job for every slot that is due, and records a tick.

Moving a schedule to its next slot is a compare-and-set of the storage, in one write with the jobs, so only one of many
foremen ticks a slot. A job's id is derived from schedule and slot.
"""

from __future__ import annotations

import logging

from msgspec.structs import replace

from packhorse.client.schedule import cron_of, job_of, slot_id
from packhorse.core.clock import MINUTE, SECOND
from packhorse.core.cron import Cron
from packhorse.core.errors import BadValue
from packhorse.core.event import Kind, Subject
from packhorse.core.job import UNFINISHED
from packhorse.storage import Storage
from packhorse.storage.records import EventFilter, PollResult, ScheduleInfo, Tick

MOST_SLOTS = 100
"""The most slots that one tick makes up for, and the most that it records besides the first."""
ON_TIME = MINUTE
"""A slot that is later than this does not run if `missed` is "none"."""
_PUNCTUAL = 2 * SECOND
"""A tick that is later than this checks whether the schedule was paused meanwhile."""
_ALL = 1 << 31

log = logging.getLogger("packhorse.chores")


class TickSchedules:
    """Runs when the next slot is due, at least once in its interval."""

    name = "schedules"
    interval = 60.0

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._complained: set[tuple[str, str, str]] = set()

    def due_in(self, result: PollResult) -> int | None:
        return result.ticks_in

    def run(self) -> float | None:
        """Tick every schedule that is due; an invalid schedule does not delay the others."""
        schedules = self._storage.schedules()
        if not schedules:
            return None
        now = self._storage.now()
        slots = []
        for schedule in schedules:
            if schedule.paused_at is not None:
                continue
            try:
                slots.append(schedule.next_at if schedule.next_at > now else self._tick(schedule, now))
            except BadValue as error:
                self._complain(schedule, error)
        pause = max(0, min(slots) - now) / SECOND if slots else self.interval
        return pause if pause < self.interval else None

    def _tick(self, schedule: ScheduleInfo, now: int) -> int:
        """Tick the schedule; return its next slot."""
        cron, job = cron_of(schedule), job_of(schedule, "")
        next_at = cron.next_after(now)
        slots = due_slots(cron, schedule.next_at, now)
        skipped = self._skipped(schedule, slots, now)
        outcomes = decide(schedule, slots, now, skipped, is_busy=self._busy(schedule), is_unique=job.unique is not None)
        ids = {slot: slot_id(schedule.name, slot) for slot, outcome in outcomes.items() if outcome == "enqueued"}
        ticks = [Tick(schedule.name, slot, outcome, 0, ids.get(slot)) for slot, outcome in outcomes.items()]
        jobs = [replace(job, id=job_id) for job_id in ids.values()]
        self._storage.tick(schedule.name, schedule.next_at, next_at, jobs, ticks)
        return next_at

    def _busy(self, schedule: ScheduleInfo) -> bool:
        if schedule.overlap != "skip" or schedule.last_job_id is None:
            return False
        last = self._storage.get(schedule.last_job_id)
        return last is not None and last.state in UNFINISHED

    def _skipped(self, schedule: ScheduleInfo, slots: list[int], now: int) -> set[int]:
        """The slots that operators skipped: one by one, or by a pause that is over."""
        skipped = {slot for slot in slots if slot == schedule.options.get("skip")}
        if slots[0] < now - _PUNCTUAL:
            start, end = self._last_pause(schedule.name)
            skipped |= {slot for slot in slots if start <= slot < end}
        return skipped

    def _last_pause(self, name: str) -> tuple[int, int]:
        about = EventFilter(subject=Subject.SCHEDULE, queue=name, kind=Kind.RESUMED)
        resumed = self._storage.events(about, limit=1, newest_first=True)
        if not resumed:
            return 0, 0
        about = EventFilter(subject=Subject.SCHEDULE, queue=name, kind=Kind.PAUSED, before=resumed[0].id)
        paused = self._storage.events(about, limit=1, newest_first=True)
        return paused[0].at if paused else 0, resumed[0].at

    def _complain(self, schedule: ScheduleInfo, error: BadValue) -> None:
        if (about := (schedule.name, schedule.cron, schedule.tz)) not in self._complained:
            self._complained.add(about)
            log.error("schedule %s cannot tick: %s", schedule.name, error)


def due_slots(cron: Cron, first: int, now: int) -> list[int]:
    """The slots from `first` on that are due, oldest first; of very many, the first and the latest hundred."""
    later = cron.between(first, now, MOST_SLOTS + 1)
    span = MINUTE
    while len(later) > MOST_SLOTS:
        # Years may have passed with a slot each second: look back from now, in growing spans.
        latest = cron.between(max(first, now - span), now, _ALL)
        if len(latest) >= MOST_SLOTS:
            later = latest[-MOST_SLOTS:]
        span *= 2
    return [first, *later]


def decide(
    schedule: ScheduleInfo, slots: list[int], now: int, skipped: set[int], *, is_busy: bool, is_unique: bool
) -> dict[int, str]:
    """The outcome of each slot: enqueued, skipped or missed. `is_busy`: overlap is not allowed, and its last job has
    not ended."""
    outcomes = dict.fromkeys(slots, "missed") | dict.fromkeys(skipped, "skipped")
    wanted = [slot for slot in slots if slot not in skipped]
    match schedule.missed:
        case "all":
            wanted = wanted[-MOST_SLOTS:]
        case "none":
            wanted = [slot for slot in wanted[-1:] if slot >= now - ON_TIME]
        case _:
            wanted = wanted[-1:]
    outcomes |= dict.fromkeys(wanted, "enqueued")
    # Several jobs would overlap each other; of unique ones only one can be stored.
    if schedule.overlap == "skip" or is_unique:
        outcomes |= dict.fromkeys(wanted if is_busy else wanted[:-1], "skipped")
    return outcomes
