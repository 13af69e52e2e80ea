"""The app: the object through which a program registers tasks, enqueues and finds jobs, and operates queues.

The async name of a method is its name with an `a` in front. Methods that do not use the storage have none.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar, Unpack, overload

from msgspec.structs import replace

from packhorse.client.announcements import announcements
from packhorse.client.app_state import AppState
from packhorse.client.async_bridge import AsyncBridge, async_twin
from packhorse.client.hooks import EnqueueMiddleware, Hooks, check_callable
from packhorse.client.job import JobHandle, aenqueue_job, check_same_call, enqueue_job, for_coroutine, handle_of
from packhorse.client.job_builder import (
    Arguments,
    JobKeywords,
    JobTemplate,
    NewCall,
    ScheduleKeywords,
    TaskKeywords,
    UntimedKeywords,
    refuse_connection,
)
from packhorse.client.pool import Pool
from packhorse.client.schedule import (
    Missed,
    Overlap,
    Schedules,
    ScheduleSpec,
    find_schedule,
    new_job_of,
    skip_next,
)
from packhorse.client.subscriber import Client
from packhorse.client.task import CoroutineTask, PlainTask, ScheduleDecorator, Task, TaskDecorator, task_handle
from packhorse.core import clock
from packhorse.core.clock import Duration, microseconds
from packhorse.core.context import JobContext
from packhorse.core.errors import BadArguments, BadValue, JobNotFound, TaskNotFound, did_you_mean
from packhorse.core.event import Event, Kind, known_kind
from packhorse.core.job import EffectiveJob, Job, NewJob
from packhorse.core.settings import Settings
from packhorse.core.task import Registry, TaskOptions, check_name
from packhorse.monitor.event_objects import with_objects
from packhorse.monitor.filters import SLOWEST_OF, JobFilter, parse_filter, slowest
from packhorse.storage import BATCH, Storage
from packhorse.storage.after_commit import when_committed
from packhorse.storage.records import (
    EventFilter,
    FailureGroup,
    Filter,
    Health,
    Page,
    QueueInfo,
    ScheduleInfo,
    TaskInfo,
    WorkerInfo,
)

P = ParamSpec("P")
R = TypeVar("R")
Function = TypeVar("Function", bound=Callable[..., Any])

_PAGE = 100
_UNLIMITED = 1 << 62


class Packhorse:
    """Tasks, and the storage that holds their jobs.

    >>> app = Packhorse("sqlite:///jobs.db")

    Without a `url`, `PACKHORSE_URL`, pyproject.toml or ./packhorse.db says where the jobs are; a `Storage` object may
    take its place. Further keywords are settings. With `accept_unknown`, jobs may be enqueued under names that are not
    registered here; an app without tasks always allows that.
    """

    def __init__(
        self,
        url: str | Storage | None = None,
        *,
        storage: Storage | None = None,
        accept_unknown: bool = False,
        **settings: Any,
    ) -> None:
        self._state = AppState(url, storage, settings)
        self.settings: Settings = self._state.settings
        self.registry: Registry = self._state.registry
        self.hooks: Hooks = self._state.hooks
        self.schedules = Schedules(self.settings.app or _name_of_module(sys._getframe(1).f_globals))
        self._accept_unknown = accept_unknown
        self._templates: dict[str, JobTemplate] = {}
        has_object = self._state.has_storage_object
        self._address = type(self.storage).__name__ if has_object else self.settings.shown("url")

    def __repr__(self) -> str:
        return f"<Packhorse {self._address}>"

    @property
    def storage(self) -> Storage:
        """The storage of the jobs; opened on first use."""
        return self._state.storage

    def use(self, storage: Storage) -> None:
        """Keep the jobs in this storage from now on; for a worker, pass `--url` instead."""
        self._state.use(storage)

    def close(self) -> None:
        """Close the storage's files and connections, and the app's clients and pools. The app can be used again."""
        self._state.close()

    async def aclose(self) -> None:
        """`close`, for coroutines."""
        await self._bridge.call(self.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.aclose()

    @property
    def _bridge(self) -> AsyncBridge:
        return self._state.bridge

    # --- tasks ----------------------------------------------------------------------------------------------------

    @overload  # a function whose first parameter is the running job, which callers do not pass
    def task(  # type: ignore[overload-overlap]
        self, function: Callable[Concatenate[JobContext, P], Coroutine[Any, Any, R]], /
    ) -> CoroutineTask[P, R]: ...

    @overload
    def task(self, function: Callable[Concatenate[JobContext, P], R], /) -> PlainTask[P, R]: ...

    @overload  # a coroutine function matches this one and the next; this one is right
    def task(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> CoroutineTask[P, R]: ...  # type: ignore[overload-overlap]

    @overload
    def task(self, function: Callable[P, R], /) -> PlainTask[P, R]: ...

    @overload
    def task(self, *, name: str | None = None, **options: Unpack[TaskKeywords]) -> TaskDecorator: ...

    def task(self, function: Any = None, *, name: str | None = None, **options: Any) -> Any:
        """Make a task of a function: `@app.task`, or `@app.task(retries=4, timeout="30s")`.

        The name defaults to the function's own. Raises TaskExists if another function has it, and BadValue for a wrong
        option.
        """
        parsed = self._state.defaults.with_(**options)
        if function is None:
            return lambda function: self._add_task(function, name, parsed)
        return self._add_task(function, name, parsed)

    def register(self, name: str, target: Any, **options: Unpack[TaskKeywords]) -> Self:
        """Register a function, or a `Worker` object, under a name; return the app, for chaining.

        >>> app.register("fibonacci", Fibonacci()).register("reverse", Reverse(), weight=5)
        """
        self._add_task(target, name, self._state.defaults.with_(**options))
        return self

    def _add_task(self, target: Any, name: str | None, options: TaskOptions) -> Task[..., Any]:
        registered = self.registry.add(target, name, options)
        template = JobTemplate.of_task(registered, self.settings.payload_limit)
        self._templates[registered.name] = template
        return task_handle(self._state, registered, template)

    def announcements(self) -> list[TaskInfo]:
        """What a worker of this app announces to the storage: its tasks, each with its queue and its options."""
        return announcements(self.registry)

    def options_of(self, task: str) -> TaskOptions:
        """The options of a task: as registered here, as announced by workers, or the defaults."""
        return self._state.options_of(task)

    def effective_job(self, job: Job) -> EffectiveJob:
        """The job as it will run: options that it leaves to its task come from the registered or announced task."""
        return self._state.effective_job(job)

    # --- enqueueing by name ---------------------------------------------------------------------------------------

    def enqueue(
        self, name: str, args: Arguments = None, *, known: bool = True, **options: Unpack[JobKeywords]
    ) -> JobHandle[Any]:
        """Enqueue a job of the task with this name; `args` is a dict of its arguments, or a list in order.

        Options are those of `task.using`. Raises TaskNotFound if the app has tasks and none of this name, and
        BadArguments if the arguments do not fit the function, or what workers announced of it. With `known=False`,
        name and arguments are stored unchecked, for workers elsewhere.

        >>> app.enqueue("send_notice", {"user_id": 1}, priority=5)
        """
        return self._enqueue(name, args, known, options)

    def enqueue_in(
        self,
        delay: Duration,
        name: str,
        args: Arguments = None,
        *,
        known: bool = True,
        **options: Unpack[UntimedKeywords],
    ) -> JobHandle[Any]:
        """`enqueue`, to run after `delay`: seconds, a timedelta, or text such as "10m"."""
        return self._enqueue(name, args, known, {**options, "delay": delay})

    def enqueue_at(
        self, at: datetime, name: str, args: Arguments = None, *, known: bool = True, **options: Unpack[UntimedKeywords]
    ) -> JobHandle[Any]:
        """`enqueue`, to run at a moment, a datetime with a time zone; if it has passed, now."""
        return self._enqueue(name, args, known, {**options, "at": at})

    def enqueue_unique(
        self, name: str, args: Arguments = None, *, known: bool = True, **options: Unpack[JobKeywords]
    ) -> JobHandle[Any]:
        """`enqueue`, unless a job with the same arguments waits: then return that one, with `is_new` False."""
        return self._enqueue(name, args, known, options, unique=True)

    async def aenqueue(
        self, name: str, args: Arguments = None, *, known: bool = True, **options: Unpack[JobKeywords]
    ) -> JobHandle[Any]:
        """`enqueue`, for coroutines; concurrent calls share one write."""
        return await self._aenqueue(name, args, known, options)

    async def aenqueue_in(
        self,
        delay: Duration,
        name: str,
        args: Arguments = None,
        *,
        known: bool = True,
        **options: Unpack[UntimedKeywords],
    ) -> JobHandle[Any]:
        """`enqueue_in`, for coroutines."""
        return await self._aenqueue(name, args, known, {**options, "delay": delay})

    async def aenqueue_at(
        self, at: datetime, name: str, args: Arguments = None, *, known: bool = True, **options: Unpack[UntimedKeywords]
    ) -> JobHandle[Any]:
        """`enqueue_at`, for coroutines."""
        return await self._aenqueue(name, args, known, {**options, "at": at})

    async def aenqueue_unique(
        self, name: str, args: Arguments = None, *, known: bool = True, **options: Unpack[JobKeywords]
    ) -> JobHandle[Any]:
        """`enqueue_unique`, for coroutines."""
        return await self._aenqueue(name, args, known, options, unique=True)

    def call(
        self, name: str, args: Arguments = None, *, known: bool = True, **options: Unpack[JobKeywords]
    ) -> NewCall[Any]:
        """A call by name, for `enqueue_many`."""
        refuse_connection(options, "pass it to enqueue_many(calls, connection=…)")
        return NewCall(self._new_job(name, args, known, options), "id" in options)

    def _enqueue(
        self, name: str, args: Arguments, known: bool, options: Mapping[str, Any], *, unique: bool = False
    ) -> JobHandle[Any]:
        new = self._new_job(name, args, known, options, unique=unique)
        return enqueue_job(self._state, new, options.get("connection"), has_own_id="id" in options)

    async def _aenqueue(
        self, name: str, args: Arguments, known: bool, options: Mapping[str, Any], *, unique: bool = False
    ) -> JobHandle[Any]:
        refuse_connection(options, "in a coroutine: await session.run_sync(lambda s: app.enqueue(…, connection=s))")
        new = self._new_job_without_reading(name, args, known, options, unique)
        if new is None:
            new = await self._bridge.call(self._new_job, name, args, known, options, unique=unique)
        return await aenqueue_job(self._state, new, has_own_id="id" in options)

    def _new_job(
        self, name: str, args: Arguments, known: bool, options: Mapping[str, Any], *, unique: bool = False
    ) -> NewJob:
        connection = options.get("connection")
        if connection is not None and not self.storage.can_be_read_beside(connection):
            return self._fill(name, args, known, options, unique, may_read=False)
        return self._state.with_fresh_announcements(name, lambda: self._fill(name, args, known, options, unique))

    def _new_job_without_reading(
        self, name: str, args: Arguments, known: bool, options: Mapping[str, Any], unique: bool
    ) -> NewJob | None:
        """The job, if neither its task nor its arguments make it necessary to read the storage."""
        is_registered = not isinstance(name, str) or name in self._templates
        if not is_registered and not self._state.announced.is_fresh(name):
            return None
        try:
            return self._fill(name, args, known, options, unique)
        except BadArguments:
            if is_registered:
                raise
            return None  # what was announced may be out of date

    def _fill(
        self,
        name: str,
        args: Arguments,
        known: bool,
        options: Mapping[str, Any],
        unique: bool,
        *,
        may_read: bool = True,
    ) -> NewJob:
        template = self._templates.get(name) if isinstance(name, str) else None
        if template is None:
            template = self._template_by_name(check_name(name, "task name"), known, may_read)
        if options:
            template = template.changed(options)
        return (template.made_unique() if unique else template).fill_in(args)

    def _template_by_name(self, name: str, known: bool, may_read: bool) -> JobTemplate:
        """The template of a task whose function is not registered here."""
        if known and self._templates and not self._accept_unknown:
            try:
                self.registry.get(name)
            except TaskNotFound as error:
                hints = filter(None, [error.hint, "known=False enqueues it for workers elsewhere"])
                raise TaskNotFound(error.what, hint="; ".join(hints)) from None
        limit = self.settings.payload_limit
        if may_read and (task := self._state.announced.get(name)):
            signature = task.signature if known else None
            return JobTemplate.of_announced(name, task.options, limit, task.defaults, signature)
        return JobTemplate.of_name(name, self._state.defaults, limit)

    # --- enqueueing many ------------------------------------------------------------------------------------------

    def enqueue_many(self, calls: Iterable[NewCall[R]], *, connection: Any = None) -> list[JobHandle[R]]:
        """Enqueue many calls, a thousand in one write; return the handles in the order of the calls.

        If it raises, some of the jobs may be stored; passing the same calls again adds only the others. With a
        `connection` of your own the jobs are part of your transaction, as in `task.using`.

        >>> app.enqueue_many([send_notice.call(user_id=i) for i in range(1000)])
        """
        calls = _checked_calls(calls)
        jobs = [call.job for call in calls]
        own_ids = {call.job.id for call in calls if call.has_own_id}
        if self.hooks.before_enqueue is not None:
            jobs = list(map(self.hooks.before_enqueue, jobs))
        if own_ids and connection is None:
            wanted = {new.id: new for new in jobs if new.id in own_ids}
            for stored in self.storage.get_many(list(wanted)):
                check_same_call(stored, wanted[stored.id])
        stored_jobs = [
            answer
            for start in range(0, len(jobs), BATCH)
            for answer in self._state.enqueue(jobs[start : start + BATCH], connection)
        ]
        return [
            # The usual answer of `handle_of`, without a call for each job.
            JobHandle(self._state, new.id, True, new)
            if answer.job_id == new.id and not own_ids
            else handle_of(self._state, new, answer, has_own_id=new.id in own_ids and connection is None)
            for new, answer in zip(jobs, stored_jobs, strict=True)
        ]

    async def aenqueue_many(self, calls: Iterable[NewCall[R]], *, connection: Any = None) -> list[JobHandle[R]]:
        """`enqueue_many`, for coroutines."""
        refuse_connection({"connection": connection}, "in a coroutine: await session.run_sync(…)")
        calls = _checked_calls(calls)
        return await self._bridge.call(lambda: for_coroutine(self._state, self.enqueue_many(calls)))

    def enqueue_after_commit(self, transaction: Any, calls: Iterable[NewCall[R]]) -> list[JobHandle[R]]:
        """`enqueue_many` once a transaction of yours commits, and not at all if it is rolled back; for jobs in another
        storage than your data. `transaction` is a SQLAlchemy Session or Django's `connection`.

        The jobs are lost if this process dies between the commit and the enqueueing; `task.using(connection=…)` has no
        such gap. It has no async form because it does not use the storage itself: the thread that commits does.

        >>> app.enqueue_after_commit(session, [send_notice.call(user_id=1)])
        """
        calls = _checked_calls(calls)
        when_committed(transaction, lambda: self.enqueue_many(calls))
        return [JobHandle(self._state, call.job.id, True, call.job) for call in calls]

    # --- finding jobs ---------------------------------------------------------------------------------------------

    def get(self, id: str) -> JobHandle[Any]:
        """The job with this id; raises JobNotFound."""
        record = self.storage.get(_checked_id(id))
        if record is None:
            raise JobNotFound(id)
        return JobHandle.of(self._state, record)

    def get_or_none(self, id: str) -> JobHandle[Any] | None:
        """The job with this id, or None."""
        record = self.storage.get(_checked_id(id))
        return None if record is None else JobHandle.of(self._state, record)

    def jobs(self, *, limit: int | None = None, **where: Unpack[JobFilter]) -> Iterator[JobHandle[Any]]:
        """The matching jobs, read a page at a time: waiting ones by rank and age, finished ones by the latest, others
        by the newest. `state` is one word or several: a state's own name, "waiting", "failed", "halted" …

        >>> for job in app.jobs(state="dead", queue="mail", limit=20): job.retry()
        >>> app.jobs(args={"user_id": 42}, attempts=">1", took=">30s", since="2h")
        """
        return self._pages(parse_filter(where, self.storage.now), _checked_limit(limit))

    def count(self, **where: Unpack[JobFilter]) -> int:
        """The number of matching jobs; quick by state, queue and task, counted one by one otherwise."""
        wanted = parse_filter(where, self.storage.now)
        counted = self.storage.count(wanted, cap=_UNLIMITED)
        return counted.number if counted.exact else sum(1 for _ in self._pages(wanted, _UNLIMITED))

    acount = async_twin(count)

    async def aget(self, id: str) -> JobHandle[Any]:
        """`get`, for coroutines; concurrent calls share one read."""
        handle = await self.aget_or_none(id)
        if handle is None:
            raise JobNotFound(id)
        return handle

    async def aget_or_none(self, id: str) -> JobHandle[Any] | None:
        """`get_or_none`, for coroutines; concurrent calls share one read."""
        record = await self._bridge.share(self._state.read_jobs, _checked_id(id))
        return None if record is None else JobHandle.of(self._state, record, for_coroutine=True)

    def ajobs(self, *, limit: int | None = None, **where: Unpack[JobFilter]) -> AsyncIterator[JobHandle[Any]]:
        """`jobs`, for coroutines: `async for job in app.ajobs(…)`."""
        parse_filter(where, clock.now)  # raises now for a wrong filter; relative times need the storage's clock
        return self._apages(where, _checked_limit(limit))

    def _pages(self, where: Filter, left: int) -> Iterator[JobHandle[Any]]:
        if where.order == "took":
            latest = [job.record for job in self._pages(replace(where, order=None), SLOWEST_OF)]
            yield from (JobHandle.of(self._state, job) for job in slowest(latest, self.storage.now())[:left])
            return
        cursor = None
        while left > 0:
            page = self.storage.find(where, cursor=cursor, limit=min(left, _PAGE))
            yield from (JobHandle.of(self._state, job) for job in page.jobs)
            left, cursor = left - len(page.jobs), page.next
            if cursor is None:
                return

    async def _apages(self, words: JobFilter, left: int) -> AsyncIterator[JobHandle[Any]]:
        where = await self._bridge.call(lambda: parse_filter(words, self.storage.now))
        if where.order == "took":
            for handle in await self._bridge.call(lambda: list(self._pages(where, left))):
                yield JobHandle.of(self._state, handle.record, for_coroutine=True)
            return
        cursor = None
        while left > 0:
            page = await self._bridge.call(self._page_with_tasks, where, cursor, min(left, _PAGE))
            for job in page.jobs:
                yield JobHandle.of(self._state, job, for_coroutine=True)
            left, cursor = left - len(page.jobs), page.next
            if cursor is None:
                return

    def _page_with_tasks(self, where: Filter, cursor: str | None, limit: int) -> Page:
        page = self.storage.find(where, cursor=cursor, limit=limit)
        self._state.learn_tasks(page.jobs)
        return page

    # --- queues, tasks, workers, events ---------------------------------------------------------------------------

    def queues(self) -> list[QueueInfo]:
        """Every queue, with its number of jobs by state and whether it is paused."""
        return self.storage.queues()

    def tasks(self) -> list[TaskInfo]:
        """Every task that was enqueued or that a worker announced; those registered here are in `app.registry`."""
        return self.storage.tasks()

    def workers(self) -> list[WorkerInfo]:
        """Every worker and foreman."""
        return self.storage.workers()

    def failures(self, *, limit: int = 50) -> list[FailureGroup]:
        """Failures grouped by cause, the latest first."""
        return self.storage.failures(limit=limit)

    def health(self) -> Health:
        """The health of the storage; it is well if `problems` is empty."""
        return self.storage.health()

    def events(
        self,
        *,
        job: str | None = None,
        kind: str | None = None,
        queue: str | None = None,
        worker: str | None = None,
        after: int | None = None,
        limit: int = 100,
        newest_first: bool = False,
        object: bool = False,
    ) -> list[Event]:
        """Events by rising id, or falling with `newest_first`; `after` continues behind the event with that id. With
        `object`, each event carries the job or the worker as it was after it, by the names of its fields."""
        where = EventFilter(job_id=job, kind=_checked_kind(kind), queue=queue, owner=worker, after=after)
        found = self.storage.events(where, limit=limit, newest_first=newest_first)
        return with_objects(self.storage, found) if object else found

    def pause(
        self, queue: str, *, by: str | None = None, why: str | None = None, duration: Duration | None = None
    ) -> bool:
        """Start no job of this queue, except forced ones, until `resume` or until the duration ("2h", 7200) is over. A
        pause without a duration replaces one with. Return False if it was paused already and stays so.

        The queue may be unknown: its first job then finds it paused.
        """
        span = None if duration is None else _pause_span(duration)
        return self.storage.pause(check_name(queue, "queue name"), by=by, why=why, duration=span)

    def resume(self, queue: str, *, by: str | None = None) -> bool:
        """Undo `pause`. Return False if the queue was not paused."""
        return self.storage.resume(check_name(queue, "queue name"), by=by)

    aqueues = async_twin(queues)
    atasks = async_twin(tasks)
    aworkers = async_twin(workers)
    afailures = async_twin(failures)
    ahealth = async_twin(health)
    aevents = async_twin(events)
    apause = async_twin(pause)
    aresume = async_twin(resume)

    # --- schedules ------------------------------------------------------------------------------------------------

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
        """Run a task by the clock: five fields of cron, six with seconds first, `@daily`, or `@every 90s`.

        It decorates a task, or a function, which it makes a task. The name defaults to the task's. `missed` says what
        happens to slots that passed while nothing ran: run the latest ("one"), none, or each, a hundred at most
        ("all"). With `overlap="skip"` a slot is skipped while the job of the one before is unfinished. Options are
        those of `task.using`. A slot is enqueued once, however many foremen there are.

        >>> @app.schedule("0 7 * * MON-FRI", tz="Europe/Ljubljana", args={"kind": "daily"})
        ... def report(kind: str) -> None: ...
        """
        spec = ScheduleSpec(cron=cron, tz=tz, args=args, name=name, missed=missed, overlap=overlap, options=options)

        def decorate(target: Any) -> Task[..., Any]:
            task = target if isinstance(target, Task) else self._add_task(target, None, self._state.defaults)
            if task._app is not self._state:
                raise BadValue(f"the task {task.name} belongs to another app", hint="schedule it there")
            self.schedules.add(spec, task._template, task._registered.function)
            return task

        return decorate  # type: ignore[return-value]  # returns the task itself, or the kind that fits the function

    def put_schedules(self) -> None:
        """Write the schedules in the code to the storage, and remove those that the code no longer has.

        Workers do this when they start. Schedules that stay keep their next slots and pauses.
        """
        self.schedules.write_to(self.storage)

    def get_schedules(self) -> list[ScheduleInfo]:
        """Every schedule in the storage, the next one first; those in the code are in `app.schedules`."""
        return self.storage.schedules()

    def pause_schedule(self, name: str, *, by: str | None = None) -> bool:
        """Enqueue no jobs of the schedule until `resume_schedule`. Return False if it was paused already."""
        find_schedule(self.storage, name)
        return self.storage.pause_schedule(name, True, by=by)

    def resume_schedule(self, name: str, *, by: str | None = None) -> bool:
        """Undo `pause_schedule`; the slots in between are skipped. Return False if it was not paused."""
        find_schedule(self.storage, name)
        return self.storage.pause_schedule(name, False, by=by)

    def run_schedule_now(self, name: str, *, by: str | None = None) -> JobHandle[Any]:
        """Enqueue the schedule's job now, even if it is paused; its slots stay as they are."""
        job = enqueue_job(self._state, new_job_of(find_schedule(self.storage, name), by))
        self.storage.record_operator_event(name, Kind.RUN_NOW, job=job.id, by=by)
        return job

    async def arun_schedule_now(self, name: str, *, by: str | None = None) -> JobHandle[Any]:
        """`run_schedule_now`, for coroutines."""
        return (await self._bridge.call(lambda: for_coroutine(self._state, [self.run_schedule_now(name, by=by)])))[0]

    def skip_schedule(self, name: str, *, by: str | None = None) -> datetime:
        """Skip the schedule's next slot, and return that slot. Calling it again changes nothing."""
        return skip_next(self.storage, name, by)

    def remove_schedule(self, name: str, *, by: str | None = None) -> bool:
        """Remove a schedule; its jobs stay. One that the code has comes back with the next worker. Return False if it
        is unknown."""
        return self.storage.remove_schedule(name, by=by)

    aput_schedules = async_twin(put_schedules)
    aget_schedules = async_twin(get_schedules)
    apause_schedule = async_twin(pause_schedule)
    aresume_schedule = async_twin(resume_schedule)
    askip_schedule = async_twin(skip_schedule)
    aremove_schedule = async_twin(remove_schedule)

    # --- hooks ----------------------------------------------------------------------------------------------------

    @property
    def middlewares(self) -> list[Callable[..., Any]]:
        """The middleware around attempts, the outermost first."""
        return self.hooks.middleware

    def middleware(self, function: Function) -> Function:
        """Wrap a function around every attempt in a worker; several nest in the order in which they are added.

        It gets the running job and `call`, which runs the rest and returns the task's result. It may be `async def`.

        >>> @app.middleware
        ... def with_database(job, call):
        ...     with connect() as job.local.db:
        ...         return call()
        """
        self.add_middleware(function)
        return function

    def add_middleware(self, function: Callable[..., Any]) -> Self:
        """`middleware`, for chains: `app.add_middleware(a).add_middleware(b)`."""
        self.hooks.middleware.append(check_callable(function, "middleware"))
        return self

    def enqueue_middleware(self, function: EnqueueMiddleware) -> EnqueueMiddleware:
        """Wrap a plain function around every enqueueing here; the job that it passes on is stored, and raising rejects
        the job.

        It gets the `NewJob` and `call`, which runs the rest. All of it runs before the job is written. Jobs of
        schedules come from a foreman and bypass it.

        >>> @app.enqueue_middleware
        ... def for_tenant(new, call):
        ...     return call(msgspec.structs.replace(new, queue=f"{tenant()}.{new.queue}"))
        """
        self.hooks.add_around_enqueue(function)
        return function

    def on_success(self, function: Function) -> Function:
        """Call a function in the worker after a job of any task has completed; it gets the job.

        The outcome is stored by then, and nothing that the function does can change it. An error in it is written to
        the job's log, and the call is repeated three times, after 0.1, 1 and 10 seconds. It may be `async def`, and
        should be quick: other calls wait. For a call that must survive the death of the worker, use a `client`.
        """
        self.hooks.on_success.append(check_callable(function, "a result handler"))
        return function

    def on_failure(self, function: Function) -> Function:
        """`on_success`, for jobs that ended dead or aborted; a job that will be retried has not ended."""
        self.hooks.on_failure.append(check_callable(function, "a result handler"))
        return function

    @property
    def has_result_handlers(self) -> bool:
        """Is any result handler registered?"""
        return self.hooks.has_handlers or any(task.on_result is not None for task in self.registry)

    # --- running jobs, receiving outcomes -------------------------------------------------------------------------

    def run(
        self, *, min: int | None = None, max: int | None = None, concurrency: int | None = None, burst: bool = False
    ) -> None:
        """Run jobs until stopped, as `packhorse work` does; for a script that ends with this call.

        It starts from `min` to `max` workers with `concurrency` slots each; with `burst`, it returns when nothing is
        left to run. Ctrl-C and other signals work as in `packhorse work`. It ends the program unless all went well.
        Workers import the script too: there, and wherever the script is only imported, the call does nothing.

        >>> app.run(concurrency=20)
        """
        from packhorse.client import run  # few programs need it

        if run.is_to_run(sys._getframe(1)):
            run.check_address(self.settings, self._state.has_storage_object)
            options = {"min": min, "max": max, "concurrency": concurrency, "burst": burst}
            run.run_work_command(run.target_of(self), self.settings, options)

    def pool(self, concurrency: int = 10, *, queues: Sequence[str] | None = None) -> Pool:
        """Workers inside this program, on `concurrency` threads: `start()`, `stop()`, and `drain()` until nothing is
        left. `queues` are names or patterns; without them, the pool serves all that hold jobs of this app's tasks.

        It suits small programs and tests, and people who know gocraft/work. `packhorse work` and `app.run()` start
        processes, which survive crashing jobs.

        >>> with app.pool(concurrency=15) as pool: pool.drain()
        """
        return Pool(self, self._state, concurrency, queues)

    def client(self, name: str | None = None) -> Client:
        """A client that subscribes to jobs and receives the outcome of each, even of those that ended while it was
        away. With a name it can come back; without one it is removed when it is closed.

        >>> with app.client("billing") as billing:
        ...     send_notice.using(subscriber=billing.id).enqueue(user_id=1)
        ...     billing.handle(lambda job: print(job.state))
        """
        client = Client(self._state, name)
        self._state.closables.append(client)
        return client

    aclient = async_twin(client)


