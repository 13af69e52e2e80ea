"""Hooks: what users attach to an app, kept in the order in which it came.

Middleware around attempts is composed by the worker (`middleware.py`), handlers of results are called by it
(`results.py`); middleware around enqueueing is composed here, because the app itself calls it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from packhorse.core.errors import BadValue, PackhorseError
from packhorse.core.job import COMPLETED, NewJob, State

EnqueueCall = Callable[[NewJob], NewJob]
"""Goes on inward with a job that is to be enqueued, and answers it as it will be stored."""

EnqueueMiddleware = Callable[[NewJob, EnqueueCall], NewJob]
"""`(new, call) -> call(new)`: hands the job on, changed or not, or raises to refuse it."""

ResultHandler = Callable[..., Any]
"""`(job) -> None`, plain or async: told of a job that has ended."""


class Hooks:
    """Everything that one app's users have attached to it."""

    def __init__(self) -> None:
        self.middleware: list[Callable[..., Any]] = []
        self.on_success: list[ResultHandler] = []
        self.on_failure: list[ResultHandler] = []
        self.on_result: dict[str, list[ResultHandler]] = {}
        self.before_enqueue: EnqueueCall | None = None
        self._around_enqueue: list[EnqueueMiddleware] = []

    def add_around_enqueue(self, function: EnqueueMiddleware) -> None:
        """One more, inside of those that are there."""
        if inspect.iscoroutinefunction(check_callable(function, "enqueue middleware")):
            hint = "write def: for aenqueue it runs in a thread"
            raise BadValue(f"enqueue middleware {name_of(function)} must be a plain function", hint=hint)
        self._around_enqueue.append(function)
        chain: EnqueueCall = _unchanged
        for one in reversed(self._around_enqueue):
            chain = _around(one, chain)
        self.before_enqueue = chain

    @property
    def has_handlers(self) -> bool:
        """Whether anybody wants to know how jobs end."""
        return bool(self.on_success or self.on_failure or self.on_result)

    def handlers_of(self, task: str, state: State) -> list[ResultHandler]:
        """Who wants to know that a job of this task has ended in this state."""
        return [*self.on_result.get(task, ()), *(self.on_success if state is COMPLETED else self.on_failure)]


def check_callable(function: Any, what: str) -> Any:
    """`function`, if it can be called; else BadValue."""
    if not callable(function):
        raise BadValue(f"{what} must be a function, not {function!r}")
    return function


def name_of(function: Any) -> str:
    """What messages call it."""
    return getattr(function, "__qualname__", None) or repr(function)


def _unchanged(new: NewJob) -> NewJob:
    return new


def _around(one: EnqueueMiddleware, inner: EnqueueCall) -> EnqueueCall:
    def run(new: NewJob) -> NewJob:
        called = False

        def call(new: NewJob) -> NewJob:
            nonlocal called
            called = True
            return inner(new)

        stored = one(new, call)
        if not called or not isinstance(stored, NewJob):
            hint = "end it with `return call(new)`, or raise to refuse the job"
            raise PackhorseError(f"the enqueue middleware {name_of(one)} did not hand the job on", hint=hint)
        return stored

    return run
