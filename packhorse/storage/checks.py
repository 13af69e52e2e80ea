"""Checks of arguments: every call of the contract that changes something passes here first, on every storage.

`contract.Storage` puts these checks before the calls of each storage, so a job that enqueue middleware has changed, a
call of a remote worker and a plain call from Python meet the same rules, and all storages hold the same values. What a
parameter or a field must be follows from its annotation and, where that says too little, from its name: `RULES`.

A value that breaks a rule is a `BadValue` that names its place, and nothing is stored. New jobs and completed attempts
come by the thousand and have a fast path: `_new_jobs`, `_outcomes`."""

from __future__ import annotations

import functools
import inspect
import math
import re
import types
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from enum import Enum
from typing import Any, Union, get_args, get_origin, get_type_hints

import msgspec

from packhorse.core.clock import END, LATEST, LONGEST
from packhorse.core.codec import DEPTH_LIMIT, is_too_deep
from packhorse.core.errors import BadValue
from packhorse.core.event import Kind, Subject, known_kind
from packhorse.core.job import (
    HIGHEST_PRIORITY,
    LOWEST_PRIORITY,
    OF_TASK,
    OPERATOR_ACTIONS,
    RANKS,
    SETTLED_LATER,
    NewJob,
    Token,
)
from packhorse.core.outcome import Completed, Outcome
from packhorse.core.retry import Backoff
from packhorse.core.task import HEAVIEST, MOST_ATTEMPTS, MOST_HALTS

NAME_LIMIT = 255
"""Characters of a name or an id: the narrowest column of all databases."""
LABEL_LIMIT = 1_000
"""Characters of the names of people: `by`, `created_by`."""
TEXT_LIMIT = 1_000_000
"""Characters of a message, a reason, a line."""
FACTS_LIMIT = 1_000_000
"""Bytes, as JSON, of the facts about a worker, a task or a schedule."""

Check = Callable[[Any], None]
_read = msgspec.json.Decoder().decode  # reads everything: JSON may have numbers that Python cannot read
_NO_JSON = (msgspec.DecodeError, UnicodeEncodeError, RecursionError)
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_BIG = 1 << 63
_MOST = (1 << 31) - 1  # a column of four bytes


class _Wrong(Exception):
    """A value breaks a rule. The path to it is built on the way up."""

    def __init__(self, what: str, hint: str | None = None) -> None:
        super().__init__(what)
        self.what, self.hint, self.path = what, hint, ""


def _at(place: str | int | tuple[Any], check: Check, value: Any) -> None:
    """Check this value, which is at this place of another: a name, an index, or, in brackets, a key."""
    try:
        check(value)
    except _Wrong as wrong:
        shown = place if isinstance(place, str) else f"[{_shown(place[0] if isinstance(place, tuple) else place)}]"
        wrong.path = f"{shown}{wrong.path}"
        raise


# --- rules ------------------------------------------------------------------------------------------------------------


def _shown(value: object) -> str:
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 - the value's own code may raise anything
        text = f"a {type(value).__name__}"
    return text if len(text) <= 60 else f"{text[:57]}…"


def text(least: int = 0, most: int = TEXT_LIMIT) -> Check:
    """Plain text of this length. No storage takes NUL, because PostgreSQL cannot hold it."""

    def check(value: Any) -> None:
        if type(value) is not str:
            raise _Wrong(f"must be text, not {_shown(value)}")
        if not least <= len(value) <= most:
            raise _Wrong(f"has {len(value):,} characters, {_shown(value)}", f"from {least:,} to {most:,}")
        if "\0" in value:
            raise _Wrong(f"has a NUL character, {_shown(value)}", "no storage takes one; remove it")
        if not value.isascii():
            try:
                value.encode()
            except UnicodeEncodeError:
                raise _Wrong(f"has half a character (a lone surrogate), {_shown(value)}") from None

    return check


def label(least: int = 0, most: int = NAME_LIMIT) -> Check:
    """Text of one line."""
    plain = text(least, most)

    def check(value: Any) -> None:
        plain(value)
        if not value.isprintable() and _CONTROL.search(value):
            raise _Wrong(f"has a line end or another control character, {_shown(value)}", "leave it out")

    return check


def _name(value: Any) -> None:
    _plain_name(value)
    if value in (".", ".."):
        raise _Wrong(f"is {value!r}, which browsers and shells take for a folder", "choose another name")


