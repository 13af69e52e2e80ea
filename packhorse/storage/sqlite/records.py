"""What is remembered: events, log lines, failures, and the numbers behind the charts."""

from __future__ import annotations

import sqlite3

from packhorse.event import Event
from packhorse.storage.contract import BATCH
from packhorse.storage.records import EventFilter, FailureGroup, LogKind, LogLine, Point, Span
from packhorse.storage.sqlite.keeper import SQL, Keeper
from packhorse.storage.sqlite.recorder import EVENT_COLUMNS, events_of
from packhorse.storage.sqlite.rows import to_json

_PACKS = SQL["packs_of"]
# In one statement with the events that they lead to, and so of the same moment.
_PACKS_OF = f"SELECT each.value FROM ({_PACKS}), json_each('[' || packs || '0]') AS each"
_CONDITIONS = {
    "job_id": f"(job_id = ? OR id IN ({_PACKS_OF}))",
    "subject": "subject = ?",
    "kind": "kind = ?",
    "queue": "queue = ?",
    "owner": "owner = ?",
    "after": "id > ?",
    "before": "id < ? AND id - span < ?",
}


class Records(Keeper):
    def events(self, where: EventFilter, *, limit: int = 100, newest_first: bool = False) -> list[Event]:
        asked = {name: getattr(where, name) for name in _CONDITIONS if getattr(where, name) is not None}
        conditions = [_CONDITIONS[name] for name in asked]
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
                fitting = [event for event in events_of(row) if _is_asked(event, where)]
                found += reversed(fitting) if newest_first else fitting
            cursor.close()
            return found[:limit]

        return self._db.read_with("events", work)

    def log_lines(self, job_id: str, *, after: int = 0, limit: int = 1_000) -> list[LogLine]:
        rows = self._db.read("log_lines", SQL["log_of"], (job_id, after, limit))
        return [LogLine(message, LogKind(kind), *rest) for message, kind, *rest in rows]

    def failures(self, *, limit: int = 50) -> list[FailureGroup]:
        return [FailureGroup(*row) for row in self._db.read("failures", SQL["latest_failures"], (limit,))]

    def series(self, span: Span, *, queue: str | None = None, task: str | None = None) -> list[Point]:
        width, start = span.level.width, span.level.start_of(self.now() - span.length)
        points: dict[tuple[int, str, str], dict[str, int]] = {}
        asked = (width, to_json(span.levels), start, queue, task)
        for at, its_queue, its_task, counted, amount in self._db.read("series", SQL["series"], asked):
            points.setdefault((at, its_queue, its_task), {})[counted] = amount
        return [Point(*key, values) for key, values in points.items()]

    def totals(self) -> dict[str, int]:
        return dict(self._db.read("totals", SQL["totals"]))


def _values(name: str, value: str | int) -> list[str | int]:
    """What to bind for a condition."""
    if name == "job_id":
        return [value, value, value]
    if name == "before":
        assert isinstance(value, int)
        return [value + BATCH, value]  # the first bounds the walk: no pack spans more ids
    return [str(value) if isinstance(value, str) else value]


def _is_asked(event: Event, where: EventFilter) -> bool:
    """Of a pack, only some may be meant."""
    return (
        where.job_id in (None, event.job_id)
        and (where.after is None or event.id > where.after)
        and (where.before is None or event.id < where.before)
    )
