"""The statements of the PostgreSQL storage, and its dialect, for one schema."""

from __future__ import annotations

import itertools
import re
from functools import lru_cache

from packhorse.core.metrics import LIMITS, STEPS
from packhorse.storage.sql.rows import FIELDS
from packhorse.storage.sql.statements import Dialect, load_statements

_JOB = ", ".join(FIELDS)
_STEPS = ", ".join(f"'_{name}'" for name in STEPS)
_LIMITS = ", ".join(map(str, LIMITS))

# `WorkerInfo.is_beating`, between the times $1 and $2 and with the lease $3.
# As text: a damaged value cannot be cast to JSON, and the statement would fail for all workers.
_NUMBER = r"[0-9]+(?:\.[0-9]+)?(?:e[+-]?[0-9][0-9]?[0-9]?)?"
_OWN = rf"""coalesce(substring(info from '"lease_s":\s*({_NUMBER})[,}} ]')::numeric, 0)"""
_LEASE = f"greatest($3::bigint, least({_OWN}, 86400) * 1000000)"
_ALIVE = f"beat_at BETWEEN $1::bigint - {_LEASE} AND $2::bigint + 2 * {_LEASE}"


def quoted(name: str) -> str:
    """A name as SQL writes it."""
    return '"' + name.replace('"', '""') + '"'


@lru_cache
def statements_for(schema: str) -> dict[str, str]:
    """Every statement, by name."""
    return load_statements(
        "postgres",
        schema=quoted(schema),
        job=_JOB,
        open=f"NOT EXISTS (SELECT 1 FROM {quoted(schema)}.packhorse_meta WHERE key = 'move')",
        job_columns=", ".join(f"job.{field}" for field in FIELDS),
        steps=f"ARRAY[{_STEPS}]",
        limits=f"ARRAY[{_LIMITS}]::bigint[]",
        alive=_ALIVE,
    )


@lru_cache
def dialect_for(schema: str) -> Dialect:
    return Dialect(
        prefix=f"{quoted(schema)}.packhorse_",
        job=_JOB,
        args="args",
        one_of_texts="= ANY (ARRAY(SELECT json_array_elements_text(?::json)))",
        one_of_numbers="= ANY (ARRAY(SELECT value::bigint FROM json_array_elements_text(?::json)))",
        like="{column} ILIKE ? ESCAPE E'\\\\'",  # a session may take a lone backslash for the beginning of a sign
        escape=" ESCAPE E'\\\\'",
        true="true",
        of_rank="rank BETWEEN ? AND ?",  # in the order of (rank, seq) no other index can give them
        unordered_seq="(seq + 0)",  # the server would walk over all jobs to have a few in order
        later_of_job="(later.job_id, later.id) > ({event}.job_id, {event}.id) AND later.job_id <= {event}.job_id",
        say=numbered,
    )


@lru_cache(maxsize=512)
def numbered(sql: str) -> str:
    """With `$1`, `$2` … in place of each `?`."""
    numbers = itertools.count(1)
    return re.sub(r"\?", lambda _: f"${next(numbers)}", sql)
