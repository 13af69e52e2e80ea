"""An app's tasks: registering them, what their jobs look like, and what is called around and after them.

One group of an app's methods. A wrong option is refused when it is written; registering asks no storage.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, Self, TypeVar, Unpack, overload

from packhorse.client.announcements import announcements
from packhorse.client.home import Home
from packhorse.client.hooks import EnqueueMiddleware, check_callable
from packhorse.client.job_builder import JobTemplate, TaskKeywords
from packhorse.client.task import CoroutineTask, PlainTask, Task, TaskDecorator, task_handle
from packhorse.core.context import JobContext
from packhorse.core.errors import TaskNotFound
from packhorse.core.task import TaskOptions, check_name
from packhorse.storage.records import TaskInfo

P = ParamSpec("P")
R = TypeVar("R")
Function = TypeVar("Function", bound=Callable[..., Any])


class Tasks(Home):
    @overload  # one that takes the running job first, which is none of the arguments
    def task(  # type: ignore[overload-overlap]
        self, function: Callable[Concatenate[JobContext, P], Coroutine[Any, Any, R]], /
    ) -> CoroutineTask[P, R]: ...

    @overload
    def task(self, function: Callable[Concatenate[JobContext, P], R], /) -> PlainTask[P, R]: ...

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

    def _template(self, name: str, known: bool, asks: bool = True) -> JobTemplate:
        """What jobs of this task look like; without `asks` the storage is not asked what workers have announced."""
        template = self._templates.get(name) if isinstance(name, str) else None
        return template or self._template_of_unknown(check_name(name, "task name"), known, asks)

    def _template_of_unknown(self, name: str, known: bool, asks: bool) -> JobTemplate:
        if known and self._templates and not self._accept_unknown:
            try:
                self.registry.get(name)
            except TaskNotFound as error:
                hints = filter(None, [error.hint, "known=False enqueues it for workers elsewhere"])
                raise TaskNotFound(error.what, hint="; ".join(hints)) from None
        if asks and (task := self._announced.get(name)):
            signature = task.signature if known else None
            return JobTemplate.of_announced(name, task.options, self.settings.payload_limit, task.defaults, signature)
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