def _name_of_module(module: Mapping[str, Any]) -> str:
    """The name of the module that makes an app; it marks whose schedules are whose."""
    name = str(module.get("__name__", ""))
    # Workers import a program that is run as a script under the name of its file.
    return Path(str(module.get("__file__", name))).stem if name == "__main__" else name


# --- checks of what callers pass --------------------------------------------------------------------------------------


def _checked_calls(calls: Iterable[NewCall[R]]) -> list[NewCall[R]]:
    if not isinstance(calls, Iterable):
        raise BadValue(f"enqueue_many takes calls, not {calls!r}", hint="make them with task.call(…)")
    listed = list(calls)
    for call in listed:
        if not isinstance(call, NewCall):
            raise BadValue(f"enqueue_many takes calls, not {call!r}", hint="make them with task.call(…)")
    return listed


def _pause_span(duration: Duration) -> int:
    span = microseconds(duration, "duration")
    if span == 0:
        raise BadValue("a pause must last longer than 0 s", hint='leave the duration out, or pass e.g. "2h"')
    return span


def _checked_limit(limit: int | None) -> int:
    if limit is None:
        return _UNLIMITED
    if isinstance(limit, bool) or not isinstance(limit, int) or limit < 0:
        raise BadValue(f"limit must be a whole number from 0 up, not {limit!r}")
    return limit


def _checked_kind(kind: str | None) -> Kind | None:
    try:
        return None if kind is None else known_kind(str(kind))
    except ValueError:
        near = did_you_mean(str(kind), [each.value for each in Kind])
        raise BadValue(f"there is no kind of event {kind!r}{near}") from None


def _checked_id(id: Any) -> str:
    """Reject what is not an id before the storage sees it: each storage would raise another error."""
    if not isinstance(id, str):
        raise BadValue(f"the id of a job must be text, not {id!r}", hint="pass job.id to app.get")
    return id
