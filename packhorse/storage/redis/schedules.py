"""Schedules and their ticks. A tick is a compare-and-set on the schedule: however many foremen run, it runs once."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from packhorse.core.errors import NotUnique
from packhorse.core.event import Kind, Subject, deed_about
from packhorse.core.job import NewJob
from packhorse.storage.broken_records import record_in
from packhorse.storage.records import Enqueued, ScheduleInfo, Tick, skipped_ticks, told_ticks
from packhorse.storage.redis.in_and_out import InAndOut
from packhorse.storage.redis.queues import pairs
from packhorse.storage.redis.rows import to_json
from packhorse.storage.redis.transaction import Transaction


class Schedules(InAndOut):
    def put_schedules(self, schedules: Sequence[ScheduleInfo]) -> None:
        def work(tx: Transaction) -> None:
            tx.fields(self._keys.schedules, [one.name for one in schedules])
            for new in schedules:
                old = self._schedule(tx, new.name)
                self._put_schedule(tx, replace(new.following(old), updated_at=tx.now))
                if old is None or not new.is_same_plan(old):
                    tx.record_about(Subject.SCHEDULE, Kind.PUT, queue=new.name, cron=new.cron, tz=new.tz)

        self._change("put_schedules", work)

    def schedules(self) -> list[ScheduleInfo]:
        (told,) = self._server.send("schedules", ("HGETALL", self._keys.schedules))
        return sorted(
            (record_in(ScheduleInfo, packed, name=name.decode()) for name, packed in pairs(told)),
            key=lambda one: (one.next_at, one.name),
        )

    def tick(
        self, name: str, slot: int, next_at: int, jobs: Sequence[NewJob], ticks: Sequence[Tick]
    ) -> list[Enqueued] | None:
        def work(tx: Transaction) -> list[Enqueued] | None:
            schedule = self._schedule(tx, name)
            if schedule is None or not schedule.is_due(slot, tx.now):
                return None
            enqueued, told = self._enqueue_for_tick(tx, jobs, ticks)
            self._put_schedule(tx, schedule.ticked(slot, next_at, told, enqueued))
            self._put_ticks(tx, [replace(one, at=tx.now) for one in told])
            for one in told:
                tx.record_about(Subject.SCHEDULE, Kind.TICKED, queue=name, slot=one.slot, outcome=one.outcome)
            return enqueued

        return self._change("tick", work)

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
        if limit < 1:
            return []
        (told,) = self._server.send("ticks", ("ZREVRANGE", self._keys.ticks_of(name), 0, limit - 1))
        return [tick_in(packed) for packed in told]

    def pause_schedule(self, name: str, paused: bool, *, by: str | None = None) -> bool:
        def work(tx: Transaction) -> bool:
            schedule = self._schedule(tx, name)
            turned = schedule and schedule.turned(paused, tx.now, by)
            if turned is None:
                return False
            self._put_schedule(tx, turned)
            tx.record_about(Subject.SCHEDULE, Kind.PAUSED if paused else Kind.RESUMED, queue=name, by=by)
            return True

        return self._change("pause_schedule", work)

    def record_operator_event(
        self, name: str, kind: Kind, *, job: str | None = None, slot: int | None = None, by: str | None = None
    ) -> None:
        def work(tx: Transaction) -> None:
            tx.record_about(**deed_about(kind, name), job=job, slot=slot, by=by)

        self._change("record_operator_event", work)

    def remove_schedule(self, name: str, *, by: str | None = None) -> bool:
        def work(tx: Transaction) -> bool:
            if tx.field(self._keys.schedules, name) is None:
                return False
            tx.put_field(self._keys.schedules, name, None)
            tx.do("ZREM", self._keys.slots, name)
            tx.record_about(Subject.SCHEDULE, Kind.DELETED, queue=name, by=by)
            return True

        return self._change("remove_schedule", work)

    def _schedule(self, tx: Transaction, name: str) -> ScheduleInfo | None:
        packed = tx.field(self._keys.schedules, name)
        return None if packed is None else record_in(ScheduleInfo, packed, name=name)

    def _put_schedule(self, tx: Transaction, schedule: ScheduleInfo) -> None:
        tx.put_field(self._keys.schedules, schedule.name, to_json(schedule))
        tx.do("ZADD", self._keys.slots, schedule.next_at if schedule.paused_at is None else "+inf", schedule.name)

    def _put_ticks(self, tx: Transaction, ticks: Sequence[Tick]) -> None:
        """Each among all ticks, so that the oldest can be dropped, and among those of its schedule."""
        first = tx.take_numbers("tick", len(ticks)) if ticks else 0
        for number, one in enumerate(ticks, start=first):
            tx.do("ZADD", self._keys.ticks, number, f"{number}:{one.at}:{one.schedule}")
            tx.do("ZADD", self._keys.ticks_of(one.schedule), number, f"{number}:{to_json(one)}")


def tick_in(packed: bytes) -> Tick:
    """A tick as it lies among those of its schedule."""
    return record_in(Tick, packed.partition(b":")[2])
