"""Events in PostgreSQL, where those of a batch lie in packs. What else is remembered is in `sql/records.py`."""

from __future__ import annotations

from itertools import takewhile
from operator import itemgetter
from typing import Any

from packhorse.core.event import Event
from packhorse.storage.contract import BATCH
from packhorse.storage.postgres import event_batches
from packhorse.storage.postgres.connection import can_be_stored
from packhorse.storage.postgres.keeper import PostgresKeeper
from packhorse.storage.records import EventFilter, LogLine
from packhorse.storage.sql import records
from packhorse.storage.sql.rows import event_of

_TOLD = "at, kind, subject, queue, state, owner, fence, data"
# Of a pack that reaches over a bound, only a part is meant; no pack has more ids than `BATCH`.
_ROW_CONDITIONS = {
    "subject": "subject = ?",
    "kind": "kind = ?",
    "queue": "queue = ?",
    "owner": "owner = ?",
    "after": "id > ?",
    "before": f"id - span < ? AND id < ? + {BATCH}",
}
# Of a job there are few: they are all read, and the table's order, in which the server would walk over everybody's
# events, is not offered.
_JOBS_CONDITIONS = {**_ROW_CONDITIONS, "after": "id + 0 > ?", "before": f"id - span < ? AND id + 0 < ? + {BATCH}"}
# Of those without a job there may be many, in the order of their own index, which no other can give.
_SUBJECTS_CONDITIONS = {
    **_ROW_CONDITIONS,
    "subject": "subject >= ? AND subject <= ?",
    "after": "(subject, id) > (?, ?)",
    "before": "(subject, id) < (?, ?)",
}
_EVENT_CONDITIONS = {"job_id": "each.job_id = ?", "after": "each.id > ?", "before": "each.id < ?"}
# Each row that is found has at least one event that is meant, so no more rows are needed than events; of packs far
# fewer. The first may reach over a bound: hence a pack more.
_UNPACKED = f"""
FROM (
    SELECT *, sum(span + 1) OVER (ORDER BY id {{direction}}) - span - 1 AS passed FROM ({{rows}}) AS found
) AS event CROSS JOIN LATERAL (
    SELECT event.id, event.job_id WHERE event.jobs IS NULL
    UNION ALL
    SELECT event.id - event.span - 1 + place, name
    FROM unnest(string_to_array(event.jobs, E'\\n')) WITH ORDINALITY AS job (name, place)
) AS each
WHERE passed < ? + {BATCH} AND {{conditions}} ORDER BY each.id {{direction}} LIMIT ?"""


class Records(PostgresKeeper, records.Records):
    def events(self, where: EventFilter, *, limit: int = 100, newest_first: bool = False) -> list[Event]:
        if not all(can_be_stored(text) for text in (where.job_id, where.queue, where.owner) if text is not None):
            return []
        # Does somebody follow the events by their ids? One that became visible late would never be seen.
        is_followed = where.after is not None and where.job_id is None and not newest_first
        return self._walk_events(where, limit, "DESC" if newest_first else "ASC", is_followed=is_followed)

    def log_lines(self, job_id: str, *, after: int = 0, limit: int = 1_000) -> list[LogLine]:
        return super().log_lines(job_id, after=after, limit=limit) if can_be_stored(job_id) else []

    def _walk_events(self, where: EventFilter, limit: int, direction: str, *, is_followed: bool) -> list[Event]:
        settled, theirs = self._settled() if is_followed else ("true", [])
        rows, order, asked = self._rows_with(where, settled)
        conditions, values = _asked(where, _EVENT_CONDITIONS)
        rows += f" ORDER BY {order.replace('?', direction)} LIMIT ?"
        unpacked = _UNPACKED.format(rows=rows, direction=direction, conditions=conditions)
        sql = f"SELECT each.id, at, kind, subject, each.job_id, queue, state, owner, fence, data, is_settled{unpacked}"
        found = self._db.read("events", self._dialect.say(sql), [*theirs, *asked, limit, limit, *values, limit])
        # Whoever saw a later one would never come back for the first that is not settled.
        return [event_of(row[:-1]) for row in takewhile(itemgetter(-1), found)]

    def _rows_with(self, where: EventFilter, settled: str) -> tuple[str, str, list[Any]]:
        """A query for the rows that events may lie in, its order with a mark for each direction, and its values."""
        table = f"{self._dialect.prefix}event"
        rows = f"SELECT id, span, job_id, jobs, {_TOLD}, {settled} AS is_settled FROM {table}"
        if where.job_id is not None:
            conditions, values = _asked(where, _JOBS_CONDITIONS)
            alone = f"{rows} WHERE job_id = ? AND {conditions}"
            reaching = "last_job >= ? AND last_job <= ? AND first_job <= ? AND strpos(jobs, ?) > 0"
            packed = f"{rows} WHERE {reaching} AND {conditions}"
            job_id = where.job_id
            asked = [job_id, *values, job_id, event_batches.farthest(job_id), job_id, job_id, *values]
            return f"SELECT * FROM ({alone} UNION ALL {packed}) AS of_job", "id + 0 ?", asked
        if where.subject not in (None, "job"):
            conditions, values = _asked(where, _SUBJECTS_CONDITIONS)
            return f"{rows} WHERE job_id IS NULL AND {conditions}", "subject ?, id ?", values
        conditions, values = _asked(where, _ROW_CONDITIONS)
        return f"{rows} WHERE {conditions}", "id ?", values


def _asked(where: EventFilter, conditions: dict[str, str]) -> tuple[str, list[Any]]:
    """Those of the conditions that are asked for, and their values."""
    asked = {name: getattr(where, name) for name in conditions if getattr(where, name) is not None}
    values: list[Any] = []
    for name, value in asked.items():
        if conditions[name].startswith("(subject, id)"):
            values += [str(where.subject), value]
        else:
            values += [str(value) if isinstance(value, str) else value] * conditions[name].count("?")
    pieces = [conditions[name] for name in asked]
    if "kind" in conditions:
        pieces += records.among_kinds(where)
    return " AND ".join(pieces) or "true", values
