"""Schedules and their ticks, in memory: a tick that comes second finds the next slot already, and does nothing."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from packhorse.core.errors import NotUnique
from packhorse.core.event import Kind, Subject, deed_about
from packhorse.core.job import NewJob
from packhorse.storage.memory.keeper import Keeper, atomic
from packhorse.storage.records import Enqueued, ScheduleInfo, Tick, skipped_ticks, told_ticks


class Schedules(Keeper):
    @atomic
    def put_schedules(self, schedules: Sequence[ScheduleInfo]) -> None:
        for new in schedules:
            old = self._schedules.get(new.name)
            self._schedules[new.name] = replace(new.following(old), updated_at=self.now())
            if old is None or not new.is_same_plan(old):
                self._record_about(Subject.SCHEDULE, Kind.PUT, queue=new.name, cron=new.cron, tz=new.tz)

    @atomic
    def schedules(self) -> list[ScheduleInfo]:
        return sorted(self._schedules.values(), key=lambda one: (one.next_at, one.name))

    @atomic
    def tick(
        self, name: str, slot: int, next_at: int, jobs: Sequence[NewJob], ticks: Sequence[Tick]
    ) -> list[Enqueued] | None:
        schedule = self._schedules.get(name)
        if schedule is None or not schedule.is_due(slot, self.now()):
            return None
        try:
            enqueued = self.enqueue(jobs)
        except NotUnique:
            enqueued, ticks = [], skipped_ticks(ticks)
        ticks = told_ticks(ticks, jobs, enqueued)
        self._schedules[name] = schedule.ticked(slot, next_at, ticks, enqueued)
        for one in ticks:
            self._ticks.append(replace(one, at=self.now()))
            self._record_about(Subject.SCHEDULE, Kind.TICKED, queue=name, slot=one.slot, outcome=one.outcome)
        return enqueued

    @atomic
    def ticks(self, name: str, *, limit: int = 50) -> list[Tick]:
        return [one for one in reversed(self._ticks) if one.schedule == name][:limit]

    @atomic
    def pause_schedule(self, name: str, paused: bool, *, by: str | None = None) -> bool:
        schedule = self._schedules.get(name)
        turned = schedule and schedule.turned(paused, self.now(), by)
        if turned is None:
            return False
        self._schedules[name] = turned
        self._record_about(Subject.SCHEDULE, Kind.PAUSED if paused else Kind.RESUMED, queue=name, by=by)
        return True

    @atomic
    def record_operator_event(
        self, name: str, kind: Kind, *, job: str | None = None, slot: int | None = None, by: str | None = None
    ) -> None:
        self._record_about(**deed_about(kind, name), job=job, slot=slot, by=by)

    @atomic
    def remove_schedule(self, name: str, *, by: str | None = None) -> bool:
        if self._schedules.pop(name, None) is None:
            return False
        self._record_about(Subject.SCHEDULE, Kind.DELETED, queue=name, by=by)
        return True
