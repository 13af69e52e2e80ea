"""What is remembered, as MySQL finds it; and events for who follows them. The rest is in `sql/records.py`."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import Any

import pymysql

from packhorse.core.clock import SECOND
from packhorse.storage.mysql.connection import MySQLConnection
from packhorse.storage.mysql.database import LOCK_PATIENCE
from packhorse.storage.mysql.driver_errors import LOST_RACES, NOT_ALLOWED, code_of
from packhorse.storage.mysql.keeper import MySQLKeeper
from packhorse.storage.mysql.literals import rendered
from packhorse.storage.records import EventFilter, Point, Span
from packhorse.storage.sql import records
from packhorse.storage.sql.rows import from_json, to_json

_LONG_WRITE = 10 * SECOND
"""After so long an event is shown although a transaction that came before it is still open."""


class Records(MySQLKeeper, records.Records):
    def _event_table(self, where: EventFilter) -> str:
        table = super()._event_table(where)
        by_job = where.job_id is not None or where.subject not in (None, "job")
        return f"{table} FORCE INDEX ({'packhorse_event_job' if by_job else 'PRIMARY'})"

    def _read_events(self, rest: str, values: Sequence[Any]) -> list[Any]:
        """First which they are: the server would fetch all that an event has before it looks whether it fits."""
        sql = (
            f"SELECT {records.EVENT_COLUMNS} FROM (SELECT id AS number {rest}) AS found"
            f" STRAIGHT_JOIN {self._dialect.prefix}event FORCE INDEX (PRIMARY) ON id = number"
        )
        return sorted(self._db.read("events", sql, values), reverse=" DESC " in rest)

    def series(self, span: Span, *, queue: str | None = None, task: str | None = None) -> list[Point]:
        width, start = span.level.width, span.level.start_of(self.now() - span.length)
        parts = [rendered(self._sql["measured"], (level, start, queue, task)) for level in span.levels]
        parts.append(rendered(self._sql["unfolded_measures"], (start, queue, task)))
        points: dict[tuple[int, str, str], dict[str, int]] = {}
        # In one statement: between two of them somebody may fold.
        (answer,) = self._db.read_with("series", lambda connection: connection.script([" UNION ALL ".join(parts)]))
        for at, its_queue, its_task, text in answer.rows:
            values = points.setdefault((at - at % width, its_queue, its_task), {})
            for counted, amount in from_json(text).items():
                values[counted] = values.get(counted, 0) + amount
        return [Point(*key, values) for key, values in sorted(points.items())]

    def _follow(self, sql: str, values: Sequence[Any]) -> list[Any]:
        """Events whose predecessors are all there. A reader that locks what it reads waits for those whose transaction
        is still open; if it waits too long, only what is old is shown."""
        seen = self._db.read("events", sql, values)
        if not seen:
            return []  # as nearly always
        rows = self._db.read_with("events", lambda connection: _locked(connection, sql, values))
        if rows is None:
            old = self._old_among([row[0] for row in seen])
            return list(takewhile(lambda row: row[0] in old, seen))
        # None that came only now: a number may have been given out before it whose row is not there yet.
        last = seen[-1][0]
        return [row for row in rows if row[0] <= last]

    def _old_among(self, numbers: Sequence[int]) -> set[int]:
        """Those of these events that were written so long ago that nobody need wait for what came before them."""
        table = f"{self._dialect.prefix}event FORCE INDEX (PRIMARY)"
        sql = f"SELECT id FROM {table} WHERE id IN ($1*) AND {self._is_old('$2')}"
        rows = self._db.read("events", sql, (to_json(numbers), self.now() - _LONG_WRITE))
        return {row[0] for row in rows}


def _locked(connection: MySQLConnection, sql: str, values: Sequence[Any]) -> list[Any] | None:
    """What a query finds, once everybody who is at it has ended. None: somebody did not, for a second, or this user may
    lock nothing."""
    try:
        connection.script(["SET SESSION innodb_lock_wait_timeout = 1"])
        rows: list[Any] | None = connection.rows(f"{sql} LOCK IN SHARE MODE", values)
    except pymysql.Error as error:
        if code_of(error) not in LOST_RACES | NOT_ALLOWED:
            _be_patient_again(connection)
            raise
        rows = None
    # Not after an interrupt: half an answer may still be on its way, and this would be taken for what has failed.
    _be_patient_again(connection)
    return rows


def _be_patient_again(connection: MySQLConnection) -> None:
    if connection.driver.open:
        connection.script([f"SET SESSION innodb_lock_wait_timeout = {LOCK_PATIENCE}"])
