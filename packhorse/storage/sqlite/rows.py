"""Rows of the SQLite tables, to and from jobs and events."""

from __future__ import annotations

from operator import attrgetter
from typing import Any

import msgspec

from packhorse.event import Event, Kind, Subject
from packhorse.job import Job, Reason, State

Row = tuple[Any, ...]
EventRow = tuple[int, str, str, str | None, str | None, str | None, str | None, int | None, str | None]

FIELDS = Job.__struct_fields__
LARGE_ARGS = 2_048
"""Arguments longer than this many characters are kept apart from the job's row."""

# The columns of a job in the order of its fields; long arguments are fetched from where they lie.
JOB_COLUMNS = ", ".join(
    "coalesce(args, (SELECT long.args FROM packhorse_large_args AS long WHERE long.job = seq))"
    if field == "args"
    else field
    for field in FIELDS
)

_STATE = FIELDS.index("state")
_ABORT_REASON = FIELDS.index("abort_reason")
_REASON = FIELDS.index("reason")
_PERSISTENT = FIELDS.index("persistent")
_STATES = {state.value: state for state in State}
_REASONS: dict[str | None, Reason | None] = {None: None, **{reason.value: reason for reason in Reason}}

# What a new job can have; everything else has its default.
NEW_FIELDS = (
    "id", "seq", "task", "queue", "args", "state", "priority", "rank", "created_at", "updated_at", "due_at",
    "queued_at", "first_queued_at", "max_attempts", "max_halts", "timeout", "idle_timeout", "expires",
    "total_timeout", "expire_at", "unique_key", "persistent", "created_by", "schedule", "backoff", "meta",
)  # fmt: skip
# What a change may touch; `seq` comes last, for the WHERE clause.
CHANGING_FIELDS = tuple(field for field in FIELDS if field not in ("id", "seq", "created_at"))

_new_values = attrgetter(*NEW_FIELDS)
_changing_values = attrgetter(*CHANGING_FIELDS, "seq")
_NEW_ARGS, _NEW_STATE = NEW_FIELDS.index("args"), NEW_FIELDS.index("state")
_CHANGING = {field: CHANGING_FIELDS.index(field) for field in ("args", "state", "reason", "abort_reason")}

INSERT_JOB = f"INSERT INTO packhorse_job ({', '.join(NEW_FIELDS)}) VALUES ({', '.join('?' * len(NEW_FIELDS))})"
UPDATE_JOB = f"UPDATE packhorse_job SET {', '.join(f'{field} = ?' for field in CHANGING_FIELDS)} WHERE seq = ?"


def job_of(row: Row) -> Job:
    """The job in a row of `JOB_COLUMNS`."""
    fields = list(row)
    fields[_STATE] = _STATES[fields[_STATE]]
    fields[_PERSISTENT] = bool(fields[_PERSISTENT])
    if fields[_REASON] is not None:
        fields[_REASON] = _REASONS[fields[_REASON]]
    if fields[_ABORT_REASON] is not None:
        fields[_ABORT_REASON] = _REASONS[fields[_ABORT_REASON]]
    return Job(*fields)


def new_row(job: Job) -> Row:
    """The values of `INSERT_JOB`. Enums become plain text: the driver binds those at once and adapts the others."""
    values = list(_new_values(job))
    values[_NEW_STATE] = job.state.value
    if len(job.args) > LARGE_ARGS:
        values[_NEW_ARGS] = None
    return tuple(values)


def changed_row(job: Job) -> Row:
    """The values of `UPDATE_JOB`."""
    values = list(_changing_values(job))
    values[_CHANGING["state"]] = job.state.value
    values[_CHANGING["reason"]] = job.reason.value if job.reason else None
    values[_CHANGING["abort_reason"]] = job.abort_reason.value if job.abort_reason else None
    if len(job.args) > LARGE_ARGS:
        values[_CHANGING["args"]] = None
    return tuple(values)


def event_row(event: Event) -> EventRow:
    return (
        event.at,
        event.kind.value,
        event.subject.value,
        event.job_id,
        event.queue,
        None if event.state is None else str(event.state),
        event.owner,
        event.fence,
        None if event.data is None else to_json(event.data),
    )


def event_of(row: Row) -> Event:
    """The event in a row of (id, at, kind, subject, job_id, queue, state, owner, fence, data)."""
    number, at, kind, subject, job_id, queue, state, owner, fence, data = row
    facts = None if data is None else from_json(data)
    return Event(Kind(kind), at, Subject(subject), job_id, queue, state, owner, fence, facts, number)


def to_json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def from_json(text: str) -> Any:
    return msgspec.json.decode(text)
