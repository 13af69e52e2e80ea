"""The registry: tasks, their options, and the rules for their names.

The app fills a `Registry` and parses users' options here; workers look tasks up in it. Everything is immutable, and a
wrong option raises where it is written, with the option's name and its allowed values.
"""

from __future__ import annotations

import functools
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import msgspec

from packhorse.core.clock import microseconds
from packhorse.core.codec import Function, Signature, canonical_json, innermost
from packhorse.core.errors import BadValue, TaskExists, TaskNotFound, did_you_mean
from packhorse.core.job import HIGHEST_PRIORITY, LOWEST_PRIORITY
from packhorse.core.retry import Backoff, ErrorRule, error_rules, parse_backoff

NAME_LIMIT = 128
HEAVIEST = 100_000
MOST_ATTEMPTS = 100_000
MOST_HALTS = 1_000
_EXACT = 1 << 53  # above it a float has no units
_KEY_LIMIT = 120  # characters of a user's own unique key that are stored unchanged

ErrorClasses = tuple[type[BaseException], ...]


class Worker:
    """A task as an object: subclass it, write `run`, and register an instance.

    >>> class Fibonacci(Worker):
    ...     def run(self, n: int) -> int:
    ...         return n if n < 2 else self.run(n - 1) + self.run(n - 2)
    """

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """Do the job; the return value is the job's result."""
        raise NotImplementedError(f"{type(self).__name__} has no method run")

    def on_result(self, job: Any) -> None:
        """Called after each job of this task has ended, with the job. Optional."""


def check_name(text: str, what: str = "name") -> str:
    """Return `text` if it may name a task or a queue, else raise BadValue: 1 to 128 letters, digits, `_`, `.`, `:` and
    `-`, but not `.` and `..`, which have another meaning in a URL."""
    if not isinstance(text, str) or not text:
        raise BadValue(f"{what} must be text, not {text!r}", hint="e.g. 'send_notice'")
    if len(text) > NAME_LIMIT:
        raise BadValue(f"{what} {text[:20]!r}… has {len(text)} characters; the limit is {NAME_LIMIT}")
    if wrong := re.search(r"[^A-Za-z0-9_.:-]", text):
        example = re.sub(r"[^A-Za-z0-9_.:-]+", "_", text).strip("_") or "send_notice"
        allowed = "use letters, digits and _ . : -"
        raise BadValue(f"{what} {text!r} contains {wrong[0]!r}", hint=f"{allowed}, e.g. {example!r}")
    if text in (".", ".."):
        raise BadValue(f"{what} cannot be {text!r}: browsers treat it as a directory", hint="e.g. 'send_notice'")
    return text


class Unique(msgspec.Struct, frozen=True, kw_only=True):
    """At most one such job at a time: the same arguments, the same values of some of them, or the same key.

    It applies until the job finishes or starts, or, with a `period` in microseconds, for that time after the
    enqueueing.
    """

    by: str | tuple[str, ...] | None = "args"  # or the names of the arguments that count; None with a key
    key: str | None = None
    period: int | None = None
    until: str = "finish"  # or "start"
    on_conflict: str = "keep"  # or "replace", "reject"

    def __post_init__(self) -> None:
        _check_word("unique until", self.until, ("finish", "start"))
        _check_word("unique on_conflict", self.on_conflict, ("keep", "replace", "reject"))
        if self.key is None:
            msgspec.structs.force_setattr(self, "by", _argument_names(self.by))
        elif not isinstance(self.key, str) or not self.key.strip() or not self.key.isprintable():
            raise BadValue(f"unique key must be printable text, not {self.key!r}")
        elif self.by not in ("args", None):
            raise BadValue("unique takes a key or the names of arguments, not both")
        else:
            msgspec.structs.force_setattr(self, "by", None)


