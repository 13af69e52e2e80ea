"""Events in the SQLite file, where many lie in packs. What else is remembered is in `sql/records.py`."""

from __future__ import annotations

import sqlite3

from packhorse.core.event import Event
from packhorse.storage.contract import BATCH
from packhorse.storage.records import EventFilter
from packhorse.storage.sql import records
from packhorse.storage.sqlite.event_writer import EVENT_COLUMNS, events_of
from packhorse.storage.sqlite.keeper import SQLiteKeeper
from packhorse.storage.sqlite.statements import SQL

_PACKS = SQL["packs_of"]
# In one statement with the events that they lead to, and so of the same moment.
_PACKS_OF = f"SELECT each.value FROM ({_PACKS}), json_each('[' || packs || '0]') AS each"
_CONDITIONS = {
    "job_id": f"(job_id = ? OR id IN ({_PACKS_OF}))",
    "subject": "subject = ?",
    "kind": "kind = ?",
    # A pack of jobs of several queues tells in its data which.
    "queue": "(queue = ? OR (queue IS NULL AND jobs IS NOT NULL AND EXISTS ("
    "SELECT 1 FROM json_each(packhorse_event.data) AS line WHERE line.value ->> 0 = ?)))",
    "owner": "owner = ?",
    "after": "id > ?",
    "before": "id < ? AND id - span < ?",
}


class Records(SQLiteKeeper, records.Records):
    def events(self, where: EventFilter, *, limit: int = 100, newest_first: bool = False) -> list[Event]:
        asked = {name: getattr(where, name) for name in _CONDITIONS if getattr(where, name) is not None}
        conditions = [*(_CONDITIONS[name] for name in asked), *records.among_kinds(where)]
        # Said so that the index over events without a job, which are few, can serve.
        if where.job_id is None and where.subject not in (None, "job"):
            conditions.append("job_id IS NULL")
        sql = f"SELECT {EVENT_COLUMNS} FROM packhorse_event"
        if conditions:
            sql += f" WHERE {' AND '.join(conditions)}"
        sql += f" ORDER BY id {'DESC' if newest_first else 'ASC'}"
        values = [part for name, value in asked.items() for part in _values(name, value)]

        def work(connection: sqlite3.Connection) -> list[Event]:
            found: list[Event] = []
            # No LIMIT: of a pack that is half beyond the bounds, or that a job has left, nothing may fit.
            cursor = connection.execute(sql, values)
            while len(found) < limit and (row := cursor.fetchone()) is not None:
                fitting = [event for event in events_of(row, where.job_id) if _is_asked(event, where)]
                found += reversed(fitting) if newest_first else fitting
            cursor.close()
            return found[:limit]

        return self._db.read_with("events", work)


def _values(name: str, value: str | int) -> list[str | int]:
    """What to bind for a condition."""
    if name == "job_id":
        return [value, value, value]
    if name == "queue":
        return [str(value), str(value)]
    if name == "before":
        assert isinstance(value, int)
        return [value + BATCH, value]  # the first bounds the walk: no pack spans more ids
    return [str(value) if isinstance(value, str) else value]


def _is_asked(event: Event, where: EventFilter) -> bool:
    """Of a pack, only some may be meant."""
    return (
        where.job_id in (None, event.job_id)
        and where.queue in (None, event.queue)
        and (where.after is None or event.id > where.after)
        and (where.before is None or event.id < where.before)
    )