_plain_name = label(1)


def whole(least: int = -_BIG, most: int = _BIG - 1) -> Check:
    """A whole number; True is not one."""

    def check(value: Any) -> None:
        if type(value) is not int:
            raise _Wrong(f"must be a whole number, not {_shown(value)}")
        if not least <= value <= most:
            raise _Wrong(f"is {_shown(value)}", f"from {least:,} to {most:,}")

    return check


def _number(value: Any) -> None:
    if type(value) not in (int, float) or not math.isfinite(value) or abs(value) >= _BIG:
        raise _Wrong(f"must be a finite number, not {_shown(value)}")


moment = whole(0, END)
duration = whole(0, LONGEST)


def _one_of(*words: str) -> Check:
    def check(value: Any) -> None:
        if type(value) is not str or value not in words:
            raise _Wrong(f"must be {', '.join(words[:-1])} or {words[-1]}, not {_shown(value)}")

    return check


def _json(value: Any) -> None:
    """JSON text of any kind, nested as deeply as arguments may be."""
    if type(value) is not str:
        raise _Wrong(f"must be JSON text, not {_shown(value)}", "encode it: packhorse stores text")
    try:
        _read(value)
    except _NO_JSON as error:
        raise _Wrong(f"is not JSON that can be read: {_shown(value)} ({error})") from None
    if is_too_deep(value.encode()):
        raise _Wrong(f"is nested deeper than {DEPTH_LIMIT} levels", "store it elsewhere and pass a reference")


def _facts(value: Any) -> None:
    """A dict that is stored as JSON."""
    if not isinstance(value, Mapping):
        raise _Wrong(f"must be a dict, not {_shown(value)}")
    try:
        packed = msgspec.json.encode(value)
        _read(packed)
    except (TypeError, ValueError, OverflowError, UnicodeError, RecursionError, msgspec.MsgspecError) as error:
        raise _Wrong(f"cannot become JSON: {error}") from None
    if len(packed) > FACTS_LIMIT:
        raise _Wrong(f"takes {len(packed):,} bytes as JSON", f"at most {FACTS_LIMIT:,}")
    if is_too_deep(packed):
        raise _Wrong(f"is nested deeper than {DEPTH_LIMIT} levels")


@functools.lru_cache(maxsize=1_000)
def _read_backoff(value: str) -> None:
    Backoff.from_json(value)


def _backoff(value: Any) -> None:
    _json(value)
    try:
        _read_backoff(value)
    except (BadValue, TypeError) as error:
        raise _Wrong(f"cannot be read: {error}") from None


def _kind(value: Any) -> None:
    try:
        known_kind(value)
    except (ValueError, TypeError):
        raise _Wrong(f"must be a kind of event, not {_shown(value)}", f"one of {', '.join(Kind)}") from None


def _worker_subject(value: Any) -> None:
    if value not in (Subject.WORKER, Subject.FOREMAN) or not isinstance(value, Subject):
        raise _Wrong(f"must be worker or foreman, not {_shown(value)}")


def _instance(kind: type) -> Check:
    def check(value: Any) -> None:
        if not isinstance(value, kind):
            raise _Wrong(f"must be a {kind.__name__}, not {_shown(value)}")

    return check


_id = label(1)
_count = whole(0, _MOST)

