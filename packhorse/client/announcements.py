"""Announcements: what workers publish about their tasks, so that other programs can enqueue them by name.

A worker writes `announcements(registry)` to the storage when it starts. A program that does not have a task's code
reads them through `AnnouncedTasks`: its jobs get the task's queue, priority, attempts and limits, and their arguments
are checked as far as the announced JSON Schemas allow.
"""

from __future__ import annotations

import inspect
import threading
import time
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Union

import msgspec
from msgspec.structs import replace

from packhorse.client.earlier_jobs import update_earlier_jobs
from packhorse.core.codec import Signature, canonical_json
from packhorse.core.errors import BadValue
from packhorse.core.task import RegisteredTask, TaskOptions, parse_unique
from packhorse.storage import Storage
from packhorse.storage.records import TaskInfo

_ANNOUNCED = (
    *("priority", "weight", "max_attempts", "max_halts", "timeout", "idle_timeout", "expires", "total_timeout"),
    *("persistent", "isolate", "memory_limit", "unique", "redact", "skip_dead"),
)
MOST_ATTEMPTS = "most_attempts"
"""The key of an announcement for the most attempts that the task allows for any error, if more than `max_attempts`."""
_FRESH_FOR = 300.0
"""Seconds for which an announcement is used without reading it again."""
_UNKNOWN_FOR = 5.0
"""Seconds after which the announcements are read again for an unknown task: its worker may have started since."""

_MAX_DEPTH = 3  # levels of lists in a schema; the worker checks what is deeper
_MAX_CHOICES = 50
_TYPES: dict[str, Any] = {
    "string": str,
    "integer": int,
    "number": float,
    "boolean": bool,
    "null": None,
    "object": dict,
}

Schema = dict[str, Any]


class _StoredOptions(msgspec.Struct, frozen=True):
    """The options of a stored announcement; fields that a newer Packhorse has added are ignored."""

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


class AnnouncedTask(NamedTuple):
    """A task whose code is elsewhere. `defaults` are those of its arguments, for unique keys; `signature` replaces that
    of its function, if a worker has announced its parameters."""

    options: TaskOptions
    defaults: dict[str, Any]
    signature: Signature | None = None


def announcements(tasks: Iterable[RegisteredTask]) -> list[TaskInfo]:
    """What a worker of these tasks announces; the options are plain JSON, durations in microseconds."""
    return [TaskInfo(task.name, task.queue, _plain(task)) for task in tasks]


def announce(storage: Storage, tasks: Sequence[TaskInfo], order: str | None = None) -> None:
    """Write these announcements to the storage, with the order of queues if one is set. Waiting jobs that were enqueued
    by name before their task was announced move to its queue and get its options, except those that their callers
    chose."""
    known = {task.name for task in storage.tasks() if task.announced_at is not None}
    new = [task for task in tasks if task.name not in known]
    update_earlier_jobs(storage, new)
    storage.announce(tasks, order=order)
    update_earlier_jobs(storage, new)  # jobs enqueued in between


def _plain(task: RegisteredTask) -> dict[str, Any]:
    options = {name: getattr(task.options, name) for name in _ANNOUNCED}
    if task.signature.plain_defaults:  # callers may make any of its jobs unique
        options["defaults"] = task.signature.plain_defaults
    options["parameters"] = parameters_of(task.signature)
    for_errors = [rule.max_attempts for rule in task.options.per_error if rule.max_attempts is not None]
    if for_errors and max(for_errors) > task.options.max_attempts:
        options[MOST_ATTEMPTS] = max(for_errors)
    plain: dict[str, Any] = msgspec.json.decode(
        canonical_json({name: value for name, value in options.items() if value is not None and value != ()})
    )
    return plain


def announced_task(task: TaskInfo, defaults: TaskOptions) -> AnnouncedTask | None:
    """An announcement as it is stored, on top of the default options; None if no worker wrote it, or it is invalid."""
    if task.announced_at is None:
        return None
    try:
        stored = msgspec.convert(task.options, _StoredOptions)
        words = dict(stored.unique or {})
        period = words.pop("period", None)  # in microseconds, where users write seconds
        unique = parse_unique(words or None)
    except (msgspec.ValidationError, BadValue):
        return None
    fields: dict[str, Any] = msgspec.structs.asdict(stored)
    own_defaults = fields.pop("defaults")
    signature = _stored_signature(task.name, fields.pop("parameters"), own_defaults)
    fields["unique"] = unique and replace(unique, period=period)
    return AnnouncedTask(replace(defaults, queue=task.queue, **fields), own_defaults, signature)


def _stored_signature(task: str, stored: Any, defaults: dict[str, Any]) -> Signature | None:
    try:
        return None if stored is None else signature_of(task, msgspec.convert(stored, Parameters), defaults)
    except msgspec.ValidationError:  # written by another program, or a newer Packhorse
        return None