def parse_unique(value: object) -> Unique | None:
    """The value of a user's `unique=`: True, a key, names of arguments, or a dict of the fields of `Unique`.

    >>> parse_unique({"by": ["user_id"], "period": "10m"}).period
    600000000
    """
    if value is None or value is False:
        return None
    if value is True:
        return Unique()
    if isinstance(value, Unique):
        return value
    if isinstance(value, str):
        return Unique(key=value)
    if isinstance(value, list | tuple | set | frozenset):
        return Unique(by=_argument_names(value))
    if not isinstance(value, Mapping):
        raise BadValue(f"unique must be True, a key, names of arguments or a dict, not {value!r}")
    words = dict(value)
    if unknown := [word for word in words if word not in Unique.__struct_fields__]:
        rest = did_you_mean(str(unknown[0]), Unique.__struct_fields__)
        raise BadValue(f"unique has no {unknown[0]!r}{rest}", hint=f"it has {', '.join(Unique.__struct_fields__)}")
    return Unique(**words | {"period": _duration("unique period", words.get("period"))})


def unique_key(task: str, unique: Unique, args: Mapping[str, Any], signature: Signature | None = None) -> str:
    """The key that only one job may hold: "send_notice|5f2c…", independent of the order of the arguments and of whether
    a default was passed or left out. No name can contain the bar, so two tasks never share a key.

    `args` are the bound values or the decoded JSON object; both give the same key, except that a set has an order only
    in the former. A name that neither `args` nor the task's signature has is a BadValue.
    """
    if unique.key is not None:
        return f"{task}|{_shortened(unique.key)}"
    if signature is not None:
        args = {**signature.plain_defaults, **args}
    if isinstance(unique.by, tuple):
        _check_known(unique.by, task, args, signature)
        args = {name: args[name] for name in unique.by if name in args}
    return f"{task}|{_digest(canonical_json(_plain_numbers(msgspec.json.decode(canonical_json(dict(args))))))}"


def _plain_numbers(value: Any) -> Any:
    """JSON with whole numbers as integers: `1.0` and `1` are one number, and programs may write either."""
    if isinstance(value, float):
        return int(value) if value.is_integer() and abs(value) < _EXACT else value
    if isinstance(value, dict):
        return {name: _plain_numbers(one) for name, one in value.items()}
    return [_plain_numbers(one) for one in value] if isinstance(value, list) else value


def _digest(data: bytes) -> str:
    import hashlib  # OpenSSL is slow to load, and most programs that enqueue do not need it

    return hashlib.sha256(data).hexdigest()[:32]


def _shortened(key: str) -> str:
    return key if len(key) <= _KEY_LIMIT else f"{key[: _KEY_LIMIT - 33]}~{_digest(key.encode())}"


def _argument_names(value: object) -> str | tuple[str, ...]:
    if value == "args":
        return "args"
    names = (value,) if isinstance(value, str) else tuple(value) if isinstance(value, Iterable) else ()
    if not names or not all(isinstance(name, str) and name.isidentifier() for name in names):
        raise BadValue(f"unique by must be 'args' or names of arguments, not {value!r}", hint="e.g. ['user_id']")
    return tuple(sorted(set(names)))


def _check_known(names: tuple[str, ...], task: str, args: Iterable[str], signature: Signature | None) -> None:
    if signature and signature.takes_any_name:
        return
    known = {*args, *(signature.names if signature else ())}
    for name in names:
        if name not in known:
            raise BadValue(f"{task} cannot be unique by {name!r}: it has no such argument{did_you_mean(name, known)}")


def parse_redacted(value: object) -> tuple[str, ...]:
    """The value of a user's `redact=`: names of arguments, or of keys at any depth within them; `customer.ssn` is `ssn`
    directly within `customer`.

    >>> parse_redacted(["iban", "customer.ssn"])
    ('customer.ssn', 'iban')
    """
    names = () if value is None else (value,) if isinstance(value, str) else value
    if not isinstance(names, Iterable) or isinstance(names, Mapping):
        raise BadValue(f"redact must be names of arguments, not {value!r}", hint="e.g. ['iban', 'customer.ssn']")
    found: set[str] = set()
    for name in names:
        if not isinstance(name, str) or len(name) > NAME_LIMIT or not re.fullmatch(r"[\w-]+(\.[\w-]+)*", name):
            raise BadValue(
                f"redact takes names of arguments, or of keys within them, not {name!r}",
                hint="letters, digits, _ and -, with dots between the names of a path: 'customer.ssn'",
            )
        found.add(name)
    return tuple(sorted(found))


