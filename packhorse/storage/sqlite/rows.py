"""Rows of the SQLite tables, where they differ: long arguments have a table of their own, an INSERT leaves out what is
None."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any

from packhorse.core.job import RESERVED, Job, State
from packhorse.storage.sql import rows
from packhorse.storage.sql.rows import CHANGING, FIELDS, Row

LARGE_ARGS = 2_048
"""Arguments longer than this many characters are not in the job's row."""

ARGS = "coalesce(args, (SELECT long.args FROM packhorse_large_args AS long WHERE long.job = seq))"
# The columns of a job in the order of its fields; long arguments are in a table of their own.
JOB_COLUMNS = ", ".join(ARGS if field == "args" else field for field in FIELDS)

# What every new job has, and what it may have. Columns without a value are left out of the INSERT: the
# driver binds a None five times slower than a value, which made enqueueing half as fast.
_REQUIRED = (
    "id", "seq", "task", "queue", "priority", "rank", "created_at", "updated_at", "max_attempts", "max_halts",
)  # fmt: skip
_OPTIONAL = (
    "args", "due_at", "queued_at", "first_queued_at", "timeout", "idle_timeout", "expires", "total_timeout",
    "expire_at", "unique_key", "created_by", "schedule", "backoff", "meta",
)  # fmt: skip
_optional_values = attrgetter(*_OPTIONAL)
_Shape = tuple[Any, ...]
_Insert = tuple[str, Callable[[Job], Row]]
_inserts: dict[_Shape, _Insert] = {}

UPDATE_JOB = rows.update_of("packhorse_")


PLAIN_COLUMNS = "id, seq, task, args, priority, created_at, queued_at, first_queued_at, max_attempts, max_halts"
"""All that a plain queued job has."""

IS_PLAIN = """fence = 0 AND persistent = 0 AND args IS NOT NULL AND coalesce(
    timeout, idle_timeout, expires, total_timeout, unique_key, created_by, schedule, backoff, meta
) IS NULL"""
"""Whether a job is plain: never held before, and with nothing but what those columns have."""


def reserved_plain_job(row: Row, queue: str, rank: int, owner: str, now: int) -> Job:
    """The job in a row of `PLAIN_COLUMNS`, just reserved. Most jobs are plain, and reading them takes a third of the
    time of reading all columns."""
    job_id, seq, task, args, priority, created_at, queued_at, first_queued_at, max_attempts, max_halts = row
    return Job(
        job_id, seq, task, queue, args, RESERVED, priority, rank, created_at, now, None, queued_at, first_queued_at,
        None, None, None, owner, None, 1, 0, 0, 0, 0, 0, max_attempts, max_halts,
    )  # fmt: skip


def insert_of(job: Job, batches: str = "") -> tuple[str, Row]:
    """The statement that inserts this job, and its values."""
    shape = (job.state, job.persistent, len(job.args) > LARGE_ARGS, *[value is None for value in _optional_values(job)])
    statement, values_of = _inserts.get(shape) or _insert_for(shape)
    return statement, (*values_of(job), batches)


def _insert_for(shape: _Shape) -> _Insert:
    """State and persistence are in the statement itself: the driver would have to adapt an enum and a bool."""
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
    values = rows.changed_row(job)
    if len(job.args) > LARGE_ARGS:
        values[CHANGING["args"]] = None
    return tuple(values)
