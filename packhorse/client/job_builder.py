"""Builds the `NewJob` of a call from a task, its options and the arguments.

A task, a name and a `using(...)` copy each keep a `JobTemplate`, in which everything but the arguments is decided and
checked; enqueueing only fills it in. The keywords that users may pass are typed here, once.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Generic, TypedDict, TypeVar

import msgspec
from msgspec.structs import replace

from packhorse.core.clock import LATEST, Duration, from_datetime, microseconds
from packhorse.core.codec import Signature, encode_args
from packhorse.core.errors import BadArguments, BadValue, TaskError, did_you_mean
from packhorse.core.ids import new_id
from packhorse.core.job import NO_LIMIT, SETTLED_LATER, Job, NewJob, UniqueLock
from packhorse.core.retry import Backoff
from packhorse.core.task import RegisteredTask, TaskOptions, Unique, parse_unique, unique_key

R_co = TypeVar("R_co", covariant=True)

Arguments = Mapping[str, Any] | Sequence[Any] | None
"""The arguments of a call by name: a dict, or a list for a task whose signature is known."""

BackoffWords = Duration | Sequence[Duration] | Mapping[str, object] | Callable[..., Duration] | Backoff | None
UniqueWords = bool | str | Iterable[str] | Mapping[str, object] | Unique | None
ErrorWords = type[BaseException] | Iterable[type[BaseException]]


class _Keywords(TypedDict, total=False):
    queue: str | None
    priority: int
    retries: int
    max_attempts: int
    backoff: BackoffWords
    timeout: Duration | None
    idle_timeout: Duration | None
    expires: Duration | None
    total_timeout: Duration | None
    max_halts: int
    unique: UniqueWords
    persistent: bool


class TaskKeywords(_Keywords, total=False):
    """What `@app.task(...)` and `app.register(...)` take."""

    weight: int
    retry_on: ErrorWords | None
    give_up_on: ErrorWords
    per_error: Mapping[type[BaseException], Mapping[str, object]]
    isolate: bool | None
    memory_limit: int | str | None
    skip_dead: bool
    redact: str | Iterable[str] | None


class ScheduleKeywords(_Keywords, total=False):
    """What `app.schedule(...)` takes for its jobs."""

    created_by: str | None
    meta: Mapping[str, Any] | None


class UntimedKeywords(ScheduleKeywords, total=False):
    """What `app.enqueue_in(...)` and `app.enqueue_at(...)` take besides the time."""

    id: str  # chosen by the caller: repeating the call with the same id adds no second job
    subscriber: str | None
    connection: Any  # the caller's own, to the database that holds the jobs


class JobKeywords(UntimedKeywords, total=False):
    """What `task.using(...)`, `app.enqueue(...)` and `job.copy(...)` take."""

    delay: Duration
    at: datetime


class NewCall(msgspec.Struct, Generic[R_co], frozen=True, gc=False):
    """One call for `app.enqueue_many`; made by `task.call(...)` or `app.call(name, ...)`.

    It stands for one job: passing the same call again, after an error, adds no second job.
    """

    job: NewJob
    has_own_id: bool = False


class JobTemplate(msgspec.Struct, frozen=True):
    """A job without its id and its arguments."""

    blank: NewJob
    limit: int  # of the arguments' bytes
    unique: Unique | None = None
    signature: Signature | None = None
    defaults: Mapping[str, Any] | None = None  # of the arguments of an announced task

    @classmethod
    def of_task(cls, task: RegisteredTask, limit: int) -> JobTemplate:
        """For a task that is registered here."""
        return cls(_blank(task.name, task.options), limit, task.options.unique, task.signature)

    @classmethod
    def of_name(cls, name: str, defaults: TaskOptions, limit: int) -> JobTemplate:
        """For a task that is neither registered here nor announced."""
        return cls(replace(_blank(name, defaults), chosen=()), limit)

    @classmethod
    def of_announced(
        cls, name: str, options: TaskOptions, limit: int, defaults: Mapping[str, Any], signature: Signature | None
    ) -> JobTemplate:
        """For a task that workers announced. Without a signature, arguments are not checked."""
        return cls(_blank(name, options), limit, options.unique, signature, defaults)

    @classmethod
    def of_copy(cls, job: Job, limit: int, signature: Signature | None) -> JobTemplate:
        """For copies of this job, without its delay. They are not unique unless asked for: the original exists."""
        shared = [name for name in NewJob.__struct_fields__ if name in Job.__struct_fields__]
        fields = {name: getattr(job, name) for name in shared}
        blank = NewJob(**fields | {"id": "", "due_at": None, "schedule": None, "copied_from": job.id})
        return cls(blank, limit, None, signature)

    def changed(self, keywords: Mapping[str, Any]) -> JobTemplate:
        """This template with some of the user's keywords changed."""
        fields = _job_fields(keywords)
        if "queue" in fields and fields["queue"] is None:
            fields["queue"] = self.blank.task
        if self.blank.chosen is not None:
            fields["chosen"] = tuple(name for name in SETTLED_LATER if name in fields or name in self.blank.chosen)
        unique = parse_unique(keywords["unique"]) if "unique" in keywords else self.unique
        return replace(self, blank=replace(self.blank, **fields), unique=unique)

    def made_unique(self) -> JobTemplate:
        """For `enqueue_unique`: unique as the task says, by default by all arguments until the job ends."""
        return self if self.unique else replace(self, unique=Unique())

    def fill(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> NewJob:
        """The job for one call of the function."""
        assert self.signature is not None
        text = self.signature.encode(args, kwargs, self.limit)
        if self.unique is None:
            return replace(self.blank, id=self.blank.id or new_id(), args=text)
        lock = self._lock(self.unique, self.signature.bind(args, kwargs))
        return replace(self.blank, id=self.blank.id or new_id(), args=text, unique=lock)

    def fill_in(self, args: Arguments) -> NewJob:
        """The job for arguments given as data, by name or in order."""
        if args is None:
            args = {}
        if isinstance(args, str | bytes) or not isinstance(args, Mapping | Sequence):
            raise BadArguments(
                f"the arguments of {self.blank.task} must be a dict or a list, not {args!r}", hint='e.g. {"user_id": 7}'
            )
        if self.signature is not None:
            return self.fill((), dict(args)) if isinstance(args, Mapping) else self.fill(tuple(args), {})
        if not isinstance(args, Mapping):
            raise BadArguments(
                f"the arguments of {self.blank.task} need names: its function is unknown here",
                hint='pass a dict, e.g. {"user_id": 7}',
            )
        return self._stored(encode_args(args, self.limit), args)

    def fill_again(self, args: Mapping[str, Any]) -> NewJob:
        """The job for arguments in their stored form, where even positional ones have names."""
        text = encode_args(args, self.limit)
        if self.signature is not None:
            self.signature.decode(text)
        return self._stored(text, args)

    def _stored(self, text: str, args: Mapping[str, Any]) -> NewJob:
        lock = self._lock(self.unique, args) if self.unique else None
        return replace(self.blank, id=self.blank.id or new_id(), args=text, unique=lock)

    def _lock(self, unique: Unique, args: Mapping[str, Any]) -> UniqueLock:
        if self.defaults is not None:
            args = {**self.defaults, **args}
        key = unique_key(self.blank.task, unique, args, self.signature)
        return UniqueLock(key, unique.period, unique.until, unique.on_conflict)


def check_id(text: object) -> str:
    """Return `text` if it is a valid id, 8 to 64 letters, digits, `_` and `-`; else raise BadValue."""
    if not isinstance(text, str) or not re.fullmatch(r"[0-9A-Za-z_-]{8,64}", text):
        raise BadValue(f"id must be 8 to 64 letters, digits, _ and -, not {text!r}", hint="e.g. 'order-2026-000017'")
    return text


def refuse_connection(options: Mapping[str, Any], instead: str) -> None:
    """Raise BadValue for a connection of the caller's own where it makes no sense."""
    if options.get("connection") is not None:
        raise BadValue("a connection of your own works with a plain enqueue only", hint=instead)


def delayed(new: NewJob, delay: Duration) -> NewJob:
    """The job, to run after this delay."""
    return replace(new, delay=microseconds(delay, "delay"), due_at=None)


def scheduled(new: NewJob, at: datetime) -> NewJob:
    """The job, to run at this moment; if it has passed, now."""
    return replace(new, due_at=_moment(at), delay=0)


def _blank(name: str, options: TaskOptions) -> NewJob:
    """A job stores its task's options only where the storage uses them before the job runs. Its attempts, backoff and
    timeouts come from the code of the worker that runs it."""
    return NewJob(
        id="",
        task=name,
        queue=options.queue or name,
        priority=options.priority,
        max_halts=options.max_halts,
        expires=options.expires,
        total_timeout=options.total_timeout,
        persistent=options.persistent,
    )


# --- keywords -----------------------------------------------------------------------------------------------------

_SHARED = frozenset(_Keywords.__annotations__)
_OF_JOBS = frozenset(JobKeywords.__annotations__)
_OF_TASKS_ONLY = frozenset(TaskKeywords.__annotations__) - _OF_JOBS


def _job_fields(keywords: Mapping[str, Any]) -> dict[str, Any]:
    """Users' keywords as fields of a `NewJob`; the unique key needs the arguments and comes later."""
    for name in keywords:
        _check_keyword(name)
    if "delay" in keywords and "at" in keywords:
        raise BadValue("give delay or at, not both", hint="delay counts from now, at is a moment")
    options = TaskOptions().with_(**{name: value for name, value in keywords.items() if name in _SHARED})
    fields: dict[str, Any] = {}
    for name, value in keywords.items():
        match name:
            case "retries":
                fields["max_attempts"] = options.max_attempts
            case "unique" | "connection":
                pass
            case "timeout" | "idle_timeout":
                fields[name] = NO_LIMIT if value is None else getattr(options, name)
            case "backoff":
                fields["backoff"] = options.backoff.to_json()
            case "id":
                fields["id"] = check_id(value)
            case "delay":
                fields |= {"delay": microseconds(value, "delay"), "due_at": None}
            case "at":
                fields |= {"due_at": _moment(value), "delay": 0}
            case "meta":
                fields["meta"] = None if value is None else _meta(value)
            case "subscriber" | "created_by":
                fields[name] = None if value is None else _label(name, value)
            case _:
                fields[name] = getattr(options, name)
    return fields


def _check_keyword(name: str) -> None:
    if name in _OF_TASKS_ONLY:
        raise BadValue(f"{name} belongs to the task, not to one of its jobs", hint=f"pass it to @app.task({name}=…)")
    if name not in _OF_JOBS:
        raise BadValue(f"there is no option {name!r}{did_you_mean(name, _OF_JOBS)}")


def _moment(at: object) -> int:
    if not isinstance(at, datetime):
        raise BadValue(f"at must be a datetime with a time zone, not {at!r}", hint="for seconds from now, use delay=")
    moment = from_datetime(at, "at")
    if moment > LATEST:
        raise BadValue(f"at is too late: {at.isoformat()}", hint="the latest year is 4999")
    return max(0, moment)


def _meta(value: object) -> str:
    if not isinstance(value, Mapping):
        raise BadValue(f"meta must be a dict, not {value!r}", hint='e.g. {"tenant": "acme"}')
    try:
        return encode_args(value)
    except TaskError as error:
        raise BadValue(f"meta cannot be stored: {error}") from error


def _label(name: str, value: object) -> str:
    if not isinstance(value, str) or not value.strip() or not value.isprintable():
        raise BadValue(f"{name} must be printable text, not {value!r}")
    return value
