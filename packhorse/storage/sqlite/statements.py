"""The statements of the SQLite storage, and its dialect."""

from __future__ import annotations

from packhorse.storage.sql.statements import Dialect, load_statements
from packhorse.storage.sqlite.event_writer import EVENT_COLUMNS
from packhorse.storage.sqlite.rows import ARGS, IS_PLAIN, JOB_COLUMNS, PLAIN_COLUMNS

# `WorkerInfo.is_beating`, between the times ?1 and ?2 and with the lease ?3.
_OWN = (
    "CASE WHEN NOT json_valid(info) THEN 0"
    " WHEN json_type(info, '$.lease_s') IN ('integer', 'real') THEN json_extract(info, '$.lease_s') ELSE 0 END"
)
_LEASE = f"max(?3, min({_OWN}, 86400) * 1000000)"
_ALIVE = f"beat_at BETWEEN ?1 - {_LEASE} AND ?2 + 2 * {_LEASE}"

SQL = load_statements(
    "sqlite", job=JOB_COLUMNS, plain=PLAIN_COLUMNS, is_plain=IS_PLAIN, event=EVENT_COLUMNS, alive=_ALIVE
)
_JSON_LIST = "(SELECT value FROM json_each(?))"
DIALECT = Dialect(
    prefix="packhorse_",
    job=JOB_COLUMNS,
    args=ARGS,
    one_of_texts=f"IN {_JSON_LIST}",
    one_of_numbers=f"IN {_JSON_LIST}",
    like="{column} LIKE ? ESCAPE '\\'",
    unordered_seq="+seq",  # SQLite would walk over all jobs to have a few in order
)
