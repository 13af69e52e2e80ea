"""Stored records that are damaged: by hand, by a bug, or by a disk.

No such record may fail a worker, a chore or a list. A reader gets the nearest valid value, with a description of what
is wrong: `repaired` makes it. A job becomes a `BrokenJob`, whose error has everything that was stored.
`contract.Storage` checks the jobs that a storage returns: lists show broken ones as such, and a broken job that a
worker would get becomes dead instead, so that it blocks nothing, and an operator can look at it and delete it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, TypeVar, get_args, get_type_hints

import msgspec

from packhorse.core.clock import END, LONGEST
from packhorse.core.job import DEAD, FINAL, HIGHEST_PRIORITY, LOWEST_PRIORITY, OF_TASK, RANKS, Job, Reason
from packhorse.core.outcome import MESSAGE_LIMIT, TRACEBACK_LIMIT, Failed, Failure
from packhorse.storage.checks import field_checks, is_sound_json, wrong_with

S = TypeVar("S", bound=msgspec.Struct)

TYPE = "BrokenRecord"
"""The type of the error of a broken job."""
_JSON = ("args", "meta", "result", "error", "backoff")
_TIMES = (
    "created_at", "updated_at", "due_at", "queued_at", "first_queued_at", "started_at", "ran_until", "finished_at",
    "expire_at", "abort_at", "checkin_at",
)  # fmt: skip


class BrokenJob(Job, frozen=True, gc=False):
    """A job whose record is invalid; its error says what is wrong."""


def is_broken(job: Job) -> bool:
    """Return whether its record is broken, or was when the job was made dead for it."""
    return isinstance(job, BrokenJob) or (job.state is DEAD and (job.error or "").startswith(f'{{"type":"{TYPE}"'))


def repaired(kind: type[S], raw: Mapping[str, Any]) -> tuple[S, list[str]]:
    """Return a value of this kind from what is valid of a stored record, and what is wrong with the rest."""
    values: dict[str, Any] = {}
    faults: list[str] = []
    for name, (check, instead, words) in _fields(kind).items():
        value = raw.get(name, msgspec.NODEFAULT)
        if words is not None and type(value) is str:
            value = words.get(value, value)
        fault = "is missing" if value is msgspec.NODEFAULT else wrong_with(check, value)
        if fault is not None and not (value is msgspec.NODEFAULT and instead is not msgspec.NODEFAULT):
            faults.append(f"{name} {fault}")
        if fault is None:
            values[name] = value
        elif instead is not msgspec.NODEFAULT:
            values[name] = instead
        else:
            values[name] = _EMPTY.get(name, "?")
    return kind(**values), faults


_EMPTY: dict[str, Any] = {
    "state": DEAD,
    "args": "{}",
    "priority": LOWEST_PRIORITY,
    "rank": RANKS[-1],
    **dict.fromkeys(("seq", "created_at", "updated_at", "at", "pid", "attempt", "slot"), 0),
}
"""What replaces an invalid field without a default."""


@functools.cache
def _fields(kind: type[msgspec.Struct]) -> dict[str, tuple[Callable[[Any], None], Any, dict[str, Any] | None]]:
    """By name: the check, the default, and the words of an enum, if it is one."""
    hints, checks = get_type_hints(kind), field_checks(kind)
    found = {}
    for field in msgspec.structs.fields(kind):
        instead = field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
        enums = [one for one in (hints[field.name], *get_args(hints[field.name])) if _is_enum(one)]
        words = {member.value: member for member in enums[0]} if enums else None
        found[field.name] = (checks[field.name], instead, words)
    return found


def _is_enum(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, Enum)


def broken_job(raw: Mapping[str, Any], why: str | None = None) -> BrokenJob:
    """The job of a record with these fields. `why` says what is wrong apart from a field."""
    job, faults = repaired(BrokenJob, {**raw, "persistent": bool(raw.get("persistent"))})
    problem = "; ".join(([why] if why else []) + faults)
    stored = "\n".join(f"{name} = {_shown(value)}" for name, value in raw.items() if value is not None)
    failure = Failure(TYPE, _clean(f"the stored record of this job is invalid: {problem}", MESSAGE_LIMIT),
        _clean(f"As it is stored:\n{stored}", TRACEBACK_LIMIT))  # fmt: skip
    ended = job.finished_at if job.state not in FINAL or job.finished_at is not None else job.updated_at
    return msgspec.structs.replace(
        job, error=failure.to_json(), cause=failure.cause(job.task), reason=Reason.FAILED, finished_at=ended
    )


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 2_000 else f"{text[:2_000]}… ({len(text):,} characters)"


def _clean(text: str, most: int) -> str:
    return text.replace("\0", "\\0").encode("utf-8", "backslashreplace").decode()[:most]


# --- other records ----------------------------------------------------------------------------------------------------


def facts_in(text: str | bytes | None) -> dict[str, Any]:
    """A stored JSON object; anything else is returned under `broken`, shortened."""
    try:
        found = msgspec.json.decode(text or "")
        if isinstance(found, dict):
            return found
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        pass
    return {"broken": _clean(_shown(text), 300)}


def names_in(text: str | bytes) -> list[str]:
    """A stored list of names; empty if it is something else."""
    try:
        return msgspec.json.decode(text, type=list[str])
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return []


def record_in(kind: type[S], packed: bytes, **known: Any) -> S:
    """The record in this JSON; if it is damaged, what can be read of it, with these known fields."""
    try:
        return msgspec.json.decode(packed, type=kind)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return repaired(kind, {**facts_in(packed), **known})[0]


# --- results ---------------------------------------------------------------------------------------------------------


def shown(job: Job) -> Job:
    """The job itself, or a `BrokenJob` if its record is invalid."""
    return job if type(job) is not Job or _is_sound(job) else broken_job(_raw(job))


def _raw(job: Job) -> dict[str, Any]:
    return {name: getattr(job, name) for name in Job.__struct_fields__}


def _is_sound(job: Job) -> bool:
    for name in _JSON:
        text = getattr(job, name)
        if text is not None and not is_sound_json(text):
            return False
    if job.backoff is not None and wrong_with(_fields(BrokenJob)["backoff"][0], job.backoff):
        return False
    for name in _TIMES:
        at = getattr(job, name)
        if at is not None and not 0 <= at <= END:
            return False
    return (
        LOWEST_PRIORITY <= job.priority <= HIGHEST_PRIORITY
        and 0 <= (job.timeout or 0) <= LONGEST
        and 0 <= (job.idle_timeout or 0) <= LONGEST
        and 0 <= (job.expires or 0) <= LONGEST
        and 0 <= (job.total_timeout or 0) <= LONGEST
        and job.max_attempts >= OF_TASK
        and job.max_halts > 0
    )


def refusal(job: Job) -> Failed | None:
    """The outcome of a reserved job that no worker can run because its record is invalid; None: it can run. Its
    arguments are not checked against the task: they fail as in any job."""
    job = shown(job)
    return Failed(job.token, Failure.from_json(job.error or "{}")) if isinstance(job, BrokenJob) else None


def without_broken(storage: Any, jobs: list[Job]) -> list[Job]:
    """Return those of the reserved jobs that can run. The others become dead here."""
    odd = [  # most jobs have none of these fields; a call for each would be slow
        job
        for job in jobs
        if not (
            type(job) is Job
            and job.timeout is job.idle_timeout is job.expires is job.total_timeout is None
            and job.backoff is job.meta is None
            and job.max_attempts >= OF_TASK
            and job.max_halts > 0
        )
    ]
    refused = [failed for failed in map(refusal, odd) if failed is not None]
    if not refused:
        return jobs
    storage.finish(refused)
    ended = {failed.token.job_id for failed in refused}
    return [job for job in jobs if job.id not in ended]


def _reserved(storage: Any, jobs: list[Job], *words: Any, **named: Any) -> list[Job]:
    """As `without_broken`; if none of them can run, reserve others."""
    found = without_broken(storage, jobs)
    if not found and jobs:
        found = storage.reserve(*words, **named)
    return found


def _reserved_then(storage: Any, answer: Any, *words: Any, **named: Any) -> Any:
    verdicts, jobs = answer
    wanted = {name: value for name, value in named.items() if name != "outcomes"}
    return verdicts, _reserved(storage, jobs, *words[1:], **wanted)


def _page(page: Any) -> Any:
    return msgspec.structs.replace(page, jobs=[shown(job) for job in page.jobs])


def _dumped(dumped: Any) -> Any:
    """Another storage may refuse an invalid record: it gets the repaired one."""
    return msgspec.structs.replace(dumped, rows=[shown(row) if type(row) is Job else row for row in dumped.rows])


ANSWERS: dict[str, Callable[..., Any]] = {
    "get": lambda _, job, *__, **___: None if job is None else shown(job),
    "get_many": lambda _, jobs, *__, **___: [shown(job) for job in jobs],
    "outcomes_for": lambda _, jobs, *__, **___: [shown(job) for job in jobs],
    "dump": lambda _, dumped, *__, **___: _dumped(dumped),
    "find": lambda _, page, *__, **___: _page(page),
    "find_by_id": lambda _, page, *__, **___: _page(page),
    "reserve": _reserved,
    "wait_and_reserve": lambda storage, jobs, *_, **__: without_broken(storage, jobs),
    "finish_and_reserve": _reserved_then,
}
"""What is done to the result of a call that returns jobs: (storage, result, *arguments)."""


def with_checked_jobs(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
    """This call of a storage, with a check of the jobs that it returns."""
    look = ANSWERS[name]

    @functools.wraps(call)
    def answer(self: Any, *args: Any, **kwargs: Any) -> Any:
        return look(self, call(self, *args, **kwargs), *args, **kwargs)

    return answer
