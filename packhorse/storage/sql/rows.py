"""Converts rows of the SQL tables to jobs, events and other records, and back. Used for every job, so each function
does only what it must."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Any

import msgspec
from msgspec.structs import astuple

from packhorse.core.errors import BadValue
from packhorse.core.event import Event, kind_of, subject_of
from packhorse.core.job import Job, Reason, State
from packhorse.storage.broken_records import broken_job, facts_in, names_in
from packhorse.storage.records import ClientInfo, QueueInfo, ScheduleInfo, WorkerInfo

Row = tuple[Any, ...]
EventRow = tuple[int, str, str, str | None, str | None, str | None, str, int, str]
"""(at, kind, subject, job_id, queue, state, owner, fence, data); the last three are empty rather than None, which
SQLite's driver binds much faster, and the statement turns them into NULL."""

FIELDS = Job.__struct_fields__

_ARGS = FIELDS.index("args")
_OPTIONS = ScheduleInfo.__struct_fields__.index("options")
_STATE = FIELDS.index("state")
_ABORT_REASON = FIELDS.index("abort_reason")
_REASON = FIELDS.index("reason")
_PERSISTENT = FIELDS.index("persistent")
_STATES = {state.value: state for state in State}
_REASONS: dict[str | None, Reason | None] = {None: None, **{reason.value: reason for reason in Reason}}

# What a change may touch; `seq` comes last, for the WHERE clause.
CHANGING_FIELDS = tuple(field for field in FIELDS if field not in ("id", "seq", "created_at"))
CHANGING = {field: CHANGING_FIELDS.index(field) for field in ("args", "state", "reason", "abort_reason", "persistent")}

_changing_values = attrgetter(*CHANGING_FIELDS, "seq")


def job_of(row: Row) -> Job:
    """The job in a row of its columns, in the order of the `Job` fields; a `BrokenJob` if its values are unknown."""
    fields = list(row)
    state = _STATES.get(fields[_STATE])
    if state is None or fields[_ARGS] is None:
        return broken_job(dict(zip(FIELDS, row, strict=True)))
    fields[_STATE] = state
    fields[_PERSISTENT] = bool(fields[_PERSISTENT])
    if fields[_REASON] is not None:
        fields[_REASON] = _REASONS.get(fields[_REASON])
    if fields[_ABORT_REASON] is not None:
        fields[_ABORT_REASON] = _REASONS.get(fields[_ABORT_REASON])
    return Job(*fields)


def job_row(job: Job) -> Row:
    """The values of all of a job's fields, in their order."""
    values: list[Any] = list(astuple(job))
    values[_STATE] = job.state.value
    values[_PERSISTENT] = int(job.persistent)
    values[_REASON] = job.reason.value if job.reason else None
    values[_ABORT_REASON] = job.abort_reason.value if job.abort_reason else None
    return tuple(values)


def update_of(prefix: str) -> str:
    """The statement that writes a changed job; its values are a `changed_row`."""
    return f"UPDATE {prefix}job SET {', '.join(f'{field} = ?' for field in CHANGING_FIELDS)} WHERE seq = ?"


def changed_row(job: Job) -> list[Any]:
    """The values of a changed job: `CHANGING_FIELDS`, then its seq."""
    values = list(_changing_values(job))
    values[CHANGING["state"]] = job.state.value  # plain text: the driver would have to adapt an enum
    values[CHANGING["reason"]] = job.reason.value if job.reason else None
    values[CHANGING["abort_reason"]] = job.abort_reason.value if job.abort_reason else None
    values[CHANGING["persistent"]] = int(job.persistent)
    return values


def event_row(event: Event) -> EventRow:
    return (
        event.at,
        event.kind.value,
        event.subject.value,
        event.job_id,
        event.queue,
        None if event.state is None else str(event.state),
        event.owner or "",
        event.fence or 0,
        "" if event.data is None else to_json(event.data),
    )


def event_of(row: Row) -> Event:
    """The event in a row of (id, at, kind, subject, job_id, queue, state, owner, fence, data)."""
    number, at, kind, subject, job_id, queue, state, owner, fence, data = row
    facts = None if data is None else facts_in(data)
    return Event(kind_of(kind), at, subject_of(subject), job_id, queue, state, owner, fence, facts, number)


def to_json(value: object) -> str:
    try:
        return msgspec.json.encode(value).decode()
    except UnicodeEncodeError as error:  # half a character
        raise BadValue("a value cannot be stored or looked for", why=str(error)) from error


def from_json(text: str) -> Any:
    return msgspec.json.decode(text)


def worker_of(row: Sequence[Any]) -> WorkerInfo:
    """A row of a worker or a foreman."""
    number, subject, foreman, host, pid, queues, concurrency, info, report, joined_at, beat_at = row
    return WorkerInfo(
        number,
        subject_of(subject),
        foreman,
        host,
        pid,
        names_in(queues),
        concurrency,
        facts_in(info),
        facts_in(report),
        joined_at,
        beat_at,
    )


def worker_row(worker: WorkerInfo) -> Row:
    return (
        worker.id,
        worker.subject.value,
        worker.foreman,
        worker.host,
        worker.pid,
        to_json(worker.queues),
        worker.concurrency,
        to_json(worker.info),
        to_json(worker.report),
        worker.joined_at,
        worker.beat_at,
    )


def schedule_of(row: Sequence[Any]) -> ScheduleInfo:
    fields = list(row)
    fields[_OPTIONS] = facts_in(fields[_OPTIONS])
    return ScheduleInfo(*fields)


def schedule_row(schedule: ScheduleInfo) -> Row:
    values = list(astuple(schedule))
    values[_OPTIONS] = to_json(schedule.options)
    return tuple(values)


def client_of(row: Sequence[Any]) -> ClientInfo:
    """A row of (id, name, info, joined_at, beat_at), and perhaps the number of its subscriptions."""
    number, name, info, *rest = row
    return ClientInfo(number, name, facts_in(info), *rest)


def queue_of(row: Sequence[Any]) -> QueueInfo:
    """A row of (name, paused_at, paused_by, paused_why, paused_until)."""
    name, *pause = row
    return QueueInfo(name, {}, *pause)