def _check_redacted(names: tuple[str, ...], task: str, signature: Signature) -> None:
    """A name that matches nothing was misspelt, and the value that it was meant for would be shown."""
    unknown = [name for name in names if name not in signature.names]
    if unknown and not signature.takes_any_name and not signature.may_hold_keys():
        near = did_you_mean(unknown[0], signature.names)
        raise BadValue(
            f"{task} cannot redact {unknown[0]!r}: it has no such argument{near}",
            why="by their type hints none of its arguments, nor its result, has keys",
        )


class TaskOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a task's jobs are queued, retried and limited. Durations are microseconds; None is "no limit"."""

    queue: str | None = None  # None: the task's own name
    priority: int = LOWEST_PRIORITY
    weight: int = 1  # the queue's share of turns
    max_attempts: int = 4
    backoff: Backoff = parse_backoff(None)
    retry_on: ErrorClasses | None = None  # None: every error
    give_up_on: ErrorClasses = ()
    per_error: tuple[ErrorRule, ...] = ()  # attempts and backoff of their own for some errors
    timeout: int | None = None  # longest single run
    idle_timeout: int | None = None  # longest silence between two check-ins
    expires: int | None = None  # longest wait in the queue
    total_timeout: int | None = None  # longest life
    isolate: bool | None = None  # None: depends on the kind of function and its limits
    memory_limit: int | None = None  # bytes that the process of an isolated job may hold
    max_halts: int = 3
    unique: Unique | None = None
    persistent: bool = False  # kept indefinitely
    skip_dead: bool = False  # dead jobs are deleted
    redact: tuple[str, ...] = ()  # names of arguments and keys whose values the web hides

    @classmethod
    def parse(cls, **words: Any) -> TaskOptions:
        """The options from a user's keywords; `retries=n` is n + 1 attempts.

        >>> TaskOptions.parse(retries=2, timeout="1m").max_attempts
        3
        """
        return cls().with_(**words)

    def with_(self, **words: Any) -> TaskOptions:
        """These options with some of them changed, for `task.using(...)`."""
        if "retries" in words and "max_attempts" in words:
            raise BadValue("give retries or max_attempts, not both", hint="retries=3 is the same as max_attempts=4")
        values = {}
        for name, value in words.items():
            if name not in _READERS:
                raise BadValue(f"there is no option {name!r}{did_you_mean(name, _READERS)}")
            values["max_attempts" if name == "retries" else name] = _READERS[name](name, value)
        return msgspec.structs.replace(self, **values)


