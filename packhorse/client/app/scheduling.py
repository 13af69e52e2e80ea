"""An app's schedules: naming them in the code, and looking at and steering those in the storage.

One group of an app's methods. What the code names is written to the storage by every worker that starts; what
operators have done to it there stays.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Unpack

from packhorse.client.app.enqueueing import Enqueueing
from packhorse.client.job import JobHandle, enqueue_job, for_coroutine
from packhorse.client.job_builder import Arguments, ScheduleKeywords
from packhorse.client.schedule import Missed, Overlap, Plan, find_schedule, new_job_of, skip_next
from packhorse.client.task import ScheduleDecorator, Task
from packhorse.core.errors import BadValue
from packhorse.core.event import Kind
from packhorse.storage.records import ScheduleInfo


class Scheduling(Enqueueing):
    def schedule(
        self,
        cron: str,
        *,
        tz: str = "UTC",
        args: Arguments = None,
        name: str | None = None,
        missed: Missed = "one",
        overlap: Overlap = "allow",
        **options: Unpack[ScheduleKeywords],
    ) -> ScheduleDecorator:
        """Have a task run by the clock: five fields of cron, six with seconds first, `@daily`, or `@every 90s`.

        It takes a task, or a function, of which it makes one. The name is the task's unless given. `missed` says what
        becomes of slots that passed while nothing ran: the latest runs ("one"), none does, or each, a hundred at most
        ("all"). With `overlap="skip"` a slot is left out while the job of the one before has not ended. Options are
        those of `task.using`. However many foremen there are, a slot is enqueued once.

        >>> @app.schedule("0 7 * * MON-FRI", tz="Europe/Ljubljana", args={"kind": "daily"})
        ... def report(kind: str) -> None: ...
        """
        plan = Plan(cron=cron, tz=tz, args=args, name=name, missed=missed, overlap=overlap, options=options)

        def decorate(target: Any) -> Task[..., Any]:
            task = target if isinstance(target, Task) else self._add(target, None, self._defaults)
            if task._app is not self:
                raise BadValue(f"the task {task.name} belongs to another app", hint="schedule it there")
            self.schedules.add(plan, task._template, task._registered.function)
            return task

        return decorate  # type: ignore[return-value]  # it answers the very task, or the kind that fits the function

    def put_schedules(self) -> None:
        """Write the schedules that the code names to the storage, and remove those that it no longer names.

        Workers do this when they start. Next slots and pauses of schedules that stay are kept.
        """
        self.schedules.write_to(self.storage)

    def get_schedules(self) -> list[ScheduleInfo]:
        """Every schedule in the storage, the next one first; those that the code names are in `app.schedules`."""
        return self.storage.schedules()

    def pause_schedule(self, name: str, *, by: str | None = None) -> bool:
        """Let it make no jobs until `resume_schedule`. False: it was paused already."""
        find_schedule(self.storage, name)
        return self.storage.pause_schedule(name, True, by=by)

    def resume_schedule(self, name: str, *, by: str | None = None) -> bool:
        """Undo `pause_schedule`; the slots in between are left out. False: it was not paused."""
        find_schedule(self.storage, name)
        return self.storage.pause_schedule(name, False, by=by)

    def run_schedule_now(self, name: str, *, by: str | None = None) -> JobHandle[Any]:
        """Enqueue the schedule's job here and now, also if it is paused; its slots stay as they are."""
        job = enqueue_job(self, new_job_of(find_schedule(self.storage, name), by))
        self.storage.record_operator_event(name, Kind.RUN_NOW, job=job.id, by=by)
        return job

    def skip_schedule(self, name: str, *, by: str | None = None) -> datetime:
        """Leave out its next slot, and answer which one that is. Asking again changes nothing."""
        return skip_next(self.storage, name, by)

    def remove_schedule(self, name: str, *, by: str | None = None) -> bool:
        """Forget a schedule; the jobs that it made stay, and one that the code names comes back with the next worker.
        False: unknown."""
        return self.storage.remove_schedule(name, by=by)

    async def aput_schedules(self) -> None:
        """`put_schedules`, for coroutines."""
        await self._courier.call(self.put_schedules)

    async def aget_schedules(self) -> list[ScheduleInfo]:
        """`get_schedules`, for coroutines."""
        return await self._courier.call(self.get_schedules)

    async def aremove_schedule(self, name: str, *, by: str | None = None) -> bool:
        """`remove_schedule`, for coroutines."""
        return await self._courier.call(self.remove_schedule, name, by=by)

    async def apause_schedule(self, name: str, *, by: str | None = None) -> bool:
        """`pause_schedule`, for coroutines."""
        return await self._courier.call(self.pause_schedule, name, by=by)

    async def aresume_schedule(self, name: str, *, by: str | None = None) -> bool:
        """`resume_schedule`, for coroutines."""
        return await self._courier.call(self.resume_schedule, name, by=by)

    async def arun_schedule_now(self, name: str, *, by: str | None = None) -> JobHandle[Any]:
        """`run_schedule_now`, for coroutines."""
        return (await self._courier.call(lambda: for_coroutine(self, [self.run_schedule_now(name, by=by)])))[0]

    async def askip_schedule(self, name: str, *, by: str | None = None) -> datetime:
        """`skip_schedule`, for coroutines."""
        return await self._courier.call(self.skip_schedule, name, by=by)
