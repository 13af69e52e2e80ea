"""Moving into and out of PostgreSQL: counters that go on behind what was loaded, and calls that are one statement. The
rest is in `sql/moving.py`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from packhorse.storage.moving import Section
from packhorse.storage.postgres.keeper import PostgresKeeper
from packhorse.storage.sql import moving


class Moving(PostgresKeeper, moving.Moving):
    _counted = "counted"

    def _stop_others(self, tx: Any) -> None:
        tx.execute(self._sql["stop_writing"]).fetchall()
        tx.execute(f"LOCK TABLE {self._dialect.prefix}job IN SHARE ROW EXCLUSIVE MODE")

    def _load(self, tx: Any, section: Section, rows: Sequence[Any]) -> None:
        super()._load(tx, section, rows)
        if section is Section.JOBS:
            tx.execute(self._sql["raise_seq"], (max(job.seq for job in rows),)).fetchall()
        elif section is Section.EVENTS:
            tx.execute(self._sql["raise_event_id"], (max(event.id for event in rows),)).fetchall()
        elif section is Section.LOG:
            tx.execute(self._sql["raise_line_id"], (max(row.line.id for row in rows),)).fetchall()
