"""A transaction on the PostgreSQL server: see `sql/transaction.py` for what it collects.

Changed jobs are collected too, and sent together before the next statement, or at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from packhorse.core.event import Event
from packhorse.core.job import Job
from packhorse.storage.postgres.connection import PostgresConnection
from packhorse.storage.sql import transaction
from packhorse.storage.sql.rows import EventRow, Row, changed_row, event_row, update_of
from packhorse.storage.sql.transaction import Cursor

R = TypeVar("R")


class Transaction(transaction.Transaction):
    """What one call does, on one connection."""

    __slots__ = ("_changed", "_connection", "_event_rows", "_failures", "deltas", "is_external", "mark_text")

    def __init__(
        self, connection: PostgresConnection, now: int, mark_text: str | None = None, *, is_external: bool = False
    ) -> None:
        super().__init__(now)
        self.mark_text = mark_text  # of a move, as it was when this began
        self.is_external = is_external
        self.deltas = 0  # rows that it has added to what is to be folded
        self._connection = connection
        self._changed: list[list[Any]] = []
        self._event_rows: list[EventRow] = []
        self._failures: list[Row] = []

    def execute(self, sql: str, values: Sequence[Any] = ()) -> Cursor:
        self._send_changed()
        return self._connection.execute(sql, values)

    def executemany(self, sql: str, rows: Sequence[Sequence[Any]]) -> None:
        self._send_changed()
        if rows:
            self._connection.executemany(sql, rows)

    def keep(self, before: Job, job: Job) -> None:
        self._changed.append(changed_row(job))

    def record(self, events: Iterable[Event]) -> None:
        self._event_rows.extend(event_row(event) for event in events)

    def count_failure(self, row: Row) -> None:
        self._failures.append(row)

    def _send_changed(self) -> None:
        if self._changed:
            changed, self._changed = self._changed, []
            self._connection.executemany(
                self._connection.dialect.say(update_of(self._connection.dialect.prefix)), changed
            )

    def nested(self, work: Callable[[Transaction], R]) -> R:
        own = Transaction(self._connection, self.now, is_external=self.is_external)
        self.execute("SAVEPOINT nested")
        try:
            result = work(own)
            own._send_changed()
        except Exception:
            self._connection.undo("nested")
            raise
        self.execute("RELEASE nested")
        self.absorb(own)
        return result

    def absorb(self, other: Transaction) -> None:
        super().absorb(other)
        self._event_rows += other._event_rows
        self._failures += other._failures

    def flush(self) -> None:
        """Write what was collected."""
        self._send_changed()
        sql = self._connection.sql
        if self._event_rows:
            self._connection.execute(
                sql["put_events"], [list(column) for column in zip(*self._event_rows, strict=True)]
            )
        deltas = self._deltas()
        self.deltas = len(deltas)
        if deltas:
            self._connection.execute(sql["put_deltas"], [list(column) for column in zip(*deltas, strict=True)])
        if self._failures:
            # In the order of their causes, last of all: two calls that count the same ones never wait in a circle.
            self._connection.executemany(sql["count_failure"], sorted(self._failures, key=lambda row: str(row[0])))

    def _deltas(self) -> list[Row]:
        rows: list[Row] = [("tally", 0, *key, number) for key, number in self.tallies.items() if number]
        return rows + self.counted()
