"""Schedules and their ticks. A tick is a compare-and-set on the next slot: only one foreman makes it."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from packhorse.core.errors import NotUnique
from packhorse.core.event import Kind, Subject
from packhorse.core.job import NewJob
from packhorse.storage.engine.history import record_about
from packhorse.storage.engine.new_jobs import enqueue
from packhorse.storage.records import Enqueued, ScheduleInfo, Tick, actual_ticks, skipped_ticks
from packhorse.storage.transaction import Transaction


def put(tx: Transaction, schedules: Sequence[ScheduleInfo]) -> None:
    stored = tx.records(ScheduleInfo, [new.name for new in schedules])
    for new in schedules:
        old = stored.get(new.name)
        stored[new.name] = replace(new.replacing(old), updated_at=tx.now)
        tx.put(stored[new.name])
        if old is None or not new.is_same_plan(old):
            record_about(tx, Subject.SCHEDULE, Kind.PUT, queue=new.name, cron=new.cron, tz=new.tz)


def tick(
    tx: Transaction, name: str, slot: int, next_at: int, jobs: Sequence[NewJob], ticks: Sequence[Tick]
) -> list[Enqueued] | None:
    schedule = tx.records(ScheduleInfo, [name]).get(name)
    if schedule is None or not schedule.is_due(slot, tx.now):
        return None
    try:
        enqueued = tx.nested(lambda own: enqueue(own, jobs)) if jobs else []
        ticks = actual_ticks(ticks, jobs, enqueued)
    except NotUnique:
        enqueued, ticks = [], skipped_ticks(ticks)
    tx.put(schedule.after_ticks(slot, next_at, ticks, enqueued))
    tx.put_ticks([replace(one, at=tx.now) for one in ticks])
    for one in ticks:
        record_about(tx, Subject.SCHEDULE, Kind.TICKED, queue=name, slot=one.slot, outcome=one.outcome)
    return enqueued


def pause(tx: Transaction, name: str, paused: bool, by: str | None) -> bool:
    schedule = tx.records(ScheduleInfo, [name]).get(name)
    changed = schedule and schedule.with_pause(paused, tx.now, by)
    if changed is None:
        return False
    tx.put(changed)
    record_about(tx, Subject.SCHEDULE, Kind.PAUSED if paused else Kind.RESUMED, queue=name, by=by)
    return True


def remove(tx: Transaction, name: str, by: str | None) -> bool:
    schedule = tx.records(ScheduleInfo, [name]).get(name)
    if schedule is None:
        return False
    tx.delete(schedule)
    record_about(tx, Subject.SCHEDULE, Kind.DELETED, queue=name, by=by)
    return True
