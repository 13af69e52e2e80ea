"""A transaction on the MySQL server: see `sql/transaction.py` for what it collects.

What need not be answered at once waits for the next statement, and is sent with it: a trip to the server costs more
than most statements. The commit goes with the last of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from packhorse.core.event import Event
from packhorse.core.job import Job
from packhorse.storage.mysql.connection import MySQLConnection, Result, UnexpectedRowCountError
from packhorse.storage.sql import transaction
from packhorse.storage.sql.rows import EventRow, Row, changed_row, event_row

R = TypeVar("R")


class Transaction(transaction.Transaction):
    """What one call does, on one connection."""

    __slots__ = (
        "_connection",
        "_depth",
        "_expected",
        "_failures",
        "_later",
        "deltas",
        "event_rows",
        "is_external",
        "mark_text",
    )

    def __init__(
        self,
        connection: MySQLConnection,
        now: int,
        mark_text: str | None = None,
        *,
        depth: int = 0,
        is_external: bool = False,
    ) -> None:
        super().__init__(now)
        self.is_external = is_external
        self.mark_text = mark_text  # of a move, as it was when this began
        self.event_rows: list[EventRow] = []
        self.deltas = 0
        self._connection = connection
        self._depth = depth  # the server would forget an outer savepoint of the same name
        self._later: list[str] = []
        self._expected: dict[int, int] = {}  # how many rows the statement at this place in `_later` must meet
        self._failures: list[Row] = []

    # --- statements -----------------------------------------------------------------------------------------------

    def execute(self, sql: str, values: Sequence[Any] = ()) -> Result:
        return self.ask([self._connection.render(sql, values)])[0]

    def executemany(self, sql: str, rows: Sequence[Sequence[Any]]) -> list[Result]:
        return self.ask([self._connection.render(sql, row) for row in rows]) if rows else []

    def ask(self, statements: Sequence[str]) -> list[Result]:
        """Send these, and all that waits, in one go. The answers of these."""
        later, self._later = self._later, []
        expected, self._expected = self._expected, {}
        answers = self._connection.script([*later, *statements])
        for place, number in expected.items():
            if answers[place].rowcount != number:
                raise UnexpectedRowCountError
        return answers[len(later) :]

    def defer(self, sql: str, values: Sequence[Any], *, expected: int | None = None) -> None:
        """A statement that may wait. `expected` is how many rows it must meet."""
        if expected is not None:
            self._expected[len(self._later)] = expected
        self._later.append(self._connection.render(sql, values))

    def keep(self, before: Job, job: Job) -> None:
        self.defer(self._connection.sql["keep_job"], changed_row(job))

    def record(self, events: Iterable[Event]) -> None:
        self.event_rows.extend([event_row(event) for event in events])

    def count_failure(self, row: Row) -> None:
        self._failures.append(row)

    def nested(self, work: Callable[[Transaction], R]) -> R:
        own = Transaction(self._connection, self.now, depth=self._depth + 1, is_external=self.is_external)
        savepoint = f"nested_{own._depth}"
        self.ask([f"SAVEPOINT {savepoint}"])
        try:
            result = work(own)
            own.ask([])
        except Exception:
            self._connection.undo(savepoint)
            raise
        self._later.append(f"RELEASE SAVEPOINT {savepoint}")
        self.absorb(own)
        return result

    def absorb(self, other: Transaction) -> None:
        super().absorb(other)
        self.event_rows += other.event_rows
        self._failures += other._failures

    # --- the end --------------------------------------------------------------------------------------------------

    def commit(self) -> None:
        """Write what was collected, and end."""
        if self._expected:
            self.ask([])
        self.ask([*self._collected(), "COMMIT"])

    def flush(self) -> None:
        """Write what was collected; the end is somebody else's."""
        self.ask(self._collected())

    def _collected(self) -> list[str]:
        sql, render, statements = self._connection.sql, self._connection.render, []
        if self.event_rows:
            rows = [(*row[:6], row[6] or None, row[7] or None, row[8] or None) for row in self.event_rows]
            statements.append(render(sql["put_events"], (rows,)))
        deltas = self._deltas()
        self.deltas = len(deltas)
        if deltas:
            statements.append(render(sql["put_deltas"], (deltas,)))
        # In the order of their causes, last of all: two calls that count the same ones never wait in a circle.
        statements += [render(sql["count_failure"], row) for row in sorted(self._failures, key=lambda row: str(row[0]))]
        return statements

    def _deltas(self) -> list[Row]:
        rows: list[Row] = [("tally", 0, *key, number) for key, number in self.tallies.items() if number]
        return rows + self.counted()
