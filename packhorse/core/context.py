"""What a running task knows of its own job: `current_job()`.

The context touches no storage. Log lines and check-ins go to a `WorkerLink`: in a thread or a coroutine the held job,
in an isolated child process a channel to the worker. A call costs about a microsecond; the worker's loop writes to the
storage a little later, together with what other jobs report.
"""

from __future__ import annotations

import inspect
import re
import sys
import time
import types
import typing
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from datetime import datetime
from functools import cached_property
from types import SimpleNamespace
from typing import Any, Protocol

import msgspec

from packhorse.core.clock import SECOND, Duration, to_datetime
from packhorse.core.errors import BadValue, PackhorseError, WaitRefused
from packhorse.core.job import Job
from packhorse.core.outcome import Snooze

MESSAGE_LIMIT = 10_000


class WorkerLink(Protocol):
    """Where a running job sends its log lines and check-ins."""

    def log(self, message: str, kind: str = "log") -> None:
        """Add a line to the job's log."""

    def check_in(self, message: str | None, progress: int | None, progress_text: str | None) -> None:
        """Report that the job is alive, and how far it is."""

    def is_stopping(self) -> bool:
        """Was the job, or the whole worker, asked to stop?"""

    def should_stop(self) -> bool:
        """The same, asked by the job itself: if it returns now, it has stopped because of the request."""


class JobContext:
    """The job that runs right now. `local` is yours: a fresh namespace for each attempt, for middleware to fill."""

    def __init__(
        self,
        job: Job,
        args: dict[str, Any],
        link: WorkerLink,
        timeout: int | None = None,
        max_attempts: int | None = None,
    ) -> None:
        self._job = job
        self._link = link
        self._began_at = time.monotonic()
        self._timeout = timeout
        self._max_attempts = max_attempts or job.max_attempts
        self.args = args

    @cached_property
    def local(self) -> SimpleNamespace:
        """Yours: a fresh namespace for each attempt."""
        return SimpleNamespace()

    def __repr__(self) -> str:
        return f"<job {self.id} ({self.task}), attempt {self.attempt}>"

    @property
    def id(self) -> str:
        """The job's id, the same in every attempt: an idempotency key for what the task does elsewhere."""
        return self._job.id

    @property
    def task(self) -> str:
        return self._job.task

    @property
    def queue(self) -> str:
        return self._job.queue

    @property
    def attempt(self) -> int:
        """The number of this attempt, from 1."""
        return self._job.attempt

    @property
    def attempts_left(self) -> int:
        """How many attempts are left, including this one: 1 is the last."""
        return max(0, self._max_attempts - self._job.failures)

    @property
    def max_attempts(self) -> int:
        """How often the job may be tried in all."""
        return self._max_attempts

    @property
    def fence(self) -> int:
        """Rises whenever the job gets another owner, so with each attempt. `id` and `fence` are a fencing token: a
        system that remembers the highest fence refuses a late worker. It is no idempotency key."""
        return self._job.fence

    @property
    def owner(self) -> str | None:
        """The id of the worker that runs the job."""
        return self._job.owner

    @property
    def created_at(self) -> datetime:
        return to_datetime(self._job.created_at)

    @property
    def meta(self) -> dict[str, Any]:
        """The metadata that was enqueued with the job."""
        decoded: dict[str, Any] = msgspec.json.decode(self._job.meta) if self._job.meta else {}
        return decoded

    @property
    def seconds_left(self) -> float | None:
        """How many seconds this run may still take; None: no limit."""
        if self._timeout is None:
            return None
        return max(0.0, self._began_at + self._timeout / SECOND - time.monotonic())

    @property
    def is_stopping(self) -> bool:
        """As `should_stop`, for middleware: asking here does not count as telling the task."""
        return self._link.is_stopping()

    @property
    def should_stop(self) -> bool:
        """Was the job, or the whole worker, asked to stop?"""
        return self._link.should_stop()

    def checkin(self, message: str | None = None) -> bool:
        """Report that the job is alive, and what it does. True: it should stop."""
        self._link.check_in(tidy(message), None, None)
        return self._link.should_stop()

    def progress(self, percent: int, text: str | None = None) -> bool:
        """Report how far the job is, in whole percent. Also a check-in: True means that it should stop."""
        if isinstance(percent, bool) or not isinstance(percent, int) or not 0 <= percent <= 100:
            raise BadValue(f"progress must be a whole number from 0 to 100, not {percent!r}")
        self._link.check_in(None, percent, tidy(text))
        return self._link.should_stop()

    def log(self, message: object) -> None:
        """Add a line to the job's log."""
        self._link.log(tidy(message) or "")

    def snooze(self, delay: Duration) -> Snooze:
        """`return job.snooze("10m")`: run the job again later."""
        return Snooze(delay)


