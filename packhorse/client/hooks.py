"""Hooks: the functions that users attach to an app, in the order in which they were added.

The worker composes the middleware around attempts (`worker/middleware.py`) and calls the result handlers
(`worker/results.py`); the middleware around enqueueing is composed here, because the app itself calls it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from packhorse.core.errors import BadValue, PackhorseError
from packhorse.core.job import COMPLETED, NewJob, State

EnqueueCall = Callable[[NewJob], NewJob]
"""Runs the rest of the chain with a new job, and returns the job as it will be stored."""

EnqueueMiddleware = Callable[[NewJob, EnqueueCall], NewJob]
"""`(new, call) -> call(new)`: passes the job on, changed or not, or raises to reject it."""

ResultHandler = Callable[..., Any]
"""`(job) -> None`, plain or async: called after a job has ended."""


class Hooks:
    """The functions attached to one app."""

    def __init__(self) -> None:
        self.middleware: list[Callable[..., Any]] = []
        self.on_success: list[ResultHandler] = []
        self.on_failure: list[ResultHandler] = []
        self.on_result: dict[str, list[ResultHandler]] = {}
        self.before_enqueue: EnqueueCall | None = None
        self._around_enqueue: list[EnqueueMiddleware] = []

    def add_around_enqueue(self, function: EnqueueMiddleware) -> None:
        """Add middleware inside the existing one."""
        if inspect.iscoroutinefunction(check_callable(function, "enqueue middleware")):
            hint = "write def; aenqueue runs it in a thread"
            raise BadValue(f"enqueue middleware {name_of(function)} must be a plain function", hint=hint)
        self._around_enqueue.append(function)
        chain: EnqueueCall = _unchanged
        for one in reversed(self._around_enqueue):
            chain = _around(one, chain)
        self.before_enqueue = chain

    @property
    def has_handlers(self) -> bool:
        """Is there any result handler?"""
        return bool(self.on_success or self.on_failure or self.on_result)

    def handlers_of(self, task: str, state: State) -> list[ResultHandler]:
        """The handlers to call for a job of this task that has ended in this state."""
        return [*self.on_result.get(task, ()), *(self.on_success if state is COMPLETED else self.on_failure)]


def check_callable(function: Any, what: str) -> Any:
    """Return `function` if it is callable, else raise BadValue."""
    if not callable(function):
        raise BadValue(f"{what} must be a function, not {function!r}")
    return function


def name_of(function: Any) -> str:
    """Its name in messages."""
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
            hint = "end it with `return call(new)`, or raise to reject the job"
            raise PackhorseError(f"the enqueue middleware {name_of(one)} did not pass the job on", hint=hint)
        return stored

    return run
