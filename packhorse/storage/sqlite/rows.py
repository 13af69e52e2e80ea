"""Rows of the SQLite tables, to and from jobs and events."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any

import msgspec

from packhorse.event import Event
from packhorse.job import RESERVED, Job, Reason, State

Row = tuple[Any, ...]
EventRow = tuple[int, str, str, str | None, str | None, str | None, str, int, str]
"""(at, kind, subject, job_id, queue, state, owner, fence, data); the last three are empty rather than None, which the
driver binds much faster, and the statement turns them into NULL."""

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

# What every new job has, and what it may have. The columns that a job does not have are left out of its INSERT: the
# driver binds a None five times slower than a value, which made enqueueing half as fast.
_REQUIRED = (
    "id", "seq", "task", "queue", "priority", "rank", "created_at", "updated_at", "max_attempts", "max_halts",
)  # fmt: skip
_OPTIONAL = (
    "args", "due_at", "queued_at", "first_queued_at", "timeout", "idle_timeout", "expires", "total_timeout",
    "expire_at", "unique_key", "created_by", "schedule", "backoff", "meta",
)  # fmt: skip
# What a change may touch; `seq` comes last, for the WHERE clause.
CHANGING_FIELDS = tuple(field for field in FIELDS if field not in ("id", "seq", "created_at"))

_optional_values = attrgetter(*_OPTIONAL)
_changing_values = attrgetter(*CHANGING_FIELDS, "seq")
_Shape = tuple[Any, ...]
_Insert = tuple[str, Callable[[Job], Row]]
_inserts: dict[_Shape, _Insert] = {}
_CHANGING = {field: CHANGING_FIELDS.index(field) for field in ("args", "state", "reason", "abort_reason")}

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


PLAIN_COLUMNS = "id, seq, task, args, priority, created_at, queued_at, first_queued_at, max_attempts, max_halts"
"""All that a plain job in line has; see `plain` in working.sql."""


def reserved_plain_job(row: Row, queue: str, rank: int, owner: str, now: int) -> Job:
    """The job in a row of `PLAIN_COLUMNS`, just reserved. Most jobs are plain, and reading them takes a third of the
    time of reading all columns."""
    job_id, seq, task, args, priority, created_at, queued_at, first_queued_at, max_attempts, max_halts = row
    return Job(
        job_id, seq, task, queue, args, RESERVED, priority, rank, created_at, now, None, queued_at, first_queued_at,
        None, None, owner, None, 1, 0, 0, 0, 0, 0, max_attempts, max_halts,
    )  # fmt: skip


def insert_of(job: Job, packs: str = "") -> tuple[str, Row]:
    """The statement that inserts this job, and its values."""
    shape = (job.state, job.persistent, len(job.args) > LARGE_ARGS, *[value is None for value in _optional_values(job)])
    statement, values_of = _inserts.get(shape) or _insert_for(shape)
    return statement, (*values_of(job), packs)


def _insert_for(shape: _Shape) -> _Insert:
    """State and persistence stand in the statement itself: the driver would have to adapt an enum and a bool."""
    state, persistent, has_large_args, *are_none = shape
    present = [name for name, is_none in zip(_OPTIONAL, are_none, strict=True) if not is_none]
    columns = [*_REQUIRED, *(name for name in present if name != "args" or not has_large_args)]
    statement = (
        f"INSERT INTO packhorse_job ({', '.join(columns)}, packs, state, persistent)"
        f" VALUES ({', '.join('?' * len(columns))}, ?, '{State(state).value}', {int(persistent)})"
    )
    _inserts[shape] = statement, attrgetter(*columns)
    return _inserts[shape]


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
        event.owner or "",
        event.fence or 0,
        "" if event.data is None else to_json(event.data),
    )


def to_json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def from_json(text: str) -> Any:
    return msgspec.json.decode(text)
