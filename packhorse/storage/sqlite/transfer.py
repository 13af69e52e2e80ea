"""Moving into and out of a SQLite file, where long arguments have a table of their own and events are in batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from packhorse.storage.records import EventFilter
from packhorse.storage.sql.rows import FIELDS, Row
from packhorse.storage.sql.transfer import Transfers
from packhorse.storage.sqlite.database import Database
from packhorse.storage.sqlite.events import read_events
from packhorse.storage.sqlite.rows import LARGE_ARGS
from packhorse.storage.sqlite.statements import DIALECT, SQL
from packhorse.storage.transfer import Dumped, Section

_ARGS = FIELDS.index("args")


class SQLiteTransfers(Transfers):
    def __init__(self, db: Database) -> None:
        super().__init__(db, SQL, DIALECT)
        self._file = db

    def dump(self, section: Section, cursor: str | None, limit: int) -> Dumped:
        if section is not Section.EVENTS:
            return super().dump(section, cursor, limit)
        events = read_events(self._file, EventFilter(after=int(cursor or 0)), limit, newest_first=False)
        return Dumped(list(events), str(events[-1].id) if len(events) == limit else None)

    def _load(self, tx: Any, section: Section, rows: Sequence[Any]) -> None:
        super()._load(tx, section, rows)
        if section is Section.JOBS:
            tx.save_large_args(rows)

    def _insert_rows(self, tx: Any, section: Section, rows: Sequence[Row]) -> None:
        if section is Section.JOBS:
            rows = [_without_long_args(row) for row in rows]
        super()._insert_rows(tx, section, rows)


def _without_long_args(row: Row) -> Row:
    if len(row[_ARGS]) <= LARGE_ARGS:
        return row
    return (*row[:_ARGS], None, *row[_ARGS + 1 :])
