"""Middleware: functions around an attempt, in the order in which they were added.

    @app.middleware
    def with_database(job, call):
        with connect() as job.local.db:
            return call()

Each gets the running job and `call`, which goes on inward and answers the task's result; `async def` ones await it.
Plain and async middleware and tasks may be mixed: where the kind changes, the inner part runs on the other side, a
plain one in a thread, an async one on the worker's event loop, and the outer part waits for it. Whoever does not want
the task to run now answers `Snooze`, `Retry` or `Abort` instead of calling.
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
"""Middleware and task as one: given the job, the result, or an awaitable of it."""


_LOOK_FOR_STOP = 0.1
"""Seconds between two looks whether an async task below a plain middleware shall stop."""

Loop = Callable[[], asyncio.AbstractEventLoop]
"""Answers the worker's event loop, starting it if need be."""


def is_async(function: Callable[..., Any]) -> bool:
    """Must what this function answers be awaited? True of `async def`, and of objects whose `__call__` is one."""
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
    """An async inner part below a plain middleware. It is cancelled when the job is told to stop, as it would be on
    its own."""

    async def call(job: JobContext, tasks: list[asyncio.Task[Any] | None]) -> tuple[Any, BaseException | None]:
        tasks.append(asyncio.current_task())
        try:
            return await inner(job), None
        except (KeyboardInterrupt, SystemExit, asyncio.CancelledError) as error:
            return None, error  # raised on a loop, the first two would end it, and the last be told before its time

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
    """Wait in a thread for what runs on the loop, and cancel it there, once, when the job shall stop."""
    is_cancelled = False
    while not wait([future], _LOOK_FOR_STOP).done:
        if not is_cancelled and tasks and tasks[0] is not None and job.is_stopping:
            is_cancelled = True
            tasks[0].get_loop().call_soon_threadsafe(tasks[0].cancel)
    value, error = future.result()
    if is_cancelled and isinstance(error, asyncio.CancelledError):
        _ = job.should_stop  # it was told, and did as it was told; who completes all the same has completed
    return value, error


def _must_have_called(one: Middleware, called: bool, result: Any) -> None:
    if not called and not isinstance(result, Snooze | Retry | Abort):
        name = getattr(one, "__qualname__", repr(one))
        hint = "end it with `return call()`, or with Snooze, Retry or Abort"
        raise PackhorseError(f"the middleware {name} did not call the job", hint=hint)
