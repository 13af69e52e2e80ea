"""Moving into and out of MySQL."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from packhorse.storage.sql import transfer
from packhorse.storage.sql.rows import Row
from packhorse.storage.transfer import Move, Section, encode

_BYTES_AT_A_TIME = 250_000
"""Bytes that are sent in one statement, before they are escaped; as in `transaction.py`."""


class MySQLTransfers(transfer.Transfers):
    counted = "counted"
    dumped_only: Mapping[Section, tuple[str, ...]] = {
        **transfer.Transfers.dumped_only,
        Section.LOCKS: ("job_id <> ''",),  # a row without a job exists only to be locked
    }

    def _stop_others(self, tx: Any) -> None:
        tx.execute(self._sql["stop_writing"])

    def _put_mark(self, tx: Any, move: Move | None, expected: Move | None) -> bool:
        """The row is always there, so that every transaction can lock it."""
        if self.mark_in(tx) != expected:
            return False
        tx.execute(self._sql["put_move"], ("" if move is None else encode(move),))
        tx.wakes = tx.wakes or move is None
        return True

    def _insert_rows(self, tx: Any, section: Section, rows: Sequence[Row]) -> None:
        table = transfer.TABLES[section]
        columns = ", ".join(map(self._dialect.name, table.columns))
        for some in _portions(rows):
            tx.execute(f"INSERT INTO {self._dialect.prefix}{table.name} ({columns}) VALUES $1()", (some,))


def _portions(rows: Sequence[Row]) -> Iterator[Sequence[Row]]:
    start = length = 0
    for place, row in enumerate(rows):
        own = sum(len(value.encode()) for value in row if isinstance(value, str))
        if length and length + own > _BYTES_AT_A_TIME:
            yield rows[start:place]
            start, length = place, 0
        length += own
    yield rows[start:]
