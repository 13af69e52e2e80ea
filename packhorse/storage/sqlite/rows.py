"""Rows of the SQLite tables, where they are its own: long arguments lie apart, an INSERT leaves out what is None."""

from __future__ import annotations

from operator import attrgetter

from packhorse.job import Job
from packhorse.storage.sql import rows
from packhorse.storage.sql.rows import CHANGING, FIELDS, Row

LARGE_ARGS = 2_048
"""Arguments longer than this many characters are kept apart from the job's row."""

ARGS = "coalesce(args, (SELECT long.args FROM packhorse_large_args AS long WHERE long.job = seq))"
# The columns of a job in the order of its fields; long arguments are fetched from where they lie.
JOB_COLUMNS = ", ".join(ARGS if field == "args" else field for field in FIELDS)

# What every new job has, and what it may have. The columns that a job does not have are left out of its INSERT: the
# driver binds a None five times slower than a value, which made enqueueing half as fast.
_REQUIRED = (
    "id", "seq", "task", "queue", "state", "priority", "rank", "created_at", "updated_at", "max_attempts", "max_halts",
)  # fmt: skip
_OPTIONAL = (
    "args", "due_at", "queued_at", "first_queued_at", "timeout", "idle_timeout", "expires", "total_timeout",
    "expire_at", "unique_key", "created_by", "schedule", "backoff", "meta",
)  # fmt: skip

_required_values = attrgetter(*_REQUIRED)
_optional_values = attrgetter(*_OPTIONAL)
_STATE_OF_NEW = _REQUIRED.index("state")
_inserts: dict[tuple[bool, ...], str] = {}

UPDATE_JOB = rows.update_of("packhorse_")


def insert_of(job: Job) -> tuple[str, Row]:
    """The statement that inserts this job, and its values."""
    optional = list(_optional_values(job))
    if len(job.args) > LARGE_ARGS:
        optional[0] = None
    shape = tuple([value is None for value in optional])
    statement = _inserts.get(shape) or _insert_for(shape)
    values = list(_required_values(job))
    values[_STATE_OF_NEW] = job.state.value  # plain text: the driver would have to adapt an enum
    values += [value for value in optional if value is not None]
    values.append(int(job.persistent))
    return statement, tuple(values)


def _insert_for(shape: tuple[bool, ...]) -> str:
    columns = [*_REQUIRED, *(name for name, is_none in zip(_OPTIONAL, shape, strict=True) if not is_none), "persistent"]
    _inserts[shape] = f"INSERT INTO packhorse_job ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))})"
    return _inserts[shape]


def changed_row(job: Job) -> Row:
    """The values of `UPDATE_JOB`."""
    values = rows.changed_row(job)
    if len(job.args) > LARGE_ARGS:
        values[CHANGING["args"]] = None
    return tuple(values)
