"""Moving into and out of a SQLite file, where long arguments lie apart and many events in packs. The rest is in
`sql/transfer.py`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from packhorse.storage.contract import BATCH
from packhorse.storage.records import EventFilter
from packhorse.storage.sql import transfer
from packhorse.storage.sql.rows import FIELDS, Row
from packhorse.storage.sqlite.keeper import SQLiteKeeper
from packhorse.storage.sqlite.rows import LARGE_ARGS
from packhorse.storage.transfer import Dumped, Section

_ARGS = FIELDS.index("args")


class Transfers(SQLiteKeeper, transfer.Transfers):
    def dump(self, section: Section, *, cursor: str | None = None, limit: int = BATCH) -> Dumped:
        if section is not Section.EVENTS:
            return super().dump(section, cursor=cursor, limit=limit)
        events = self.events(EventFilter(after=int(cursor or 0)), limit=limit)
        return Dumped(list(events), str(events[-1].id) if len(events) == limit else None)

    def _load(self, tx: Any, section: Section, rows: Sequence[Any]) -> None:
        super()._load(tx, section, rows)
        if section is Section.JOBS:
            tx.keep_args(rows)

    def _insert_rows(self, tx: Any, section: Section, rows: Sequence[Row]) -> None:
        if section is Section.JOBS:
            rows = [_without_long_args(row) for row in rows]
        super()._insert_rows(tx, section, rows)


def _without_long_args(row: Row) -> Row:
    if len(row[_ARGS]) <= LARGE_ARGS:
        return row
    return (*row[:_ARGS], None, *row[_ARGS + 1 :])