class AnnouncedTasks:
    """The tasks whose code is elsewhere; reads the announcements now and then. `defaults` are the options of tasks that
    no worker has announced."""

    def __init__(
        self, read: Callable[[], list[TaskInfo]], defaults: TaskOptions, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._read_all = read
        self._defaults = defaults
        self._now = now
        self._lock = threading.Lock()
        self._tasks: dict[str, AnnouncedTask] = {}
        self._read_at = float("-inf")

    def is_fresh(self, name: str) -> bool:
        """Will `get` answer without reading the storage?"""
        fresh_for = _FRESH_FOR if name in self._tasks else _UNKNOWN_FOR
        return self._now() - self._read_at < fresh_for

    def get(self, name: str) -> AnnouncedTask | None:
        """The announcement of this task, or None."""
        if not self.is_fresh(name):
            with self._lock:
                if not self.is_fresh(name):  # another thread may have read it meanwhile
                    self._read()
        return self._tasks.get(name)

    def last(self, name: str) -> AnnouncedTask | None:
        """The announcement as of the last read, without reading the storage now."""
        return self._tasks.get(name)

    def read_again(self) -> None:
        """Read the storage now: a worker with newer code may have started."""
        with self._lock:
            self._read()

    def _read(self) -> None:
        tasks = [(task.name, announced_task(task, self._defaults)) for task in self._read_all()]
        self._tasks = {name: task for name, task in tasks if task is not None}
        self._read_at = self._now()


# --- parameters: a signature as JSON Schemas --------------------------------------------------------------------------


class Parameter(msgspec.Struct, frozen=True, omit_defaults=True):
    """One parameter. `schema` is a JSON Schema, empty if everything is allowed."""

    name: str
    schema: Schema = {}
    is_needed: bool = False
    has_place: bool = False  # it may be passed by position


class Parameters(msgspec.Struct, frozen=True, omit_defaults=True):
    """All parameters of a task, in order."""

    each: tuple[Parameter, ...] = ()
    takes_any_name: bool = False


def parameters_of(signature: Signature) -> Parameters:
    """The parameters of a function, to be announced."""
    return Parameters(
        tuple(
            Parameter(name, _schema(hint), is_needed, has_place)
            for name, hint, is_needed, has_place in signature.described()
        ),
        signature.takes_any_name,
    )


def signature_of(task: str, parameters: Parameters, defaults: Mapping[str, Any]) -> Signature | None:
    """A signature made of announced parameters; None if no function could have it.

    Every argument may be passed by name, as arguments are stored. `defaults` are those that are known.
    """
    try:
        listed = [_parameter(one, defaults) for one in parameters.each]
        if parameters.takes_any_name:
            listed.append(inspect.Parameter("_others", inspect.Parameter.VAR_KEYWORD))
        shape = inspect.Signature(sorted(listed, key=lambda one: one.kind))
    except (ValueError, TypeError):  # invalid names or order: not written by us
        return None

    def function() -> None: ...

    function.__qualname__ = task
    function.__signature__ = shape  # type: ignore[attr-defined]
    return Signature(function)


def _parameter(one: Parameter, defaults: Mapping[str, Any]) -> inspect.Parameter:
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD if one.has_place else inspect.Parameter.KEYWORD_ONLY
    # UNSET: there is a default that is unknown here.
    default = inspect.Parameter.empty if one.is_needed else defaults.get(one.name, msgspec.UNSET)
    return inspect.Parameter(one.name, kind, default=default, annotation=_type(one.schema))


def _schema(hint: Any) -> Schema:
    """The schema of a type hint, down to `_MAX_DEPTH`; empty if msgspec has none."""
    try:
        (found,), components = msgspec.json.schema_components([hint], ref_template="{name}")
    except Exception:  # noqa: BLE001 - a hint's own code may raise anything, and a worker must start anyway
        return {}
    return _plain_schema(found, components, _MAX_DEPTH)


def _plain_schema(schema: Mapping[str, Any], components: Mapping[str, Any], levels: int) -> Schema:
    if "$ref" in schema:
        found = components[schema["$ref"]]
        # Of a class only its JSON type. An enum may accept more than it lists, through `_missing_`.
        return {"type": found["type"]} if found.get("type") in ("object", "array") else {}
    if "anyOf" in schema:
        members = [_plain_schema(one, components, levels) for one in schema["anyOf"]]
        return {"anyOf": members} if all(members) else {}
    if "enum" in schema:
        return {"enum": schema["enum"]} if len(schema["enum"]) <= _MAX_CHOICES else {}
    if schema.get("format") == "decimal":
        return {"type": ["string", "number"]}  # both are read
    if schema.get("type") == "array" and levels and (items := _items(schema, components, levels - 1)):
        return {"type": "array", "items": items}
    return {"type": schema["type"]} if "type" in schema else {}


def _items(schema: Mapping[str, Any], components: Mapping[str, Any], levels: int) -> Schema:
    items = schema.get("items")
    return _plain_schema(items, components, levels) if isinstance(items, dict) and "prefixItems" not in schema else {}


def _type(schema: Mapping[str, Any]) -> Any:
    """The type hint of a schema; Any if it is unknown, or msgspec cannot decode it."""
    try:
        hint = _hint(schema)
        msgspec.json.Decoder(hint)
        return hint
    except (TypeError, ValueError, LookupError, AttributeError, RecursionError):
        return Any


def _hint(schema: Mapping[str, Any]) -> Any:
    if "anyOf" in schema:
        return _union(map(_hint, schema["anyOf"]))
    if "enum" in schema:
        return Literal[tuple(schema["enum"])]
    kind = schema.get("type")
    if isinstance(kind, list):
        return _union(_TYPES[one] for one in kind)
    if kind == "array":
        return types.GenericAlias(list, (_hint(schema.get("items", {})),))
    return Any if kind is None else _TYPES[kind]


def _union(members: Iterable[Any]) -> Any:
    return Union[tuple(members)]  # noqa: UP007 - their number varies
