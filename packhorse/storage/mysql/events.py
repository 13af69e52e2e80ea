"""Reads events in MySQL, also for callers who follow them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import takewhile
from typing import Any

import pymysql

from packhorse.core.clock import SECOND
from packhorse.core.event import Event
from packhorse.storage.mysql.connection import MySQLConnection
from packhorse.storage.mysql.database import LOCK_PATIENCE, Database
from packhorse.storage.mysql.driver_errors import LOST_RACES, NOT_ALLOWED, code_of
from packhorse.storage.records import EventFilter
from packhorse.storage.sql.rows import event_of, to_json
from packhorse.storage.sql.server import old_event_condition
from packhorse.storage.sql.statements import Dialect, kinds_condition

_LONG_WRITE = 10 * SECOND
"""After so long an event is shown although a transaction that came before it is still open."""
_COLUMNS = "id, at, kind, subject, job_id, queue, state, owner, fence, data"
_CONDITIONS: Mapping[str, str] = {
    "job_id": "job_id = ?",
    "subject": "subject = ?",
    "kind": "kind = ?",
    "queue": "queue = ?",
    "owner": "owner = ?",
    "after": "id > ?",
    "before": "id < ?",
}


class EventReader:
    """Reads the events of one storage."""

    def __init__(self, db: Database, dialect: Dialect, now: Callable[[], int]) -> None:
        self._db = db
        self._dialect = dialect
        self._now = now
        self._table = f"{self._dialect.prefix}event"

    def read(self, where: EventFilter, limit: int, *, newest_first: bool) -> list[Event]:
        asked = {name: getattr(where, name) for name in _CONDITIONS if getattr(where, name) is not None}
        conditions = [*(_CONDITIONS[name] for name in asked), *kinds_condition(where.kinds)]
        by_job = where.job_id is not None or where.subject not in (None, "job")
        if by_job and where.job_id is None:  # so that the index of the few events without a job can be used
            conditions.append("job_id IS NULL")
        values = [*(str(value) if isinstance(value, str) else value for value in asked.values()), limit]
        rest = f"FROM {self._table} FORCE INDEX ({'packhorse_event_job' if by_job else 'PRIMARY'})"
        if conditions:
            rest += f" WHERE {' AND '.join(conditions)}"
        rest = self._dialect.say(f"{rest} ORDER BY id {'DESC' if newest_first else 'ASC'} LIMIT ?")
        # Does the caller follow the events by their ids? It would never see one that becomes visible late.
        if where.after is not None and where.job_id is None and not newest_first:
            rows = self._follow(f"SELECT {_COLUMNS} {rest}", values)
        else:
            # Their ids first: the server would fetch all of an event before it checks whether it fits.
            sql = (
                f"SELECT {_COLUMNS} FROM (SELECT id AS number {rest}) AS found"
                f" STRAIGHT_JOIN {self._table} FORCE INDEX (PRIMARY) ON id = number"
            )
            rows = sorted(self._db.read("events", sql, values), reverse=newest_first)
        return [event_of(row) for row in rows]

    def _follow(self, sql: str, values: Sequence[Any]) -> list[Any]:
        """Events before which no other can still come. A reader that locks what it reads waits for open transactions;
        if it waits too long, only old events are shown."""
        seen = self._db.read("events", sql, values)
        if not seen:
            return []  # as nearly always
        rows = self._db.read_with("events", lambda connection: _locked(connection, sql, values))
        if rows is None:
            old = self._old_among([row[0] for row in seen])
            return list(takewhile(lambda row: row[0] in old, seen))
        # None that came only now: an id before it may be given out whose row is not there yet.
        last = seen[-1][0]
        return [row for row in rows if row[0] <= last]

    def _old_among(self, numbers: Sequence[int]) -> set[int]:
        """Those of these events that are too old to wait for what came before them."""
        sql = (
            f"SELECT id FROM {self._table} FORCE INDEX (PRIMARY)"
            f" WHERE id IN ($1*) AND {old_event_condition(self._dialect, '$2')}"
        )
        rows = self._db.read("events", sql, (to_json(numbers), self._now() - _LONG_WRITE))
        return {row[0] for row in rows}


def _locked(connection: MySQLConnection, sql: str, values: Sequence[Any]) -> list[Any] | None:
    """The rows of a query, once the transactions that write them have ended. None: one did not within a second, or this
    user may not lock."""
    try:
        connection.script(["SET SESSION innodb_lock_wait_timeout = 1"])
        rows: list[Any] | None = connection.rows(f"{sql} LOCK IN SHARE MODE", values)
    except pymysql.Error as error:
        if code_of(error) not in LOST_RACES | NOT_ALLOWED:
            _reset_patience(connection)
            raise
        rows = None
    # Not after an interrupt: half of a result may still be on its way, and be taken for this one's.
    _reset_patience(connection)
    return rows


def _reset_patience(connection: MySQLConnection) -> None:
    if connection.driver.open:
        connection.script([f"SET SESSION innodb_lock_wait_timeout = {LOCK_PATIENCE}"])
