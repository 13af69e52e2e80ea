"""Filters: which jobs a user means, from words to what a storage understands.

The app, the command line and the web pages take the same words. What cannot be understood is a BadValue that says what
to write instead.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, TypedDict

from packhorse.core.clock import Duration, from_datetime, microseconds
from packhorse.core.errors import BadValue, did_you_mean
from packhorse.core.job import FINAL, QUEUED, RETRYING, SCHEDULED, Job, State, parse_states
from packhorse.storage.records import Argument, Filter

STATE_WORDS = [*map(str, State), "waiting", "held", "unfinished", "finished", "failed", "halted", "pending"]
ORDERS = ("created", "due", "finished", "took")
"""By what lists can be ordered."""
SLOWEST_OF = 1_000
"""Among how many of the latest jobs those that took longest are looked for: no index has them in that order."""
_LARGEST = 10**9
_LONGEST = 2_000  # letters that are searched for: databases have limits of their own, and tell of them less plainly
_MADE_HERE = re.compile(r"0[0-9A-Fa-f-]*")
_COMPARED = re.compile(r"\s*(>=|<=|>|<|=)?\s*(.+?)\s*")


class JobFilter(TypedDict, total=False):
    """What `app.jobs(...)` and `app.count(...)` take; all that is given must hold. Only None does not matter: an empty
    list, mapping or text is refused, as it would mean every job to one and no job to another."""

    state: str | Iterable[str] | None
    queue: str | Iterable[str] | None
    """One or several; "mail.*" are all that begin with "mail."."""
    task: str | Iterable[str] | None
    worker: str | None
    cause: str | None
    schedule: str | None
    key: str | None
    """The unique key that it holds."""
    halted: bool | None
    min_priority: int | None
    priority: int | str | None
    """This or higher; "=3", "<3" and the like compare."""
    attempts: int | str | None
    """How often it was begun: 2, ">1", "<=3"."""
    took: Duration | None
    """How long its latest attempt ran: ">30s", "<1s"."""
    waited: Duration | None
    """How long it was in line before that."""
    args: Mapping[str, Any] | None
    """Values of arguments: {"user_id": 42, "order.id": 7}."""
    id: str | None
    """How its id begins."""
    error: str | None
    text: str | Sequence[str] | None
    """Found in its id, task, arguments or error; several: each of them."""
    since: Duration | datetime | None
    """Enqueued since then: so long ago, or a moment."""
    until: Duration | datetime | None
    order: str | None
    """created, due, finished or took."""


def parse_filter(words: JobFilter, now: Callable[[], int]) -> Filter:
    """The filter that a user's words mean; a word that is none is a BadValue. `now` is asked only for what needs it."""
    for name in words:
        if name not in JobFilter.__annotations__:
            raise BadValue(f"jobs cannot be found by {name!r}{did_you_mean(name, JobFilter.__annotations__)}")
        _check(name, words[name])  # type: ignore[literal-required]
    states, halted = _states(words.get("state"))
    order = words.get("order")
    found: dict[str, Any] = {
        "owner": words.get("worker"),
        "unique_key": words.get("key"),
        "halted": halted or words.get("halted"),
        **{name: words.get(name) for name in ("cause", "schedule", "error")},
        "text": _texts(words.get("text")),
        "id": _id(words.get("id")),
        **_names("queue", words.get("queue")),
        **_names("task", words.get("task")),
        **_priority(words.get("priority"), words.get("min_priority")),
        **_number("attempts", words.get("attempts")),
        **_span("took", words.get("took")),
        **_span("waited", words.get("waited")),
    }
    if words.get("took") is not None or words.get("waited") is not None:
        found["asked_at"] = now()
    if (since := words.get("since")) is not None:
        found["created_from"] = _moment(since, now)
    if (until := words.get("until")) is not None:
        found["created_to"] = _moment(until, now)
    found["args"] = tuple(_arguments(words.get("args") or {}))
    if order is not None:
        states, found["order"] = _ordered(order, states)
    return Filter(states=states, **found)


_KINDS: dict[str, type] = {"halted": bool, "min_priority": int}
_LEAVE_OUT = "leave it out, or give None, if it does not matter"
_ANY = ("state", "queue", "task", "priority", "attempts", "took", "waited", "args", "since", "until")


