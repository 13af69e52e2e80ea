"""Middleware: functions around an attempt, in the order in which they were added.

    @app.middleware
    def with_database(job, call):
        with connect() as job.local.db:
            return call()

Each gets the running job and `call`, which runs the rest and returns the task's result; async middleware awaits it.
Plain and async middleware and tasks may be mixed: where the kind changes, a plain inner part runs in a thread, an async
one on the worker's event loop, and the outer part waits for it. Middleware that does not want the task to run now
returns `Snooze`, `Retry` or `Abort` instead of calling.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future, wait
from typing import Any

from packhorse.core.context import JobContext
from packhorse.core.errors import PackhorseError
from packhorse.core.outcome import Abort, Retry, Snooze
from packhorse.core.task import RegisteredTask

Middleware = Callable[..., Any]
"""`(job, call) -> result`, plain or async."""

Chain = Callable[[JobContext], Any]
"""Middleware and task as one function of the job; it returns the result or an awaitable of it."""

_STOP_CHECK = 0.1
"""Seconds between two checks whether an async task below plain middleware should stop."""

Loop = Callable[[], asyncio.AbstractEventLoop]
"""Returns the worker's event loop, and starts it if it does not run yet."""


def is_async(function: Callable[..., Any]) -> bool:
    """Must the return value be awaited? True for `async def`, and for objects whose `__call__` is one."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004


def compose(task: RegisteredTask, middleware: Sequence[Middleware], loop: Loop | None) -> tuple[Chain, bool]:
    """The whole chain around one task, and whether it must be awaited. Without a loop, as in a child process, an async
    inner part below a plain one gets a loop of its own."""
    chain, inner_is_async = _innermost(task), is_async(task.function)
    for one in reversed(middleware):
        chain, inner_is_async = _wrapped(one, chain, inner_is_async, loop), is_async(one)
    return chain, inner_is_async


def _innermost(task: RegisteredTask) -> Chain:
    function, call_with = task.function, task.signature.call_with
    if task.signature.takes_context:
        call_with_context = task.signature.call_with_context

        def call_with_job(job: JobContext) -> Any:
            args, kwargs = call_with_context(job.args, job)
            return function(*args, **kwargs)

        return call_with_job

    def call(job: JobContext) -> Any:
        args, kwargs = call_with(job.args)
        return function(*args, **kwargs)

    return call


def _wrapped(one: Middleware, inner: Chain, inner_is_async: bool, loop: Loop | None) -> Chain:
    if is_async(one):
        return _around_async(one, inner if inner_is_async else _in_thread(inner))
    return _around_plain(one, _on_loop(inner, loop) if inner_is_async else inner)


def _around_plain(one: Middleware, inner: Chain) -> Chain:
    def run(job: JobContext) -> Any:
        called = False

        def call() -> Any:
            nonlocal called
            called = True
            return inner(job)

        result = one(job, call)
        _must_have_called(one, called, result)
        return result

    return run


def _around_async(one: Middleware, inner: Callable[[JobContext], Awaitable[Any]]) -> Chain:
    async def run(job: JobContext) -> Any:
        called = False

        async def call() -> Any:
            nonlocal called
            called = True
            return await inner(job)

        result = await one(job, call)
        _must_have_called(one, called, result)
        return result

    return run


def _in_thread(inner: Chain) -> Callable[[JobContext], Awaitable[Any]]:
    """A plain inner part below an async middleware."""

    def call(job: JobContext) -> Any:
        try:
            return inner(job)
        except StopIteration as error:  # no future can carry one
            raise RuntimeError("the task raised StopIteration") from error

    async def run(job: JobContext) -> Any:
        here = contextvars.copy_context()
        work = asyncio.get_running_loop().run_in_executor(None, here.run, call, job)
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            # A thread cannot be cancelled: the job has not ended before it stops by itself.
            await asyncio.wait([work])
            work.exception()
            raise

    return run


def _on_loop(inner: Callable[[JobContext], Awaitable[Any]], loop: Loop | None) -> Chain:
    """An async inner part below plain middleware. It is cancelled when the job should stop, as any async task."""

    async def call(job: JobContext, tasks: list[asyncio.Task[Any] | None]) -> tuple[Any, BaseException | None]:
        tasks.append(asyncio.current_task())
        try:
            return await inner(job), None
        except (KeyboardInterrupt, SystemExit, asyncio.CancelledError) as error:
            return (
                None,
                error,
            )  # the event loop would not survive the first two, and the caller must not see the last too early

    def run(job: JobContext) -> Any:
        tasks: list[asyncio.Task[Any] | None] = []
        if loop is None:
            value, error = asyncio.run(call(job, tasks))
        else:
            value, error = _waited_for(asyncio.run_coroutine_threadsafe(call(job, tasks), loop()), job, tasks)
        if error is not None:
            raise error
        return value

    return run


def _waited_for(
    future: Future[tuple[Any, BaseException | None]], job: JobContext, tasks: Sequence[asyncio.Task[Any] | None]
) -> tuple[Any, BaseException | None]:
    """Wait in a thread for a coroutine on the event loop, and cancel it once when the job should stop."""
    is_cancelled = False
    while not wait([future], _STOP_CHECK).done:
        if not is_cancelled and tasks and tasks[0] is not None and job.is_stopping:
            is_cancelled = True
            tasks[0].get_loop().call_soon_threadsafe(tasks[0].cancel)
    value, error = future.result()
    if is_cancelled and isinstance(error, asyncio.CancelledError):
        _ = job.should_stop  # the job has stopped when told to; had it completed all the same, that would count
    return value, error


def _must_have_called(one: Middleware, called: bool, result: Any) -> None:
    if not called and not isinstance(result, Snooze | Retry | Abort):
        name = getattr(one, "__qualname__", repr(one))
        hint = "end it with `return call()`, or with Snooze, Retry or Abort"
        raise PackhorseError(f"the middleware {name} did not call the job", hint=hint)
