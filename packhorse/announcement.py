"""Announcements: what workers say about the tasks they know, so that others can enqueue them by name alone.

A worker hands `announcements(registry)` to the storage when it starts. A program that enqueues a task whose code it
does not have asks `Announced`, gives the job the queue, the priority, the tries and the limits that the task wants, and
checks the arguments as far as they are known.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from packhorse.codec import Signature, canonical_json
from packhorse.errors import BadValue
from packhorse.event import Event, Kind, Subject
from packhorse.job import LOWEST_PRIORITY, SETTLED_LATER, WAITING, Job, NewJob
from packhorse.parameters import Parameters, parameters_of, signature_of
from packhorse.storage import BATCH, Storage
from packhorse.storage.records import EventFilter, Filter, TaskInfo
from packhorse.task import RegisteredTask, TaskOptions, parse_unique

_TOLD = (
    *("priority", "weight", "max_attempts", "max_halts", "timeout", "idle_timeout", "expires", "total_timeout"),
    *("persistent", "isolate", "memory_limit", "unique", "redact", "skip_dead"),
)
MOST_ATTEMPTS = "most_attempts"
"""Where an announcement says how many attempts the task allows for some errors, if those are more than for others."""
_USUAL = {name: getattr(NewJob("", "", ""), name) for name in SETTLED_LATER if name != "queue"}
"""What a job has of these options if neither its caller nor its task says anything."""
_ENQUEUED = frozenset({Kind.ADDED, Kind.REPLACED})
_BY_TASK = "its task"
"""Who is told to have changed a job that was enqueued before its task was known."""
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
    for task in new:
        bring_into_line(storage, task)
    storage.announce(tasks, order=order)
    for task in new:  # whoever came between
        bring_into_line(storage, task)


def bring_into_line(storage: Storage, task: TaskInfo) -> None:
    """Give the waiting jobs of a task that was not known its queue and options. What their callers chose stays, and so
    does where an operator has put them since."""
    wanted = {name: task.options.get(name, usual) for name, usual in _USUAL.items()}
    if task.queue == task.name and wanted == _USUAL:
        return
    where, cursor = Filter(states=WAITING, task=task.name), None
    while True:
        page = storage.find(where, cursor=cursor, limit=BATCH)
        astray = [job for job in page.jobs if _is_astray(job, task.queue, wanted)]
        chosen = _chosen(storage, astray)
        groups: dict[tuple[str, tuple[str, ...]], list[str]] = {}
        for job in astray:
            queue, names = _settled(job, task, chosen.get(job.id))
            groups.setdefault((queue, names), []).append(job.id)
        for (queue, names), ids in groups.items():
            storage.set_queue(ids, queue, by=_BY_TASK, options={name: wanted[name] for name in names})
        if page.next is None:
            return
        cursor = page.next


def _is_astray(job: Job, queue: str, wanted: Mapping[str, Any]) -> bool:
    return job.queue != queue or any(getattr(job, name) != value for name, value in wanted.items())


def _settled(job: Job, task: TaskInfo, chosen: Collection[str] | None) -> tuple[str, tuple[str, ...]]:
    """The queue for this job, and the options that it takes from its task. Programs of an earlier version did not write
    what was chosen: their jobs take queue and priority if they have the usual ones, and nothing else."""
    kept = ("max_halts", "expires", "total_timeout", "persistent") if chosen is None else chosen
    queue = task.queue if job.queue == task.name and "queue" not in kept else job.queue
    names = [name for name in _USUAL if name not in kept]
    if job.priority != LOWEST_PRIORITY and "priority" in names:
        names.remove("priority")
    return queue, tuple(names)


def _chosen(storage: Storage, jobs: Sequence[Job]) -> dict[str, Collection[str]]:
    """What the callers of these jobs chose, by the events of their enqueueing. Most of these are the latest of their
    queue; the others are read one by one."""
    told: dict[str, Event] = {}
    for queue in {job.queue for job in jobs}:
        latest = EventFilter(subject=Subject.JOB, kinds=_ENQUEUED, queue=queue)
        for event in storage.events(latest, limit=BATCH, newest_first=True):
            told.setdefault(event.job_id or "", event)
    for job in jobs:
        if job.id not in told:
            of_job = EventFilter(job_id=job.id, kinds=_ENQUEUED)
            for event in storage.events(of_job, limit=1, newest_first=True):
                told[job.id] = event
    facts = {job.id: (told[job.id].data or {}).get("chosen") for job in jobs if job.id in told}
    return {job_id: chosen for job_id, chosen in facts.items() if isinstance(chosen, list | tuple)}


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
