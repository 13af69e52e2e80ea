"""Moving into and out of PostgreSQL: its sequences continue after what was loaded, and calls that are one statement are
kept out by a lock."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping, Sequence
from typing import Any

from psycopg import errors

from packhorse.core.errors import StorageUnavailable
from packhorse.storage.postgres.database import Database
from packhorse.storage.postgres.events import EventReader
from packhorse.storage.records import EventFilter
from packhorse.storage.sql.statements import Dialect
from packhorse.storage.sql.transfer import Transfers
from packhorse.storage.transfer import Dumped, Move, Section

_PATIENCE = 30.0
"""Seconds for which closing waits for other transactions."""
_LOCK_TIMEOUT = "200ms"
"""How long it queues for a lock: other writers queue behind it."""
_PAUSE = 0.5


class PostgresTransfers(Transfers):
    counted = "counted"

    def __init__(self, db: Database, sql: Mapping[str, str], dialect: Dialect, events: EventReader) -> None:
        super().__init__(db, sql, dialect)
        self._events = events

    def dump(self, section: Section, cursor: str | None, limit: int) -> Dumped:
        if section is not Section.EVENTS:
            return super().dump(section, cursor, limit)
        events = self._events.walk(EventFilter(after=int(cursor or 0)), limit, "ASC", is_followed=False)
        return Dumped(list(events), str(events[-1].id) if len(events) == limit else None)

    def set_move(self, move: Move | None, expected: Move | None) -> bool:
        deadline = time.monotonic() + _PATIENCE
        while True:
            try:
                return super().set_move(move, expected)
            except _BlockedError as error:
                if time.monotonic() >= deadline:
                    raise self._blocked() from error
            time.sleep(random.uniform(0.5, 1.0) * _PAUSE)

    def _stop_others(self, tx: Any) -> None:
        tx.execute(f"SET LOCAL lock_timeout = '{_LOCK_TIMEOUT}'")
        try:
            tx.execute(self._sql["stop_writing"]).fetchall()
            tx.execute(f"LOCK TABLE {self._dialect.prefix}job IN SHARE ROW EXCLUSIVE MODE")
        except (errors.LockNotAvailable, errors.DeadlockDetected) as error:
            raise _BlockedError from error

    def _blocked(self) -> StorageUnavailable:
        """Which transactions keep the lock."""
        writers = self._db.read("writers", self._sql["writers"])
        names = [f"{pid} ({name or 'nameless'}, for {seconds or 0:,} s)" for pid, name, seconds in writers]
        return StorageUnavailable(
            "transactions that are open on the server keep the storage from being closed",
            why=f"of server processes {', '.join(names)}" if names else None,
            hint="let them end, or end one: SELECT pg_terminate_backend(…)",
        )

    def _load(self, tx: Any, section: Section, rows: Sequence[Any]) -> None:
        super()._load(tx, section, rows)
        if section is Section.JOBS:
            tx.execute(self._sql["raise_seq"], (max(job.seq for job in rows),)).fetchall()
        elif section is Section.EVENTS:
            tx.execute(self._sql["raise_event_id"], (max(event.id for event in rows),)).fetchall()
        elif section is Section.LOG:
            tx.execute(self._sql["raise_line_id"], (max(row.line.id for row in rows),)).fetchall()


class _BlockedError(Exception):
    """Another transaction is still open."""
