"""Reads events of the SQLite file, where many are stored in batches; see `event_writer.py`."""

from __future__ import annotations

import sqlite3

from packhorse.core.event import Event
from packhorse.storage.contract import BATCH
from packhorse.storage.records import EventFilter
from packhorse.storage.sql.statements import kinds_condition
from packhorse.storage.sqlite.database import Database
from packhorse.storage.sqlite.event_writer import EVENT_COLUMNS, events_of
from packhorse.storage.sqlite.statements import SQL

_BATCHES = SQL["packs_of"]
# In one statement with the events in them, and so of the same moment.
_BATCHES_OF = f"SELECT each.value FROM ({_BATCHES}), json_each('[' || packs || '0]') AS each"
_CONDITIONS = {
    "job_id": f"(job_id = ? OR id IN ({_BATCHES_OF}))",
    "subject": "subject = ?",
    "kind": "kind = ?",
    # A batch of jobs of several queues has these in its data.
    "queue": "(queue = ? OR (queue IS NULL AND jobs IS NOT NULL AND EXISTS ("
    "SELECT 1 FROM json_each(packhorse_event.data) AS line WHERE line.value ->> 0 = ?)))",
    "owner": "owner = ?",
    "after": "id > ?",
    "before": "id < ? AND id - span < ?",
}


def read_events(db: Database, where: EventFilter, limit: int, *, newest_first: bool) -> list[Event]:
    asked = {name: getattr(where, name) for name in _CONDITIONS if getattr(where, name) is not None}
    conditions = [*(_CONDITIONS[name] for name in asked), *kinds_condition(where.kinds)]
    # So that the index of the few events without a job can be used.
    if where.job_id is None and where.subject not in (None, "job"):
        conditions.append("job_id IS NULL")
    sql = f"SELECT {EVENT_COLUMNS} FROM packhorse_event"
    if conditions:
        sql += f" WHERE {' AND '.join(conditions)}"
    sql += f" ORDER BY id {'DESC' if newest_first else 'ASC'}"
    values = [part for name, value in asked.items() for part in _values(name, value)]

    def work(connection: sqlite3.Connection) -> list[Event]:
        found: list[Event] = []
        # No LIMIT: of a batch that is partly out of bounds, or of which a job was deleted, nothing may fit.
        cursor = connection.execute(sql, values)
        while len(found) < limit and (row := cursor.fetchone()) is not None:
            fitting = [event for event in events_of(row, where.job_id) if _fits(event, where)]
            found += reversed(fitting) if newest_first else fitting
        cursor.close()
        return found[:limit]

    return db.read_with("events", work)


def _values(name: str, value: str | int) -> list[str | int]:
    """The values of a condition."""
    if name == "job_id":
        return [value, value, value]
    if name == "queue":
        return [str(value), str(value)]
    if name == "before":
        assert isinstance(value, int)
        return [value + BATCH, value]  # the first bounds the search: no batch spans more ids
    return [str(value) if isinstance(value, str) else value]


def _fits(event: Event, where: EventFilter) -> bool:
    """Only a part of a batch may fit."""
    return (
        where.job_id in (None, event.job_id)
        and where.queue in (None, event.queue)
        and (where.after is None or event.id > where.after)
        and (where.before is None or event.id < where.before)
    )
