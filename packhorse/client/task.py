"""A task as users hold it: what `@app.task` makes of a function.

Calling it still calls the function; `enqueue` and the like make a job of the call instead. The async name of a method
is its name with an `a` in front. Type checkers know the arguments and the result of each.
"""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable, Coroutine
from datetime import datetime
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Protocol, Self, TypeVar, Unpack, overload

from packhorse.client.app_state import AppState
from packhorse.client.hooks import check_callable
from packhorse.client.job import JobHandle, aenqueue_job, enqueue_job
from packhorse.client.job_builder import JobKeywords, JobTemplate, NewCall, delayed, refuse_connection, scheduled
from packhorse.core.clock import Duration
from packhorse.core.context import JobContext
from packhorse.core.task import RegisteredTask, TaskOptions

P = ParamSpec("P")
R = TypeVar("R")
Handler = TypeVar("Handler", bound=Callable[..., Any])


class Task(Generic[P, R]):
    """A registered function. `P` are its arguments, `R` is its result; that of an `async def` is what it returns when
    awaited."""

    def __init__(self, app: AppState, registered: RegisteredTask, template: JobTemplate) -> None:
        functools.update_wrapper(self, registered.function)
        self._app = app
        self._registered = registered
        self._template = template
        self._has_own_id = False  # did the caller choose the id?
        self._connection: Any = None  # the caller's own, if its transaction is to include the jobs

    def __repr__(self) -> str:
        return f"<Task {self.name}>"

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Call the function itself, without a job."""
        return self._registered.function(*args, **kwargs)

    @property
    def name(self) -> str:
        """The name under which it is registered."""
        return self._registered.name

    @property
    def queue(self) -> str:
        """The queue of its jobs."""
        return self._template.blank.queue

    @property
    def options(self) -> TaskOptions:
        """The options with which it was registered."""
        return self._registered.options

    def on_result(self, function: Handler) -> Handler:
        """Call a function in the worker after each job of this task has ended, with the job.

        `app.on_success` says what happens to its errors.

        >>> @send_notice.on_result
        ... def note(job): print(job.state)
        """
        self._app.hooks.on_result.setdefault(self.name, []).append(check_callable(function, "a result handler"))
        return function

    def using(self, **options: Unpack[JobKeywords]) -> Self:
        """A copy of the task, with other options for the jobs that the copy enqueues.

        With `connection`, your own to the database that holds the jobs, the jobs are part of your transaction: they
        exist once it commits. It may be one of psycopg or sqlite3, a SQLAlchemy Connection or Session, or Django's
        `connection`.

        >>> send_notice.using(priority=9, delay="10m").enqueue(user_id=1)
        """
        other = self._with(self._template.changed(options))
        if "connection" in options:
            other._connection = options["connection"]
        return other

    def call(self, /, *args: P.args, **kwargs: P.kwargs) -> NewCall[R]:
        """A call for `app.enqueue_many`."""
        if self._connection is not None:
            refuse_connection({"connection": self._connection}, "pass it to enqueue_many(calls, connection=…)")
        return NewCall(self._template.fill(args, kwargs), self._has_own_id)

    def enqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]:
        """Enqueue a job that makes this call.

        Raises BadArguments if the arguments do not fit the function and its type hints or cannot become JSON,
        PayloadTooLarge, and NotUnique if the task is unique and rejects duplicates.
        """
        return enqueue_job(self._app, self._template.fill(args, kwargs), self._connection, has_own_id=self._has_own_id)

    def enqueue_in(self, delay: Duration, /, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]:
        """Make a job of this call that runs after `delay`: seconds, a timedelta, or text such as "10m"."""
        return enqueue_job(
            self._app, delayed(self._template.fill(args, kwargs), delay), self._connection, has_own_id=self._has_own_id
        )

    def enqueue_at(self, at: datetime, /, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]:
        """Make a job of this call that runs at a moment, a datetime with a time zone; if it has passed, now."""
        return enqueue_job(
            self._app, scheduled(self._template.fill(args, kwargs), at), self._connection, has_own_id=self._has_own_id
        )

    def enqueue_unique(self, /, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]:
        """Make a job of this call unless one with the same arguments waits: then return that one, with `is_new` False.

        A task with a `unique` option of its own follows that option.
        """
        return enqueue_job(
            self._app, self._template.made_unique().fill(args, kwargs), self._connection, has_own_id=self._has_own_id
        )

    async def aenqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]:
        """`enqueue`, for coroutines; concurrent calls share one write."""
        self._refuse_connection()
        return await aenqueue_job(self._app, self._template.fill(args, kwargs), has_own_id=self._has_own_id)

    async def aenqueue_in(self, delay: Duration, /, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]:
        """`enqueue_in`, for coroutines."""
        self._refuse_connection()
        return await aenqueue_job(
            self._app, delayed(self._template.fill(args, kwargs), delay), has_own_id=self._has_own_id
        )

    async def aenqueue_at(self, at: datetime, /, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]:
        """`enqueue_at`, for coroutines."""
        self._refuse_connection()
        return await aenqueue_job(
            self._app, scheduled(self._template.fill(args, kwargs), at), has_own_id=self._has_own_id
        )

    async def aenqueue_unique(self, /, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]:
        """`enqueue_unique`, for coroutines."""
        self._refuse_connection()
        return await aenqueue_job(
            self._app, self._template.made_unique().fill(args, kwargs), has_own_id=self._has_own_id
        )

    def _refuse_connection(self) -> None:
        refuse_connection(
            {"connection": self._connection}, "in a coroutine: await session.run_sync(lambda s: … .enqueue(…))"
        )

    def _with(self, template: JobTemplate) -> Self:
        other = copy.copy(self)
        other._template, other._has_own_id = template, bool(template.blank.id)
        return other


class PlainTask(Task[P, R]):
    """A task that is a plain function."""

    if TYPE_CHECKING:

        def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> R: ...


class CoroutineTask(Task[P, R]):
    """A task that is an `async def`."""

    if TYPE_CHECKING:

        def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]: ...


AnyTask = TypeVar("AnyTask", bound=Task[..., Any])


class TaskDecorator(Protocol):
    """What `@app.task(...)` with options returns: it makes a task of a function."""

    @overload  # a function whose first parameter is the running job, which callers do not pass
    def __call__(  # type: ignore[overload-overlap]
        self, function: Callable[Concatenate[JobContext, P], Coroutine[Any, Any, R]], /
    ) -> CoroutineTask[P, R]: ...

    @overload
    def __call__(self, function: Callable[Concatenate[JobContext, P], R], /) -> PlainTask[P, R]: ...

    @overload  # a coroutine function matches this one and the next; this one is right
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> CoroutineTask[P, R]: ...  # type: ignore[overload-overlap]

    @overload
    def __call__(self, function: Callable[P, R], /) -> PlainTask[P, R]: ...


class ScheduleDecorator(Protocol):
    """What `@app.schedule(...)` returns: it takes a task, or makes one of a function, and schedules it."""

    @overload  # a task is a callable too; this one is right
    def __call__(self, task: AnyTask, /) -> AnyTask: ...  # type: ignore[overload-overlap]

    @overload
    def __call__(self, task: Callable[P, Coroutine[Any, Any, R]], /) -> CoroutineTask[P, R]: ...  # type: ignore[overload-overlap]

    @overload
    def __call__(self, task: Callable[P, R], /) -> PlainTask[P, R]: ...


def task_handle(app: AppState, registered: RegisteredTask, template: JobTemplate) -> Task[..., Any]:
    """The handle that fits the kind of function."""
    kind = CoroutineTask if inspect.iscoroutinefunction(registered.function) else PlainTask
    return kind(app, registered, template)