def _check(name: str, value: object) -> None:
    if name == "text" and isinstance(value, list | tuple) and value:
        for text in value:
            _check(name, "" if text is None else text)
        return
    if name == "args" and not isinstance(value, Mapping | None):
        raise BadValue(f"args must be names and values, not {value!r}", hint='e.g. {"user_id": 42}')
    if isinstance(value, str | Mapping) and not value:
        raise BadValue(f"{name} has no value", hint=_LEAVE_OUT)
    if isinstance(value, str) and "\0" in value:  # to SQLite text ends there, and what is empty is found everywhere
        raise BadValue(f"{name} has a NUL character, which cannot be searched for", hint="leave it out")
    if value is None or name in _ANY:
        return
    kind = _KINDS.get(name, str)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        told = {str: "text", bool: "True or False", int: "a whole number"}[kind]
        raise BadValue(f"{name} must be {told}, not {value!r}")
    if name in ("text", "error"):
        _check_length(name, str(value))


def _check_length(name: str, text: str) -> None:
    if len(text) > _LONGEST:
        hint = "text:… finds a part of it"
        raise BadValue(f"{name} has {len(text):,} characters; {_LONGEST:,} can be searched for", hint=hint)


def _texts(value: str | Sequence[str] | None) -> str | tuple[str, ...] | None:
    """One text as it is, several as those that must all be found."""
    if value is None or isinstance(value, str):
        return value
    return value[0] if len(value) == 1 else tuple(value)


# --- states and orders --------------------------------------------------------------------------------------------


def _states(state: str | Iterable[str] | None) -> tuple[frozenset[State], bool]:
    """The states that are meant, and whether only those of their jobs whose worker died: "halted" is queued again."""
    if not isinstance(state, str | Iterable | None):
        raise BadValue(f"state must be a word or several, not {state!r}", hint="e.g. 'dead' or ['queued', 'running']")
    if state is None:
        return frozenset(), False
    words = [state] if isinstance(state, str) else list(state)
    if not words:
        raise BadValue("state names no state", hint=_LEAVE_OUT)
    if any(str(word).lower() in ("halted", "halt") for word in words):
        if len(words) > 1:
            raise BadValue("halted cannot be asked for together with other states", hint="ask for it alone")
        return frozenset({QUEUED}), True
    return frozenset().union(*map(_parse, words)), False


def _parse(word: str) -> frozenset[State]:
    try:
        return parse_states(word)
    except BadValue as error:
        error.what += did_you_mean(str(word).lower(), STATE_WORDS)
        raise


_ORDERED = {"due": frozenset({SCHEDULED, RETRYING}), "finished": FINAL}


def _ordered(order: str, states: frozenset[State]) -> tuple[frozenset[State], str | None]:
    """The states that can be listed so, and the order if it is not their natural one."""
    if order not in ORDERS:
        raise BadValue(
            f"a list cannot be ordered by {order!r}{did_you_mean(order, ORDERS)}", hint=f"it can by {', '.join(ORDERS)}"
        )
    can = _ORDERED.get(order)
    if can is None:
        return states, order
    if states - can:
        raise BadValue(
            f"jobs that are {', '.join(sorted(states - can))} cannot be ordered by {order}",
            hint=f"only those that are {', '.join(sorted(can))}; order:created is for all",
        )
    return states or can, None


def slowest(jobs: Sequence[Job], now: int) -> list[Job]:
    """These jobs by how long their latest attempts ran, the longest first."""
    return sorted(jobs, key=lambda job: -1 if (took := job.took(now)) is None else took, reverse=True)


# --- names --------------------------------------------------------------------------------------------------------


def _names(noun: str, value: str | Iterable[str] | None) -> dict[str, Any]:
    """One name in full, or several, of which some may only say how they begin."""
    if value is None:
        return {}
    if not isinstance(value, Iterable):
        raise BadValue(f"{noun} must be text, or several, not {value!r}")
    names: list[Any] = value.split(",") if isinstance(value, str) else list(value)
    if not names:
        raise BadValue(f"{noun} names no {noun}", hint=_LEAVE_OUT)
    for name in names:
        if not isinstance(name, str):
            raise BadValue(f"{noun} must be text, or several, not {name!r}")
        if "*" in name[:-1] or name == "*":
            raise BadValue(
                f"{name!r} cannot be understood: a star stands at the end, and means all that begin so",
                hint=f"e.g. {noun}:{name.replace('*', '').strip('.') or 'mail'}*; text:… finds parts of a task's name",
            )
    if "" in names:
        raise BadValue(f"{noun} has an empty name in {','.join(names)!r}", hint=f"e.g. {noun}:a,b")
    if len(names) == 1 and not names[0].endswith("*"):
        return {noun: names[0]}
    return {f"{noun}s": frozenset(names)}


def _id(value: str | None) -> str | None:
    """How an id begins. Those that are made here are in lower case; one that a user has given may be in any."""
    if value is None:
        return None
    if "*" in value or "," in value:
        begins = re.split("[*,]", value)[0] or "01a1"
        raise BadValue(f"{value!r} is not how an id begins", hint=f"write one beginning, without a star: id:{begins}")
    return value.lower() if _MADE_HERE.fullmatch(value) else value