def _whole(least: int, most: int, add: int = 0) -> Callable[[str, Any], int]:
    def read(name: str, value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise BadValue(f"{name} must be a whole number from {least} to {most:,}, not {value!r}")
        return int(value) + add

    return read


def _duration(name: str, value: Any) -> int | None:
    amount = None if value is None else microseconds(value, name)
    if amount == 0:
        raise BadValue(f"{name} must be longer than zero, not {value!r}", hint="leave it out for no limit")
    return amount


def _size(name: str, value: Any) -> int:
    """Bytes, as a number or as text such as "512MiB"."""
    found = re.fullmatch(r"(\d+)\s*(KiB|MiB|GiB|B)?", value.strip()) if isinstance(value, str) else None
    if found:
        value = int(found[1]) * {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}.get(found[2], 1)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1 << 20:
        raise BadValue(f"{name} must be at least 1 MiB, as bytes or text such as '512MiB', not {value!r}")
    return value


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise BadValue(f"{name} must be True or False, not {value!r}")
    return value


def _error_classes(name: str, value: Any) -> ErrorClasses:
    classes = tuple(value) if isinstance(value, Iterable) and not isinstance(value, str | type) else (value,)
    for each in classes:
        if not (isinstance(each, type) and issubclass(each, BaseException)):
            raise BadValue(f"{name} takes classes of errors, such as ConnectionError, not {each!r}")
    return classes


def _check_word(name: str, value: object, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise BadValue(f"{name} must be {' or '.join(map(repr, allowed))}, not {value!r}")


_READERS: dict[str, Callable[[str, Any], Any]] = {
    "queue": lambda _, value: None if value is None else check_name(value, "queue name"),
    "priority": _whole(LOWEST_PRIORITY, HIGHEST_PRIORITY),
    "weight": _whole(1, HEAVIEST),
    "retries": _whole(0, MOST_ATTEMPTS - 1, add=1),
    "max_attempts": _whole(1, MOST_ATTEMPTS),
    "backoff": lambda _, value: parse_backoff(value),
    "retry_on": lambda name, value: None if value is None else _error_classes(name, value),
    "give_up_on": _error_classes,
    "per_error": lambda _, value: error_rules(value),
    "timeout": _duration,
    "idle_timeout": _duration,
    "expires": _duration,
    "total_timeout": _duration,
    "isolate": lambda name, value: None if value is None else _flag(name, value),
    "memory_limit": lambda name, value: None if value is None else _size(name, value),
    "max_halts": _whole(1, MOST_HALTS),
    "unique": lambda _, value: parse_unique(value),
    "persistent": _flag,
    "skip_dead": _flag,
    "redact": lambda _, value: parse_redacted(value),
}


class RegisteredTask(msgspec.Struct, frozen=True, kw_only=True):
    """A function, or the `run` of a `Worker` object, under its name."""

    name: str
    function: Function
    options: TaskOptions
    signature: Signature
    module: str
    qualname: str
    line: int
    on_result: Callable[[Any], Any] | None = None

    @property
    def queue(self) -> str:
        """The queue of its jobs: its own, unless it joined another."""
        return self.options.queue or self.name

    @property
    def place(self) -> str:
        """Where it is defined, for messages: "shop.jobs, line 12"."""
        return f"{self.module}, line {self.line}"


class Registry:
    """The tasks of an app, by name."""

    def __init__(self) -> None:
        self._tasks: dict[str, RegisteredTask] = {}

    def add(self, target: Any, name: str | None = None, options: TaskOptions | None = None) -> RegisteredTask:
        """Register a function or a `Worker` object; the name defaults to its own.

        A function that is reloaded from the same place replaces itself; another one raises TaskExists, and so does
        another object of the same class.
        """
        task = _registered(target, name, options or TaskOptions())
        old = self._tasks.get(task.name)
        if old and not _is_same(old, task):
            raise TaskExists(
                f"the task {task.name!r} of {task.place} exists already: {old.module}.{old.qualname}, line {old.line}",
                hint="give one of them another name=…; a decorator between them needs functools.wraps",
            )
        self._tasks[task.name] = task
        return task

    def get(self, name: str) -> RegisteredTask:
        """The task of this name; TaskNotFound names the nearest."""
        try:
            return self._tasks[name]
        except KeyError:
            raise self._not_found(name) from None

    def names(self) -> list[str]:
        """All names, in alphabetical order."""
        return sorted(self._tasks)

    def __contains__(self, name: object) -> bool:
        return name in self._tasks

    def __iter__(self) -> Iterator[RegisteredTask]:
        return iter(list(self._tasks.values()))

    def _not_found(self, name: str) -> TaskNotFound:
        what = f"there is no task {name!r}{did_you_mean(str(name), self._tasks, most=3)}"
        if not self._tasks:
            return TaskNotFound(what, hint="none is registered; import the modules that hold your tasks")
        some = ", ".join(self.names()[:5]) + (" …" if len(self._tasks) > 5 else "")
        return TaskNotFound(what, hint=None if what.endswith("?") else f"there are {some}")


def weights_of(tasks: Iterable[RegisteredTask]) -> dict[str, int]:
    """The queues of these tasks; one that several tasks share has the highest of their weights."""
    weights: dict[str, int] = {}
    for task in tasks:
        weights[task.queue] = max(weights.get(task.queue, 1), task.options.weight)
    return weights


def _registered(target: Any, name: str | None, options: TaskOptions) -> RegisteredTask:
    target = _instance(target) if isinstance(target, type) else target
    function = _function_of(target)
    home = innermost(function)
    _refuse_generator(function)
    is_object = function is not target
    own_name = type(target).__name__ if is_object else getattr(function, "__name__", None) or home.__name__
    task = RegisteredTask(
        name=check_name(own_name if name is None else name, "task name"),
        function=function,
        options=options,
        signature=Signature.of(function),
        module=getattr(type(target) if is_object else home, "__module__", None) or "?",
        qualname=type(target).__qualname__ if is_object else getattr(home, "__qualname__", own_name),
        line=home.__code__.co_firstlineno if hasattr(home, "__code__") else 0,
        on_result=_own_method(target, "on_result") if is_object else None,
    )
    if options.unique and isinstance(options.unique.by, tuple):
        _check_known(options.unique.by, task.name, (), task.signature)
    _check_redacted(options.redact, task.name, task.signature)
    return task


def _refuse_generator(function: Function) -> None:
    """Calling a generator function runs none of its code: its jobs would complete without doing anything."""
    called = function if inspect.isroutine(function) else type(function).__call__
    both = (function, called)
    if any(map(inspect.isgeneratorfunction, both)) or any(map(inspect.isasyncgenfunction, both)):
        name = getattr(innermost(function), "__qualname__", repr(function)).rpartition("<locals>.")[2]
        raise BadValue(
            f"{name} is a generator function, and a task must do its work when it is called",
            why="calling one runs nothing until its items are read, and no code reads them",
            hint="return a list instead of yielding, or enqueue a job for each item with app.enqueue_many",
        )


def _instance(target: type) -> Any:
    try:
        return target()
    except TypeError as error:
        hint = f"register an object: {target.__name__}(…)"
        raise BadValue(f"{target.__name__} cannot be made without arguments", why=str(error), hint=hint) from error


def _function_of(target: Any) -> Function:
    """The callable of a job: the function itself, or an object's `run`."""
    if inspect.isroutine(target) or isinstance(target, functools.partial):
        return target
    if run := _own_method(target, "run"):
        return run
    if callable(target):
        return target  # type: ignore[no-any-return]
    kind = type(target).__name__
    for other in ("handle", "execute", "work", "perform", "process"):
        if callable(getattr(target, other, None)):
            raise BadValue(f"{kind} has no method run", hint=f"it has {other}: name it run")
    raise BadValue(f"{kind} is not a task", hint="register a function, or an object with a method run")


def _own_method(target: Any, name: str) -> Function | None:
    """The object's method, unless it is the empty one of `Worker`."""
    method = getattr(target, name, None)
    return method if callable(method) and getattr(type(target), name, None) is not getattr(Worker, name) else None


def _class_of(function: Function) -> type | None:
    """The class of the object whose method this is, or that is callable itself; reloaded, it is another class."""
    owner = getattr(function, "__self__", None)
    if inspect.isfunction(inspect.getattr_static(type(function), "__call__", None)) and not hasattr(
        function, "__wrapped__"
    ):
        owner = function  # not a decorator around a function, which counts instead
    return None if owner is None or isinstance(owner, type) or inspect.ismodule(owner) else type(owner)


def _presets(function: Function) -> tuple[object, ...] | None:
    """The arguments that a partial passes to its function; None for other callables."""
    return (function.args, function.keywords) if isinstance(function, functools.partial) else None


def _is_same(old: RegisteredTask, new: RegisteredTask) -> bool:
    """Is `new` the same as `old`: the same object, or the same code in a reloaded module?"""
    if old.function == new.function:
        return True
    if (old.module, old.qualname) != (new.module, new.qualname):
        return False
    if _class_of(old.function) is not None and _class_of(old.function) is _class_of(new.function):
        return False  # another object of the same class, which may have been made with other arguments
    if innermost(old.function) is innermost(new.function) and _presets(old.function) != _presets(new.function):
        return False  # another partial of the same function
    if "<locals>" in new.qualname and getattr(innermost(new.function), "__closure__", None):
        return False  # perhaps the `wrapper` of a decorator without functools.wraps, around another function
    # In a notebook or at a prompt a function is redefined repeatedly, each time on another line.
    return old.line == new.line or not hasattr(sys.modules.get(new.module), "__file__")
