"""The app: the object through which a program registers tasks, enqueues jobs, finds them and steers queues.

Nothing is opened until it is used, so importing a module that makes an app touches no disk and no network. All
enqueueing, of whatever form, goes through `_submit`. The async name of a method is its name with an `a` in front.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, ParamSpec, Self, TypeVar, Unpack, overload

from packhorse.announcement import Announced, announcements
from packhorse.calls import (
    Arguments,
    JobKeywords,
    JobTemplate,
    NewCall,
    ScheduleKeywords,
    TaskKeywords,
    UntimedKeywords,
    refuse_connection,
)
from packhorse.clock import Duration
from packhorse.codec import Signature, nearest
from packhorse.commits import when_committed
from packhorse.courier import Courier
from packhorse.errors import BadValue, JobNotFound, TaskNotFound
from packhorse.event import Event, Kind
from packhorse.filters import JobFilter, parse_filter
from packhorse.hooks import EnqueueMiddleware, Hooks, check_callable
from packhorse.job import Job, NewJob
from packhorse.job_handle import JobHandle
from packhorse.schedule import (
    Missed,
    Overlap,
    Plan,
    ScheduleDecorator,
    Schedules,
    find_schedule,
    new_job_of,
    skip_next,
)
from packhorse.settings import load_settings
from packhorse.storage import BATCH, Storage, open_storage
from packhorse.storage.records import (
    Enqueued,
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
from packhorse.subscriber import Client
from packhorse.task import Registry, TaskOptions, check_name
from packhorse.task_handle import CoroutineTask, PlainTask, Task, TaskDecorator, task_handle

P = ParamSpec("P")
R = TypeVar("R")
Function = TypeVar("Function", bound=Callable[..., Any])

_PAGE = 100
_ANY_NUMBER = 1 << 62


class Packhorse:
    """Tasks, and the storage that their jobs live in.

    >>> app = Packhorse("sqlite:///jobs.db")

    `url` says where; without it `PACKHORSE_URL`, pyproject.toml or ./packhorse.db does. A `Storage` object may stand
    in its place. Further keywords are settings. With `accept_unknown` jobs may be enqueued under names that are not
    registered here; an app without any tasks accepts them anyway.
    """

    def __init__(
        self,
        url: str | Storage | None = None,
        *,
        storage: Storage | None = None,
        accept_unknown: bool = False,
        **settings: Any,
    ) -> None:
        if url is not None and storage is not None:
            raise BadValue("give a url or a storage, not both")
        if isinstance(url, Storage):
            url, storage = None, url
        self.settings = load_settings({"url": url, **settings})
        self.registry = Registry()
        self.hooks = Hooks()
        self.schedules = Schedules(self.settings.app or _maker(sys._getframe(1).f_globals))
        self._accept_unknown = accept_unknown
        self._defaults = TaskOptions(max_attempts=self.settings.max_attempts, max_halts=self.settings.max_halts)
        self._templates: dict[str, JobTemplate] = {}
        self._storage = storage
        self._is_handed = storage is not None  # as an object, which no other process can be told of
        self._address = self.settings.shown("url") if storage is None else type(storage).__name__
        self._opening = threading.Lock()
        self._courier = Courier(BATCH)
        self._announced = Announced(lambda: self.storage.tasks(), self._defaults)
        self._clients: list[Client] = []

    def __repr__(self) -> str:
        return f"<Packhorse {self._address}>"

    @property
    def storage(self) -> Storage:
        """Where the jobs live; opened when first asked for."""
        if self._storage is None:
            with self._opening:
                if self._storage is None:
                    self._storage = open_storage(self.settings.url)
        return self._storage

    def use(self, storage: Storage) -> None:
        """Keep the jobs in this storage from now on; a worker is told so with `--url`."""
        self._storage = storage
        self._is_handed = True

    def close(self) -> None:
        """Let go of the storage's files and connections, and close its clients. The app may be used again."""
        while self._clients:
            self._clients.pop().close()
        self._courier.close()
        if self._storage is not None:
            self._storage.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def run(
        self, *, min: int | None = None, max: int | None = None, concurrency: int | None = None, burst: bool = False
    ) -> None:
        """Run jobs until told to stop: what `packhorse work` does, for the script that ends with this call.

        From `min` to `max` workers with `concurrency` slots each; with `burst`, until nothing is left to run. Ctrl-C
        and other signals mean what they mean to `packhorse work`. Ends the program unless all went well. Workers
        import the script too: there, and wherever it is only imported, the call does nothing.

        >>> app.run(concurrency=20)
        """
        from packhorse import running  # which few programs need

        if running.is_to_run(sys._getframe(1)):
            running.check_address(self.settings, self._is_handed)
            options = {"min": min, "max": max, "concurrency": concurrency, "burst": burst}
            running.run_crew(running.target_of(self), self.settings, options)

    # --- tasks ----------------------------------------------------------------------------------------------------

    @overload  # a coroutine function fits both, and the first is meant
    def task(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> CoroutineTask[P, R]: ...  # type: ignore[overload-overlap]

    @overload
    def task(self, function: Callable[P, R], /) -> PlainTask[P, R]: ...

    @overload
    def task(self, *, name: str | None = None, **options: Unpack[TaskKeywords]) -> TaskDecorator: ...

    def task(self, function: Any = None, *, name: str | None = None, **options: Any) -> Any:
        """Make a task of a function: `@app.task`, or `@app.task(retries=4, timeout="30s")`.

        The name is the function's own unless given. Raises TaskExists if another function has it, and BadValue for
        an option that is wrong.
        """
        parsed = self._defaults.with_(**options)
        if function is None:
            return lambda function: self._add(function, name, parsed)
        return self._add(function, name, parsed)

    def register(self, name: str, target: Any, **options: Unpack[TaskKeywords]) -> Self:
        """Register a function, or a `Worker` object, under a name; returns the app, for the next.

        >>> app.register("fibonacci", Fibonacci()).register("reverse", Reverse(), weight=5)
        """
        self._add(target, name, self._defaults.with_(**options))
        return self

    def _add(self, target: Any, name: str | None, options: TaskOptions) -> Task[..., Any]:
        registered = self.registry.add(target, name, options)
        template = JobTemplate.of_task(registered, self.settings.payload_limit)
        self._templates[registered.name] = template
        return task_handle(self, registered, template)

    def _signature_of(self, task: str) -> Signature | None:
        return self.registry.get(task).signature if task in self.registry else None

    def _template(self, name: str, known: bool) -> JobTemplate:
        template = self._templates.get(name) if isinstance(name, str) else None
        return template or self._template_of_unknown(check_name(name, "task name"), known)

    def _template_of_unknown(self, name: str, known: bool) -> JobTemplate:
        if known and self._templates and not self._accept_unknown:
            try:
                self.registry.get(name)
            except TaskNotFound as error:
                hints = filter(None, [error.hint, "known=False enqueues it for workers elsewhere"])
                raise TaskNotFound(error.what, hint="; ".join(hints)) from None
        if task := self._announced.get(name):
            return JobTemplate.of_announced(name, task.options, self.settings.payload_limit, task.defaults)
        return JobTemplate.of_name(name, self._defaults, self.settings.payload_limit)

    def announcements(self) -> list[TaskInfo]:
        """What a worker of this app announces to the storage: its tasks, each with its queue and its options."""
        return announcements(self.registry)

    # --- what is called around jobs and after them ----------------------------------------------------------------

    @property
    def middlewares(self) -> list[Callable[..., Any]]:
        """The middleware around attempts, the outermost first."""
        return self.hooks.middleware

    def middleware(self, function: Function) -> Function:
        """Wrap a function around every attempt in a worker; several nest in the order in which they were added.

        It gets the running job and `call`, which goes on inward and answers the task's result. It may be `async def`.

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
        """Wrap a plain function around every enqueueing here; what it hands on is stored, and raising refuses the job.

        It gets the `NewJob` and `call`, which goes on inward. All of it runs before the job is written. The jobs that
        a schedule makes come from a foreman and pass nothing.

        >>> @app.enqueue_middleware
        ... def for_tenant(new, call):
        ...     return call(msgspec.structs.replace(new, queue=f"{tenant()}.{new.queue}"))
        """
        self.hooks.add_around_enqueue(function)
        return function

    def on_success(self, function: Function) -> Function:
        """Have a function called in the worker after a job, of whatever task, has completed; it gets the job.

        The outcome is stored by then, and nothing that the function does can change it. An error in it is written
        into the job's log, and the call is repeated three times, after 0.1, 1 and 10 seconds. It may be `async def`,
        and should be quick: other calls wait. For a call that must not be lost when the worker dies, use a `client`.
        """
        self.hooks.on_success.append(check_callable(function, "a result handler"))
        return function

    def on_failure(self, function: Function) -> Function:
        """`on_success`, for jobs that ended dead or aborted; one that will be tried again has not ended."""
        self.hooks.on_failure.append(check_callable(function, "a result handler"))
        return function

    @property
    def has_result_handlers(self) -> bool:
        """Whether anybody wants to know how jobs end."""
        return self.hooks.has_handlers or any(task.on_result is not None for task in self.registry)

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
        return self._enqueue(new_job_of(find_schedule(self.storage, name), by))

    def skip_schedule(self, name: str) -> datetime:
        """Leave out its next slot, and answer which one that is. Asking again changes nothing."""
        return skip_next(self.storage, name)

    def remove_schedule(self, name: str, *, by: str | None = None) -> bool:
        """Forget a schedule; the jobs that it made stay, and one that the code names comes back with the next worker.
        False: unknown."""
        return self.storage.remove_schedule(name, by=by)

    async def apause_schedule(self, name: str, *, by: str | None = None) -> bool:
        """`pause_schedule`, for coroutines."""
        return await self._courier.call(self.pause_schedule, name, by=by)

    async def aresume_schedule(self, name: str, *, by: str | None = None) -> bool:
        """`resume_schedule`, for coroutines."""
        return await self._courier.call(self.resume_schedule, name, by=by)

    async def arun_schedule_now(self, name: str, *, by: str | None = None) -> JobHandle[Any]:
        """`run_schedule_now`, for coroutines."""
        return await self._courier.call(self.run_schedule_now, name, by=by)

    async def askip_schedule(self, name: str) -> datetime:
        """`skip_schedule`, for coroutines."""
        return await self._courier.call(self.skip_schedule, name)

    # --- subscribers ----------------------------------------------------------------------------------------------

    def client(self, name: str | None = None) -> Client:
        """Become a client, who can subscribe to jobs and gets the outcome of each, also of those that ended while it
        was away. Under its name it can come back; without one it goes for good when it is closed.

        >>> with app.client("billing") as billing:
        ...     send_notice.using(subscriber=billing.id).enqueue(user_id=1)
        ...     billing.handle(lambda job: print(job.state))
        """
        client = Client(self, name)
        self._clients.append(client)
        return client

    async def aclient(self, name: str | None = None) -> Client:
        """`client`, for coroutines."""
        return await self._courier.call(self.client, name)

    # --- enqueueing by name ---------------------------------------------------------------------------------------

    def enqueue(
        self, name: str, args: Arguments = None, *, known: bool = True, **options: Unpack[JobKeywords]
    ) -> JobHandle[Any]:
        """Make a job of the task that is called `name`; `args` is a dict of its arguments, or a list in order.

        Options are those of `task.using`. Raises TaskNotFound if the app has tasks and none of this name; `known`
        False takes the name as it is, because workers elsewhere know it.

        >>> app.enqueue("send_notice", {"user_id": 1}, priority=5)
        """
        return self._enqueue(self._asked(name, args, known, options), options.get("connection"))

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
        return self._enqueue(self._asked(name, args, known, {**options, "delay": delay}), options.get("connection"))

    def enqueue_at(
        self, at: datetime, name: str, args: Arguments = None, *, known: bool = True, **options: Unpack[UntimedKeywords]
    ) -> JobHandle[Any]:
        """`enqueue`, to run at a moment, a datetime with a time zone; if it is past, now."""
        return self._enqueue(self._asked(name, args, known, {**options, "at": at}), options.get("connection"))

    def enqueue_unique(
        self, name: str, args: Arguments = None, *, known: bool = True, **options: Unpack[JobKeywords]
    ) -> JobHandle[Any]:
        """`enqueue`, unless a job with the same arguments waits: then that one, with `is_new` False."""
        return self._enqueue(self._asked(name, args, known, options, unique=True), options.get("connection"))

    def enqueue_many(self, calls: Iterable[NewCall[R]], *, connection: Any = None) -> list[JobHandle[R]]:
        """Make jobs of many calls, a thousand in one write; the handles come in the order of the calls.

        If an error ends it, some of the jobs may be stored; handing the same calls in again adds only the others. With
        a `connection` of your own they are part of your transaction, as in `task.using`.

        >>> app.enqueue_many([send_notice.call(user_id=i) for i in range(1000)])
        """
        jobs = _jobs_of(calls)
        if self.hooks.before_enqueue is not None:
            jobs = list(map(self.hooks.before_enqueue, jobs))
        answers = [
            answer
            for start in range(0, len(jobs), BATCH)
            for answer in self._submit(jobs[start : start + BATCH], connection)
        ]
        return [self._handle(new, answer) for new, answer in zip(jobs, answers, strict=True)]

    def enqueue_after_commit(self, transaction: Any, calls: Iterable[NewCall[R]]) -> list[JobHandle[R]]:
        """`enqueue_many` as soon as a transaction of yours commits, and not at all if it is rolled back; for jobs that
        are in another storage than your data. `transaction` is a SQLAlchemy Session or Django's `connection`.

        The jobs are lost if this process dies just between the two; `task.using(connection=…)` has no such gap.

        >>> app.enqueue_after_commit(session, [send_notice.call(user_id=1)])
        """
        known = list(calls)
        jobs = _jobs_of(known)
        when_committed(transaction, lambda: self.enqueue_many(known))
        return [JobHandle(self, new.id, new=new, is_new=True) for new in jobs]

    def call(
        self, name: str, args: Arguments = None, *, known: bool = True, **options: Unpack[JobKeywords]
    ) -> NewCall[Any]:
        """A call by name, for `enqueue_many`."""
        refuse_connection(options, "hand it to enqueue_many(calls, connection=…)")
        return NewCall(self._asked(name, args, known, options))

    async def aenqueue(
        self, name: str, args: Arguments = None, *, known: bool = True, **options: Unpack[JobKeywords]
    ) -> JobHandle[Any]:
        """`enqueue`, for coroutines; many at once share one write."""
        return await self._aenqueue(await self._aasked(name, args, known, options))

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
        return await self._aenqueue(await self._aasked(name, args, known, {**options, "delay": delay}))

    async def aenqueue_at(
        self, at: datetime, name: str, args: Arguments = None, *, known: bool = True, **options: Unpack[UntimedKeywords]
    ) -> JobHandle[Any]:
        """`enqueue_at`, for coroutines."""
        return await self._aenqueue(await self._aasked(name, args, known, {**options, "at": at}))

    async def aenqueue_unique(
        self, name: str, args: Arguments = None, *, known: bool = True, **options: Unpack[JobKeywords]
    ) -> JobHandle[Any]:
        """`enqueue_unique`, for coroutines."""
        return await self._aenqueue(await self._aasked(name, args, known, options, unique=True))

    async def aenqueue_many(self, calls: Iterable[NewCall[R]], *, connection: Any = None) -> list[JobHandle[R]]:
        """`enqueue_many`, for coroutines."""
        refuse_connection({"connection": connection}, "in a coroutine: await session.run_sync(…)")
        return await self._courier.call(self.enqueue_many, list(calls))

    def _asked(
        self, name: str, args: Arguments, known: bool, options: Mapping[str, Any], *, unique: bool = False
    ) -> NewJob:
        template = self._template(name, known)
        if options:
            template = template.changed(options)
        return (template.made_unique() if unique else template).fill_in(args)

    async def _aasked(
        self, name: str, args: Arguments, known: bool, options: Mapping[str, Any], *, unique: bool = False
    ) -> NewJob:
        refuse_connection(options, "in a coroutine: await session.run_sync(lambda s: app.enqueue(…, connection=s))")
        if not isinstance(name, str) or name in self._templates or self._announced.is_fresh(name):
            return self._asked(name, args, known, options, unique=unique)
        return await self._courier.call(self._asked, name, args, known, options, unique=unique)

    def _enqueue(self, new: NewJob, connection: Any = None) -> JobHandle[Any]:
        if self.hooks.before_enqueue is not None:
            new = self.hooks.before_enqueue(new)
        (answer,) = self._submit([new], connection)
        return self._handle(new, answer)

    async def _aenqueue(self, new: NewJob) -> JobHandle[Any]:
        if self.hooks.before_enqueue is not None:
            new = await self._courier.call(self.hooks.before_enqueue, new)
        return self._handle(new, await self._courier.share(self._submit, new))

    def _submit(self, new_jobs: list[NewJob], connection: Any = None) -> list[Enqueued]:
        """The one way of new jobs into the storage; at most `BATCH` of them, stored all or none."""
        if connection is not None:
            return self.storage.enqueue_within(connection, new_jobs)
        return self.storage.enqueue(new_jobs)

    def _handle(self, new: NewJob, answer: Enqueued) -> JobHandle[Any]:
        # An answer `kept` under our own id is a repeated call whose first answer was lost: the job is new all the same.
        if answer.job_id == new.id:
            return JobHandle(self, new.id, new=new, is_new=True)
        return JobHandle(self, answer.job_id)

    # --- finding --------------------------------------------------------------------------------------------------

    def get(self, id: str) -> JobHandle[Any]:
        """The job with this id; raises JobNotFound."""
        return self._found(id, self.storage.get(id))

    def get_or_none(self, id: str) -> JobHandle[Any] | None:
        """The job with this id, or None."""
        record = self.storage.get(id)
        return None if record is None else JobHandle(self, id, record=record)

    def jobs(self, *, limit: int | None = None, **where: Unpack[JobFilter]) -> Iterator[JobHandle[Any]]:
        """The jobs that fit, read a page at a time: those in line by who is next, finished ones by the latest, others
        by the newest. `state` is a word, or several: a state's own name, "waiting", "failed", "halted" …

        >>> for job in app.jobs(state="dead", queue="mail", limit=20): job.retry()
        """
        return self._pages(parse_filter(where), _limit(limit))

    def count(self, **where: Unpack[JobFilter]) -> int:
        """How many jobs fit; quick by state, queue and task, counted one by one otherwise."""
        return self.storage.count(parse_filter(where), cap=_ANY_NUMBER).number

    async def aget(self, id: str) -> JobHandle[Any]:
        """`get`, for coroutines; many at once share one read."""
        return self._found(id, await self._courier.share(self._get_each, id))

    def ajobs(self, *, limit: int | None = None, **where: Unpack[JobFilter]) -> AsyncIterator[JobHandle[Any]]:
        """`jobs`, for coroutines: `async for job in app.ajobs(…)`."""
        return self._apages(parse_filter(where), _limit(limit))

    async def acount(self, **where: Unpack[JobFilter]) -> int:
        """`count`, for coroutines."""
        return await self._courier.call(self.count, **where)

    def _found(self, id: str, record: Job | None) -> JobHandle[Any]:
        if record is None:
            raise JobNotFound(id)
        return JobHandle(self, id, record=record)

    def _get_each(self, ids: list[str]) -> list[Job | None]:
        found = {job.id: job for job in self.storage.get_many(ids)}
        return [found.get(job_id) for job_id in ids]

    def _page(self, where: Filter, cursor: str | None, left: int) -> Page:
        return self.storage.find(where, cursor=cursor, limit=min(left, _PAGE))

    def _pages(self, where: Filter, left: int) -> Iterator[JobHandle[Any]]:
        cursor = None
        while left > 0:
            page = self._page(where, cursor, left)
            yield from (JobHandle(self, job.id, record=job) for job in page.jobs)
            left, cursor = left - len(page.jobs), page.next
            if cursor is None:
                return

    async def _apages(self, where: Filter, left: int) -> AsyncIterator[JobHandle[Any]]:
        cursor = None
        while left > 0:
            page = await self._courier.call(self._page, where, cursor, left)
            for job in page.jobs:
                yield JobHandle(self, job.id, record=job)
            left, cursor = left - len(page.jobs), page.next
            if cursor is None:
                return

    # --- looking around and steering ------------------------------------------------------------------------------

    def queues(self) -> list[QueueInfo]:
        """Every queue, with its numbers of jobs by state and whether it is paused."""
        return self.storage.queues()

    def tasks(self) -> list[TaskInfo]:
        """Every task that was enqueued or that a worker announced; those registered here are in `app.registry`."""
        return self.storage.tasks()

    def workers(self) -> list[WorkerInfo]:
        """Every worker and foreman."""
        return self.storage.workers()

    def failures(self, *, limit: int = 50) -> list[FailureGroup]:
        """What went wrong, grouped by cause, the latest first."""
        return self.storage.failures(limit=limit)

    def health(self) -> Health:
        """How the storage is; an empty list of `problems` means well."""
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
    ) -> list[Event]:
        """What happened, by rising id or by falling; `after` continues behind the event with that id."""
        where = EventFilter(job_id=job, kind=_kind(kind), queue=queue, owner=worker, after=after)
        return self.storage.events(where, limit=limit, newest_first=newest_first)

    def pause(self, queue: str, *, by: str | None = None, why: str | None = None) -> bool:
        """Let no job of this queue begin until `resume`, but those that are forced. False: it was paused already."""
        return self.storage.pause(check_name(queue, "queue name"), by=by, why=why)

    def resume(self, queue: str, *, by: str | None = None) -> bool:
        """Undo `pause`. False: it was not paused."""
        return self.storage.resume(check_name(queue, "queue name"), by=by)

    async def apause(self, queue: str, *, by: str | None = None, why: str | None = None) -> bool:
        """`pause`, for coroutines."""
        return await self._courier.call(self.pause, queue, by=by, why=why)

    async def aresume(self, queue: str, *, by: str | None = None) -> bool:
        """`resume`, for coroutines."""
        return await self._courier.call(self.resume, queue, by=by)


def _maker(module: Mapping[str, Any]) -> str:
    """The name of the module that makes an app: it tells whose schedules are whose."""
    name = str(module.get("__name__", ""))
    # A program that is run as a script is the same one that workers import.
    return Path(str(module.get("__file__", name))).stem if name == "__main__" else name


def _jobs_of(calls: Iterable[NewCall[Any]]) -> list[NewJob]:
    jobs = []
    for call in calls:
        if not isinstance(call, NewCall):
            raise BadValue(f"enqueue_many takes calls, not {call!r}", hint="make them with task.call(…)")
        jobs.append(call.job)
    return jobs


def _limit(limit: int | None) -> int:
    if limit is None:
        return _ANY_NUMBER
    if isinstance(limit, bool) or not isinstance(limit, int) or limit < 0:
        raise BadValue(f"limit must be a whole number from 0 up, not {limit!r}")
    return limit


def _kind(kind: str | None) -> Kind | None:
    try:
        return None if kind is None else Kind(kind)
    except ValueError:
        near = nearest(str(kind), [each.value for each in Kind])
        raise BadValue(f"there is no kind of event {kind!r}{near}") from None