RULES: dict[str, Check] = {
    # By the name of a parameter or a field; `Struct.field` and `call.parameter` go before the name alone.
    **dict.fromkeys(("task", "queue", "TaskInfo.name", "ScheduleInfo.name"), _name),
    **dict.fromkeys(("id", "job_id", "job_ids", "job", "owner", "owners", "foreman", "client_id", "subscriber"), _id),
    **dict.fromkeys(("copied_from", "last_job_id", "last_owner", "worker", "rescue_owner.ran", "leave.ran"), _id),
    **dict.fromkeys(("schedule", "name", "host", "version", "Token.job_id", "Token.owner"), label()),
    **dict.fromkeys(("by", "created_by", "paused_by", "silenced_by", "ClientInfo.name"), label(0, LABEL_LIMIT)),
    **dict.fromkeys(("key", "cause", "unique_key"), label(1, 512)),
    **dict.fromkeys(("args", "meta", "result", "error"), _json),
    **dict.fromkeys(("at", "slot", "next_at", "last_at", "paused_at", "joined_at", "beat_at", "announced_at"), moment),
    **dict.fromkeys(("created_at", "updated_at", "queued_at", "first_queued_at", "started_at", "ran_until"), moment),
    **dict.fromkeys(("finished_at", "expire_at", "abort_at", "checkin_at"), moment),
    **dict.fromkeys(("delay", "timeout", "idle_timeout", "expires", "total_timeout", "period", "lease"), duration),
    **dict.fromkeys(("ran", "ago", "agos", "retry_in", "duration"), duration),
    **dict.fromkeys(("pid", "concurrency", "attempt", "limit", "progress", "slots", "least", "most"), _count),
    **dict.fromkeys(("attempts", "failures", "halts", "losses", "snoozes"), _count),
    "LogLine.id": whole(),
    "Move.section": _instance(str),
    "WorkerInfo.queues": text(),
    "WorkerInfo.subject": _worker_subject,
    "announce.order": _one_of("turns", "created"),
    "append_log.keep": _count,
    "backoff": _backoff,
    "due_at": whole(0, LATEST),
    "fence": whole(),
    "max_attempts": whole(OF_TASK, MOST_ATTEMPTS),
    "max_halts": whole(1, MOST_HALTS),
    "missed": _one_of("none", "one", "all"),
    "on_conflict": _one_of("keep", "replace", "reject"),
    "outcome": _one_of("enqueued", "skipped", "missed"),
    "overlap": _one_of("allow", "skip"),
    "priority": whole(LOWEST_PRIORITY, HIGHEST_PRIORITY),
    "rank": whole(RANKS[0], RANKS[-1]),
    "seq": whole(0),
    "queues": whole(1, HEAVIEST),  # weights by queue
    "record_operator_event.kind": _kind,
    "wait_and_reserve.timeout": _number,
    "until": _one_of("finish", "start"),
}


# --- from annotations -------------------------------------------------------------------------------------------------


def _check_of(hint: Any, *names: str) -> Check:
    """The check for a value of this type under these names, the closest first."""
    rule = next((RULES[name] for name in names if name in RULES), None)
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return _any_of([_check_of(one, *names) for one in inner if one is not types.NoneType], types.NoneType in inner)
    if origin in (list, tuple, Sequence, Collection, frozenset, Iterable):
        return _each(_check_of(inner[0], *names))
    if origin in (dict, Mapping):
        return _facts if inner[1] is Any else _mapping(_id, _check_of(inner[1], *names))
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return _struct(hint)
    if rule is not None:
        return rule
    if isinstance(hint, type) and issubclass(hint, Enum):
        return _instance(hint)
    return _PLAIN.get(hint, _facts)


_PLAIN: dict[Any, Check] = {str: text(), int: whole(), float: _number, bool: _instance(bool)}


def _any_of(checks: Sequence[Check], may_be_none: bool) -> Check:
    """One of several types; None is handled first, as it is by far the most frequent."""

    def check(value: Any) -> None:
        if value is None and may_be_none:
            return
        wrongs: list[_Wrong] = []
        for one in checks:
            try:
                one(value)
            except _Wrong as wrong:
                wrongs.append(wrong)
            else:
                return
        raise max(wrongs, key=lambda wrong: len(wrong.path))  # of the type that fits best

    return check


def _list(value: Any) -> None:
    if type(value) is list or type(value) is tuple:  # nearly always
        return
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Collection):
        raise _Wrong(f"must be a list, not {_shown(value)}")


def _each(check_one: Check) -> Check:
    def check(value: Any) -> None:
        _list(value)
        for number, one in enumerate(value):
            _at(number, check_one, one)

    return check


def _mapping(check_key: Check, check_value: Check) -> Check:
    def check(value: Any) -> None:
        if not isinstance(value, Mapping):
            raise _Wrong(f"must be a dict, not {_shown(value)}")
        for key, one in value.items():
            _at((key,), check_key, key)
            _at((key,), check_value, one)

    return check


@functools.cache
def field_checks(kind: type[msgspec.Struct]) -> dict[str, Check]:
    """The check of each field of this type."""
    hints = get_type_hints(kind)
    return {name: _check_of(hints[name], f"{kind.__name__}.{name}", name) for name in kind.__struct_fields__}