# --- numbers and times --------------------------------------------------------------------------------------------


def _compared(name: str, text: str) -> tuple[str, str]:
    """The sign, if there is one, and what stands behind it."""
    found = _COMPARED.fullmatch(text)
    if found is None:
        raise BadValue(f"{name} is compared with nothing", hint=f"e.g. {name}:{_EXAMPLES[name]}")
    return found[1] or "", found[2]


_EXAMPLES = {"attempts": ">1", "priority": ">=7", "took": ">30s", "waited": ">5m"}


def _limits(name: str, sign: str, number: int) -> dict[str, int | None]:
    match sign:
        case ">":
            return {f"min_{name}": number + 1}
        case ">=":
            return {f"min_{name}": number}
        case "<":
            return {f"max_{name}": number - 1}
        case "<=":
            return {f"max_{name}": number}
    return {f"min_{name}": number, f"max_{name}": number}


def _whole(name: str, value: int | str | None) -> tuple[str, int]:
    sign, text = _compared(name, str(value)) if not isinstance(value, bool) else ("", str(value))
    if not re.fullmatch(r"[0-9]+", text) or int(text[:20]) > _LARGEST:
        hint = f"e.g. {name}:{_EXAMPLES[name]}"
        raise BadValue(f"{name} must be a whole number, not {text[:40]!r}", hint=hint)
    return sign, int(text)


def _number(name: str, value: int | str | None) -> dict[str, int | None]:
    return {} if value is None else _limits(name, *_whole(name, value))


def _priority(value: int | str | None, least: int | None) -> dict[str, int | None]:
    """Without a sign it is this priority or a higher one."""
    if value is None:
        return {"min_priority": least}
    sign, number = _whole("priority", value)
    return {"min_priority": least} | _limits("priority", sign or ">=", number)


def _span(name: str, value: Duration | None) -> dict[str, int | None]:
    """Without a sign it is so long or longer: nothing takes exactly its time."""
    if value is None:
        return {}
    sign, rest = _compared(name, value) if isinstance(value, str) else ("", value)
    if sign == "=":
        raise BadValue(f"{name} is hardly ever exactly {rest}", hint=f"write {name}:>{rest} or {name}:<{rest}")
    return _limits(name, sign or ">=", microseconds(rest, name))


def _moment(value: Duration | datetime, now: Callable[[], int]) -> int:
    if isinstance(value, datetime):
        return from_datetime(value if value.tzinfo else value.astimezone())
    return past_moment(value, now())


def parse_moment(text: str) -> datetime:
    """The moment that a user wrote; BadValue if it is none."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        hint = "write ISO 8601, e.g. 2030-01-31T07:00 or 2030-01-31T07:00Z"
        raise BadValue(f"{text!r} is not a time", hint=hint) from None
    try:
        return moment if moment.tzinfo else moment.astimezone()
    except (ValueError, OverflowError):  # the first or the last day of all that calendars have
        raise BadValue(f"{text!r} is not a time that has a zone here", hint="name the zone, e.g. Z for UTC") from None


def past_moment(text: Duration, now: int) -> int:
    """A moment in the past: a time, or a duration before now."""
    try:
        return now - microseconds(text, "time")
    except BadValue:
        if not isinstance(text, str):
            raise
    try:
        return from_datetime(parse_moment(text))
    except BadValue as error:
        error.hint = f"write how long ago, e.g. 2h or 3d; or {(error.hint or '').removeprefix('write ')}"
        raise


# --- arguments ----------------------------------------------------------------------------------------------------


def _arguments(wanted: Mapping[str, Any], above: tuple[str, ...] = ()) -> Iterator[Argument]:
    """Each value with the path to it; values in values are paths, too."""
    if not wanted and above:
        raise BadValue(f"args.{'.'.join(above)} is compared with nothing", hint='e.g. {"order": {"id": 7}}')
    for name, value in wanted.items():
        path = (*above, *str(name).split("."))
        if "" in path:
            raise BadValue(f"the path {'.'.join(path)!r} has an empty name", hint="e.g. args.order.id:7")
        if isinstance(value, Mapping):
            yield from _arguments(value, path)
        else:
            written = _as_written(value)
            _check_length(f"args.{'.'.join(path)}", written)
            yield Argument(path, written)


def _as_written(value: object) -> str:
    if isinstance(value, str):
        return value
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, int | float):
        return repr(value)
    raise BadValue(f"an argument can be compared with text, a number, true, false or null, not with {value!r}")
