"""Announcements: what workers say about the tasks they know, so that others can enqueue them by name alone.

A worker hands `announcements(registry)` to the storage when it starts. A program that enqueues a task whose code it
does not have asks `Announced`, gives the job the queue, the priority, the tries and the limits that the task wants, and
checks the arguments as far as they are known.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from packhorse.client.earlier_jobs import settle_earlier_jobs
from packhorse.client.parameters import Parameters, parameters_of, signature_of
from packhorse.core.codec import Signature, canonical_json
from packhorse.core.errors import BadValue
from packhorse.core.task import RegisteredTask, TaskOptions, parse_unique
from packhorse.storage import Storage
from packhorse.storage.records import TaskInfo

_TOLD = (
    *("priority", "weight", "max_attempts", "max_halts", "timeout", "idle_timeout", "expires", "total_timeout"),
    *("persistent", "isolate", "memory_limit", "unique", "redact", "skip_dead"),
)
MOST_ATTEMPTS = "most_attempts"
"""Where an announcement says how many attempts the task allows for some errors, if those are more than for others."""
_TRUSTED_FOR = 300.0
"""Seconds for which an announcement is taken to be true."""
_ASK_AGAIN_AFTER = 5.0
"""Seconds after which a task that nobody had announced is asked for again: its worker may have started since."""


class _Told(msgspec.Struct, frozen=True):
    """An announcement's options as they are read back; what a newer Packhorse may have added is left alone."""

    priority: int
    max_attempts: int
    max_halts: int
    weight: int = 1
    timeout: int | None = None
    idle_timeout: int | None = None
    expires: int | None = None
    total_timeout: int | None = None
    persistent: bool = False
    isolate: bool | None = None
    memory_limit: int | None = None
    unique: dict[str, Any] | None = None
    redact: tuple[str, ...] = ()
    skip_dead: bool = False
    defaults: dict[str, Any] = {}
    parameters: Any = None


class Known(NamedTuple):
    """What is known of a task whose code is elsewhere. `defaults` are its arguments' own, if they make it unique;
    `signature` stands in for its function's, if a worker has told what that takes."""

    options: TaskOptions
    defaults: dict[str, Any]
    signature: Signature | None = None


def announcements(tasks: Iterable[RegisteredTask]) -> list[TaskInfo]:
    """What a worker that knows these tasks says; the options are plain JSON, durations in microseconds."""
    return [TaskInfo(task.name, task.queue, _plain(task)) for task in tasks]


def announce(storage: Storage, tasks: Sequence[TaskInfo], order: str | None = None) -> None:
    """Tell the storage of these tasks, and which order of queues was set, if one was. Jobs that wait since before
    anybody knew their task, as others enqueued them by its name alone, come into its queue and get its options; only
    what their callers chose stays."""
    known = {task.name for task in storage.tasks() if task.announced_at is not None}
    new = [task for task in tasks if task.name not in known]
    settle_earlier_jobs(storage, new)
    storage.announce(tasks, order=order)
    settle_earlier_jobs(storage, new)  # whoever came between


def _plain(task: RegisteredTask) -> dict[str, Any]:
    told = {name: getattr(task.options, name) for name in _TOLD}
    if task.signature.plain_defaults:  # any of its jobs may be made unique by who enqueues it
        told["defaults"] = task.signature.plain_defaults
    told["parameters"] = parameters_of(task.signature)
    for_errors = [rule.max_attempts for rule in task.options.per_error if rule.max_attempts is not None]
    if for_errors and max(for_errors) > task.options.max_attempts:
        told[MOST_ATTEMPTS] = max(for_errors)
    plain: dict[str, Any] = msgspec.json.decode(
        canonical_json({name: value for name, value in told.items() if value is not None and value != ()})
    )
    return plain


def known_task(task: TaskInfo, usual: TaskOptions) -> Known | None:
    """What was announced of a task, on top of the usual options; None when no worker has, or it cannot be read."""
    if task.announced_at is None:
        return None
    try:
        told = msgspec.convert(task.options, _Told)
        words = dict(told.unique or {})
        period = words.pop("period", None)  # in microseconds, where users write seconds
        unique = parse_unique(words or None)
    except (msgspec.ValidationError, BadValue):
        return None
    fields: dict[str, Any] = msgspec.structs.asdict(told)
    defaults = fields.pop("defaults")
    signature = _signature(task.name, fields.pop("parameters"), defaults)
    fields["unique"] = unique and replace(unique, period=period)
    return Known(replace(usual, queue=task.queue, **fields), defaults, signature)


def _signature(task: str, told: Any, defaults: dict[str, Any]) -> Signature | None:
    try:
        return None if told is None else signature_of(task, msgspec.convert(told, Parameters), defaults)
    except msgspec.ValidationError:  # written by others, or by a newer Packhorse: nothing is known then
        return None


class Announced:
    """What is known of tasks whose code is elsewhere; asks the storage now and then. `usual` are the options of those
    that nobody tells about."""

    def __init__(
        self, read: Callable[[], list[TaskInfo]], usual: TaskOptions, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._read = read
        self._usual = usual
        self._now = now
        self._lock = threading.Lock()
        self._tasks: dict[str, Known] = {}
        self._read_at = float("-inf")

    def is_fresh(self, name: str) -> bool:
        """Whether `get` will answer without a look at the storage."""
        trusted = _TRUSTED_FOR if name in self._tasks else _ASK_AGAIN_AFTER
        return self._now() - self._read_at < trusted

    def get(self, name: str) -> Known | None:
        """What workers announced of this task; None if none has."""
        if not self.is_fresh(name):
            with self._lock:
                if not self.is_fresh(name):  # another thread may have asked meanwhile
                    self._look()
        return self._tasks.get(name)

    def last(self, name: str) -> Known | None:
        """As it was when the storage was last asked; it is not asked now."""
        return self._tasks.get(name)

    def look_again(self) -> None:
        """Ask the storage now: what was announced may be another by now, as a worker with newer code has started."""
        with self._lock:
            self._look()

    def _look(self) -> None:
        told = [(task.name, known_task(task, self._usual)) for task in self._read()]
        self._tasks = {task: known for task, known in told if known is not None}
        self._read_at = self._now()
