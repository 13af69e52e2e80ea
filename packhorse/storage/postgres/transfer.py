"""Moving into and out of PostgreSQL: counters that go on behind what was loaded, and calls that are one statement. The
rest is in `sql/transfer.py`."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from typing import Any

from psycopg import errors

from packhorse.core.errors import StorageUnavailable
from packhorse.storage.contract import BATCH
from packhorse.storage.postgres.records import Records
from packhorse.storage.records import EventFilter
from packhorse.storage.sql import transfer
from packhorse.storage.transfer import Dumped, Move, Section

_PATIENCE = 30.0
"""Seconds for which closing waits for the transactions of others."""
_AT_A_TIME = "200ms"
"""How long it may stand in line for a lock: whoever else wants to write stands behind it."""
_PAUSE = 0.5


class Transfers(Records, transfer.Transfers):
    _counted = "counted"

    def dump(self, section: Section, *, cursor: str | None = None, limit: int = BATCH) -> Dumped:
        if section is not Section.EVENTS:
            return super().dump(section, cursor=cursor, limit=limit)
        events = self._walk_events(EventFilter(after=int(cursor or 0)), limit, "ASC", is_followed=False)
        return Dumped(list(events), str(events[-1].id) if len(events) == limit else None)

    def set_move(self, move: Move | None, *, expected: Move | None) -> bool:
        deadline = time.monotonic() + _PATIENCE
        while True:
            try:
                return super().set_move(move, expected=expected)
            except _HeldUpError as error:
                if time.monotonic() >= deadline:
                    raise self._held_up() from error
            time.sleep(random.uniform(0.5, 1.0) * _PAUSE)

    def _stop_others(self, tx: Any) -> None:
        tx.execute(f"SET LOCAL lock_timeout = '{_AT_A_TIME}'")
        try:
            tx.execute(self._sql["stop_writing"]).fetchall()
            tx.execute(f"LOCK TABLE {self._dialect.prefix}job IN SHARE ROW EXCLUSIVE MODE")
        except (errors.LockNotAvailable, errors.DeadlockDetected) as error:
            raise _HeldUpError from error

    def _held_up(self) -> StorageUnavailable:
        """Who it is that does not let us in."""
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


class _HeldUpError(Exception):
    """Somebody else's transaction is still open."""
