"""Schedules and their ticks. A tick is a compare-and-set on the next slot: however many foremen run, it runs once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import astuple, replace

from packhorse.core.errors import NotUnique
from packhorse.core.event import Kind, Subject, deed_about
from packhorse.core.job import NewJob
from packhorse.storage.broken_records import facts_in
from packhorse.storage.records import Enqueued, ScheduleInfo, Tick, skipped_ticks, told_ticks
from packhorse.storage.sql.in_and_out import InAndOut
from packhorse.storage.sql.rows import to_json
from packhorse.storage.sql.transaction import Transaction

_OPTIONS = ScheduleInfo.__struct_fields__.index("options")


class Schedules(InAndOut):
    def put_schedules(self, schedules: Sequence[ScheduleInfo]) -> None:
        def work(tx: Transaction) -> None:
            for new in schedules:
                old = self._schedule(tx, new.name)
                self._put_schedule(tx, replace(new.following(old), updated_at=tx.now))
                if old is None or not new.is_same_plan(old):
                    self._record_about(tx, Subject.SCHEDULE, Kind.PUT, queue=new.name, cron=new.cron, tz=new.tz)

        self._write("put_schedules", work)

    def schedules(self) -> list[ScheduleInfo]:
        return [_schedule_of(row) for row in self._db.read("schedules", self._sql["all_schedules"])]

    def tick(
        self, name: str, slot: int, next_at: int, jobs: Sequence[NewJob], ticks: Sequence[Tick]
    ) -> list[Enqueued] | None:
        def work(tx: Transaction) -> list[Enqueued] | None:
            schedule = self._schedule(tx, name)
            if schedule is None or not schedule.is_due(slot, tx.now):
                return None
            enqueued, told = self._enqueue_for_tick(tx, jobs, ticks)
            self._put_schedule(tx, schedule.ticked(slot, next_at, told, enqueued))
            for one in told:
                tx.execute(self._sql["put_tick"], (one.schedule, one.slot, one.outcome, tx.now, one.job_id))
                self._record_about(tx, Subject.SCHEDULE, Kind.TICKED, queue=name, slot=one.slot, outcome=one.outcome)
            return enqueued

        return self._write("tick", work)

    def _enqueue_for_tick(
        self, tx: Transaction, jobs: Sequence[NewJob], ticks: Sequence[Tick]
    ) -> tuple[list[Enqueued], Sequence[Tick]]:
        if not jobs:
            return [], ticks
        try:
            enqueued = tx.nested(lambda own: self._enqueue(own, jobs))
            return enqueued, told_ticks(ticks, jobs, enqueued)
        except NotUnique:
            return [], skipped_ticks(ticks)

    def ticks(self, name: str, *, limit: int = 50) -> list[Tick]:
        return [Tick(*row) for row in self._db.read("ticks", self._sql["latest_ticks"], (name, limit))]

    def pause_schedule(self, name: str, paused: bool, *, by: str | None = None) -> bool:
        def work(tx: Transaction) -> bool:
            schedule = self._schedule(tx, name)
            turned = schedule and schedule.turned(paused, tx.now, by)
            if turned is None:
                return False
            self._put_schedule(tx, turned)
            self._record_about(tx, Subject.SCHEDULE, Kind.PAUSED if paused else Kind.RESUMED, queue=name, by=by)
            return True

        return self._write("pause_schedule", work)

    def record_operator_event(
        self, name: str, kind: Kind, *, job: str | None = None, slot: int | None = None, by: str | None = None
    ) -> None:
        def work(tx: Transaction) -> None:
            self._record_about(tx, **deed_about(kind, name), job=job, slot=slot, by=by)

        self._write("record_operator_event", work)

    def remove_schedule(self, name: str, *, by: str | None = None) -> bool:
        def work(tx: Transaction) -> bool:
            if tx.execute(self._sql["delete_schedule"], (name,)).rowcount == 0:
                return False
            self._record_about(tx, Subject.SCHEDULE, Kind.DELETED, queue=name, by=by)
            return True

        return self._write("remove_schedule", work)

    def _schedule(self, tx: Transaction, name: str) -> ScheduleInfo | None:
        row = tx.execute(self._sql["get_schedule"], (name,)).fetchone()
        return None if row is None else _schedule_of(row)

    def _put_schedule(self, tx: Transaction, schedule: ScheduleInfo) -> None:
        values = list(astuple(schedule))
        values[_OPTIONS] = to_json(schedule.options)
        tx.execute(self._sql["put_schedule"], values)


def _schedule_of(row: Sequence[Any]) -> ScheduleInfo:
    fields = list(row)
    fields[_OPTIONS] = facts_in(fields[_OPTIONS])
    return ScheduleInfo(*fields)
