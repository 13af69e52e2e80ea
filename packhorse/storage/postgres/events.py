"""Reads events in PostgreSQL, where those of one call are stored in batches; see `event_batches.py`."""

from __future__ import annotations

from collections.abc import Callable
from itertools import takewhile
from operator import itemgetter
from typing import Any

from packhorse.core.clock import SECOND
from packhorse.core.event import Event
from packhorse.storage.contract import BATCH
from packhorse.storage.postgres.connection import can_be_stored
from packhorse.storage.postgres.database import Database
from packhorse.storage.postgres.event_batches import farthest
from packhorse.storage.records import EventFilter
from packhorse.storage.sql.rows import event_of
from packhorse.storage.sql.server import old_event_condition
from packhorse.storage.sql.statements import Dialect, kinds_condition

_LONG_WRITE = 10 * SECOND
"""After so long an event is shown although a transaction that began before it is still open."""
_COLUMNS = "at, kind, subject, queue, state, owner, fence, data"
# A batch may reach over a bound; none has more ids than `BATCH`.
_ROW_CONDITIONS = {
    "subject": "subject = ?",
    "kind": "kind = ?",
    "queue": "queue = ?",
    "owner": "owner = ?",
    "after": "id > ?",
    "before": f"id - span < ? AND id < ? + {BATCH}",
}
# A job has few events: they are all read. The order of the table, in which the server would walk over the events of
# all jobs, is not offered.
_JOBS_CONDITIONS = {**_ROW_CONDITIONS, "after": "id + 0 > ?", "before": f"id - span < ? AND id + 0 < ? + {BATCH}"}
# There may be many events without a job, in the order of their own index.
_SUBJECTS_CONDITIONS = {
    **_ROW_CONDITIONS,
    "subject": "subject >= ? AND subject <= ?",
    "after": "(subject, id) > (?, ?)",
    "before": "(subject, id) < (?, ?)",
}
_EVENT_CONDITIONS = {"job_id": "each.job_id = ?", "after": "each.id > ?", "before": "each.id < ?"}
# Each row has at least one event that fits, so no more rows are needed than events; of batches far fewer. The first may
# reach over a bound: hence one batch more.
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


class EventReader:
    """Reads the events of one storage."""

    def __init__(self, db: Database, dialect: Dialect, moment: Callable[[], int | None]) -> None:
        self._db = db
        self._dialect = dialect
        self._moment = moment

    def read(self, where: EventFilter, limit: int, *, newest_first: bool) -> list[Event]:
        if not all(can_be_stored(text) for text in (where.job_id, where.queue, where.owner) if text is not None):
            return []
        # Does the caller follow the events by their ids? It would never see one that becomes visible late.
        is_followed = where.after is not None and where.job_id is None and not newest_first
        return self.walk(where, limit, "DESC" if newest_first else "ASC", is_followed=is_followed)

    def walk(self, where: EventFilter, limit: int, direction: str, *, is_followed: bool) -> list[Event]:
        settled, moments = self._settled() if is_followed else ("true", [])
        rows, order, asked = self.rows_with(where, settled)
        conditions, values = _asked(where, _EVENT_CONDITIONS)
        rows += f" ORDER BY {order.replace('?', direction)} LIMIT ?"
        unpacked = _UNPACKED.format(rows=rows, direction=direction, conditions=conditions)
        sql = f"SELECT each.id, at, kind, subject, each.job_id, queue, state, owner, fence, data, is_settled{unpacked}"
        found = self._db.read("events", self._dialect.say(sql), [*moments, *asked, limit, limit, *values, limit])
        # A caller that saw a later one would never come back for the first that is not settled.
        return [event_of(row[:-1]) for row in takewhile(itemgetter(-1), found)]

    def _settled(self) -> tuple[str, list[Any]]:
        """A condition, with its values, for events before which no other can still come: those of transactions older
        than any that is open, and those that are too old to wait for one that someone has forgotten to end."""
        oldest_open = "(pg_snapshot_xmin(pg_current_snapshot())::text::bigint % 4294967296)::text::xid"
        now = f"coalesce(?::bigint, {self._dialect.prefix}now())"
        is_old = old_event_condition(self._dialect, f"(SELECT {now} - {_LONG_WRITE})")
        return f"(age(xmin) > age({oldest_open}) OR ({is_old}))", [self._moment()] * is_old.count("?")

    def rows_with(self, where: EventFilter, settled: str) -> tuple[str, str, list[Any]]:
        """A query for the rows in which the events may be, its order with a mark for each direction, and its values."""
        table = f"{self._dialect.prefix}event"
        rows = f"SELECT id, span, job_id, jobs, {_COLUMNS}, {settled} AS is_settled FROM {table}"
        if where.job_id is not None:
            conditions, values = _asked(where, _JOBS_CONDITIONS)
            alone = f"{rows} WHERE job_id = ? AND {conditions}"
            reaching = "last_job >= ? AND last_job <= ? AND first_job <= ? AND strpos(jobs, ?) > 0"
            batched = f"{rows} WHERE {reaching} AND {conditions}"
            job_id = where.job_id
            asked = [job_id, *values, job_id, farthest(job_id), job_id, job_id, *values]
            return f"SELECT * FROM ({alone} UNION ALL {batched}) AS of_job", "id + 0 ?", asked
        if where.subject not in (None, "job"):
            conditions, values = _asked(where, _SUBJECTS_CONDITIONS)
            return f"{rows} WHERE job_id IS NULL AND {conditions}", "subject ?, id ?", values
        conditions, values = _asked(where, _ROW_CONDITIONS)
        return f"{rows} WHERE {conditions}", "id ?", values


def _asked(where: EventFilter, conditions: dict[str, str]) -> tuple[str, list[Any]]:
    """The conditions that the filter has, and their values."""
    asked = {name: getattr(where, name) for name in conditions if getattr(where, name) is not None}
    values: list[Any] = []
    for name, value in asked.items():
        if conditions[name].startswith("(subject, id)"):
            values += [str(where.subject), value]
        else:
            values += [str(value) if isinstance(value, str) else value] * conditions[name].count("?")
    pieces = [conditions[name] for name in asked]
    if "kind" in conditions:
        pieces += kinds_condition(where.kinds)
    return " AND ".join(pieces) or "true", values