def wrong_with(check: Check, value: Any) -> str | None:
    """What is wrong with a value; None: nothing."""
    try:
        check(value)
    except _Wrong as wrong:
        return f"{wrong.path} {wrong.what}".lstrip()
    return None


@functools.cache
def _struct(kind: type[msgspec.Struct]) -> Check:
    fields = [(name, f".{name}", check) for name, check in field_checks(kind).items()]
    together = _TOGETHER.get(kind.__name__)

    def check(value: Any) -> None:
        if type(value) is not kind:
            raise _Wrong(f"must be a {kind.__name__}, not {_shown(value)}")
        for name, place, check_field in fields:
            _at(place, check_field, getattr(value, name))
        if together is not None:
            together(value)

    return check


def _schedule(schedule: Any) -> None:
    """Its cron text and zone are valid, and skipped slots are times."""
    from packhorse.core.cron import Cron  # not before it is needed: it brings cronsim along

    try:
        Cron(schedule.cron, schedule.tz)
    except BadValue as error:
        raise _Wrong(f"has no plan that can be read: {error}") from None
    if (skipped := schedule.options.get("skip")) is not None:
        moment(skipped)


_TOGETHER: dict[str, Check] = {
    "ScheduleInfo": _schedule,
}
"""Checks of several fields of one value together."""


# --- fast paths -----------------------------------------------------------------------------------------------------

_SHORT = 2 * DEPTH_LIMIT  # too short to be nested too deeply
_check_job = _struct(NewJob)
_BLANK = NewJob("id", "task", "queue")
_AT_ONCE, _USUAL_HALTS = _BLANK.delay, _BLANK.max_halts
_check_outcome = _check_of(Outcome)
_known_names: set[str] = set()
"""Names of tasks and queues that are valid."""
_MOST_NAMES = 10_000


def _new_jobs(jobs: Sequence[NewJob]) -> None:
    """Most jobs have little more than a name and arguments: check them without a call for each. All others take the
    slow path. A field that is not named here would go unchecked."""
    if type(jobs) is not list:
        _list(jobs)
    for number, new in enumerate(jobs):
        if type(new) is NewJob:
            job_id, args = new.id, new.args
            if (
                type(job_id) is type(args) is type(new.task) is type(new.queue) is str
                and new.task in _known_names
                and new.queue in _known_names
                and job_id
                and len(job_id) <= NAME_LIMIT
                and job_id.isprintable()
                and new.due_at is new.timeout is new.idle_timeout is new.expires is new.total_timeout is None
                and new.unique is None
                and new.created_by is new.subscriber is new.schedule is new.backoff is new.meta is None
                and new.copied_from is None
                and new.chosen is None
                and (
                    (  # the very defaults
                        new.priority is LOWEST_PRIORITY
                        and new.delay is _AT_ONCE
                        and new.max_attempts is OF_TASK
                        and new.max_halts is _USUAL_HALTS
                        and new.persistent is False
                    )
                    or _are_sound_options(new)
                )
            ):
                try:
                    _read(args)
                except _NO_JSON:
                    pass
                else:
                    if len(args) <= _SHORT or not is_too_deep(args.encode()):
                        continue
        _at(number, _check_job, new)
        if len(_known_names) < _MOST_NAMES:
            _known_names.update((new.task, new.queue))


def _are_sound_options(new: NewJob) -> bool:
    return (
        type(new.priority) is type(new.delay) is type(new.max_attempts) is type(new.max_halts) is int
        and LOWEST_PRIORITY <= new.priority <= HIGHEST_PRIORITY
        and 0 <= new.delay <= LONGEST
        and OF_TASK <= new.max_attempts <= MOST_ATTEMPTS
        and 0 < new.max_halts <= MOST_HALTS
        and type(new.persistent) is bool
    )


def is_sound_json(packed: str) -> bool:
    """Return whether this is JSON that can be read and is not nested too deeply."""
    try:
        _read(packed)
    except _NO_JSON:
        return False
    return len(packed) <= _SHORT or not is_too_deep(packed.encode())