CURRENT: ContextVar[JobContext | None] = ContextVar("packhorse_current_job", default=None)


def current_job() -> JobContext:
    """The job that runs in this thread or coroutine. Raises outside of a job."""
    context = CURRENT.get()
    if context is None:
        raise PackhorseError("no job runs here", hint="current_job() works inside a task while a worker runs it")
    return context


def refuse_to_wait(what: str, in_task: bool) -> None:
    """Raise WaitRefused in a task that would wait for other jobs: it keeps its slot meanwhile, and when every slot
    waits, none is left to run those jobs. `in_task` True: the author knows that other workers run them."""
    context = CURRENT.get()
    if context is None or in_task:
        return
    raise WaitRefused(
        f"the task {context.task} (job {context.id}) must not wait for {what}",
        why="it would keep its slot while it waits, and once every slot waits none is left to run the other job",
        hint="enqueue what comes next as a job of its own, from the other task or its on_result;"
        " in_task=True waits all the same, for when workers of another queue run that job",
    )


def tidy(value: object) -> str | None:
    """The value as text that every storage takes, cut if it is too long."""
    if value is None:
        return None
    text = str(value).encode("utf-8", "backslashreplace").decode().replace("\0", "\\0")
    return text if len(text) <= MESSAGE_LIMIT else f"{text[:MESSAGE_LIMIT]}…"


Resolve = Callable[[Any], Any]
"""Returns the type of an annotation; raises if its names are not defined yet."""

_NAMES = re.compile(r"\bJobContext\b")
_LIKE_IT = ("job", "ctx", "context")
_STARRED = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def find_context_parameter(
    task: str, parameters: Mapping[str, inspect.Parameter], resolve: Resolve
) -> inspect.Parameter | None:
    """The parameter that gets the running job; None: there is none. Raises BadValue for a signature that makes no
    sense, and shows one that does."""
    found = [one for one in parameters.values() if _is_context(one.annotation, resolve)]
    if len(found) > 1:
        names = " and ".join(repr(one.name) for one in found)
        raise _wrong(task, f"{names} are both the running job", parameters, found[0].name)
    if found and found[0].kind in _STARRED:
        raise _wrong(task, f"{found[0].name!r} collects arguments, and there is one running job", parameters, "job")
    for one in parameters.values():
        hint = _resolved(one.annotation, resolve)
        if (typing.get_origin(hint) or hint) in (Job, *_handles()):
            what = f"{one.name!r} cannot be stored as an argument, nor is it how a task gets its own job"
            raise _wrong(task, what, parameters, one.name)
    return found[0] if found else None


def hint_for_missing(names: list[str]) -> str | None:
    """A hint if one of these missing arguments looks like the running job."""
    like = next((name for name in names if name in _LIKE_IT), None)
    return f"if {like!r} is meant to be the running job, write {like}: JobContext" if like else None


def _is_context(annotation: Any, resolve: Resolve) -> bool:
    found = _resolved(annotation, resolve)
    if isinstance(found, str):  # it may be imported for type checkers only
        return _NAMES.search(found) is not None
    if typing.get_origin(found) in (typing.Union, types.UnionType):
        return set(typing.get_args(found)) == {JobContext, types.NoneType}
    return found is JobContext


def _resolved(annotation: Any, resolve: Resolve) -> Any:
    """The type, or the text if its names are not defined yet."""
    if not isinstance(annotation, str):
        return annotation
    try:
        return resolve(annotation)
    except Exception:  # noqa: BLE001 - names that do not exist yet, or a hint's own code; decoding reports it
        return annotation


def _handles() -> tuple[type, ...]:
    """The handles of other jobs, if their module is loaded."""
    module = sys.modules.get("packhorse.client.job")
    handle = getattr(module, "JobHandle", None)
    return (handle,) if handle is not None else ()


def _wrong(task: str, what: str, parameters: Mapping[str, inspect.Parameter], name: str) -> BadValue:
    others = [one for one in parameters if one != name and parameters[one].kind not in _STARRED]
    shown = ", ".join([f"{name}: JobContext", *others[:2], *(["…"] if len(others) > 2 else [])])
    return BadValue(f"{task}(): {what}", hint=f"write def {task.rpartition('.')[2]}({shown}), with one JobContext")