def _outcomes(outcomes: Sequence[Outcome]) -> None:
    """Most outcomes are plain completions: check them without a call for each."""
    if type(outcomes) is not list:
        _list(outcomes)
    sound_owner = None
    for number, outcome in enumerate(outcomes):
        if type(outcome) is Completed and type(outcome.token) is Token:
            token, result, job_id, fence = outcome.token, outcome.result, outcome.token.job_id, outcome.token.fence
            owner, ran, ago = token.owner, outcome.ran, outcome.ago
            if type(owner) is str and owner != sound_owner and wrong_with(RULES["Token.owner"], owner) is None:
                sound_owner = owner
            if (
                type(owner) is type(job_id) is str
                and owner == sound_owner
                and len(job_id) <= NAME_LIMIT
                and job_id.isprintable()
                and type(fence) is type(ran) is type(ago) is int
                and 0 <= fence < _BIG
                and 0 <= ran <= LONGEST
                and (ago == 0 or 0 < ago <= LONGEST)
                and (result is None or (type(result) is str and (result == "null" or is_sound_json(result))))
            ):
                continue
        _at(number, _check_outcome, outcome)


_check_queues = _mapping(_instance(str), RULES["queues"])  # not checked as names: any stored queue may be served
_sound_queues: dict[str, int] = {}
"""The valid queues of the last call; a worker sends the same ones again and again."""


def _queues(queues: Mapping[str, int]) -> None:
    global _sound_queues
    if queues == _sound_queues and type(queues) is dict:
        return
    _check_queues(queues)
    _sound_queues = dict(queues)


def _options(options: Mapping[str, Any] | None) -> None:
    """Options that a task sets on a waiting job."""
    for name in options or ():
        if name not in SETTLED_LATER or name == "queue":
            raise _Wrong(f"has {name!r}, which is no option of a waiting job")
    _check_job(msgspec.structs.replace(_BLANK, **(options or {})))


def _anything(value: Any) -> None:
    """Not checked here."""


# --- before a call ----------------------------------------------------------------------------------------------------

WRITES: frozenset[str] = frozenset(
    {
        "enqueue", "enqueue_within", "announce",
        "reserve", "wait_and_reserve", "start", "finish", "finish_and_reserve", "release", "check_in", "append_log",
        *OPERATOR_ACTIONS, "pause", "resume",
        "promote", "expire", "rescue", "rescue_owner", "prune",
        "put_schedules", "tick", "pause_schedule", "record_operator_event", "remove_schedule",
        "join", "heartbeat", "leave", "record_stat", "order", "join_client", "leave_client", "subscribe", "acknowledge",
        "silence_failure", "set_move", "load",
    }
)  # fmt: skip
"""The calls of the contract that change something, or could."""


_SPECIAL: dict[tuple[str, str], Check] = {
    ("enqueue", "jobs"): _new_jobs,
    ("enqueue_within", "jobs"): _new_jobs,
    ("enqueue_within", "connection"): _anything,
    ("tick", "jobs"): _new_jobs,
    ("finish", "outcomes"): _outcomes,
    ("finish_and_reserve", "outcomes"): _outcomes,
    ("reserve", "queues"): _queues,
    ("wait_and_reserve", "queues"): _queues,
    ("finish_and_reserve", "queues"): _queues,
    ("set_queue", "options"): _options,
    ("load", "rows"): _anything,  # as another storage had them; damage shows when they are read
}


def checked(name: str, call: Callable[..., Any], contract: Callable[..., Any]) -> Callable[..., Any]:
    """This call of a storage, the operation `name` of the contract, with its checks."""
    by_name: dict[str, Check] | None = None  # made at the first call

    @functools.wraps(call)
    def check_first(self: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal by_name
        if by_name is None:
            by_name = _checks_before(name, contract)
        one = ""
        try:
            # The call itself refuses surplus and unknown arguments.
            for (one, check), value in zip(by_name.items(), args):  # noqa: B007, B905 - strict costs as much as a check
                check(value)
            for one, value in kwargs.items():
                if one in by_name:
                    by_name[one](value)
        except _Wrong as wrong:
            raise BadValue(f"{name}: {one}{wrong.path} {wrong.what}", hint=wrong.hint) from None
        return call(self, *args, **kwargs)

    return check_first


def _checks_before(name: str, contract: Callable[..., Any]) -> dict[str, Check]:
    """The checks of the arguments of this call, by name."""
    hints = get_type_hints(contract)
    names = list(inspect.signature(contract).parameters)[1:]
    return {one: _SPECIAL.get((name, one)) or _check_of(hints[one], f"{name}.{one}", one) for one in names}
