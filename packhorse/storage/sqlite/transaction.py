"""A transaction on the SQLite file: see `sql/transaction.py` for what it collects."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, TypeVar

from packhorse.core.event import Event
from packhorse.core.job import Job
from packhorse.storage.sql import transaction
from packhorse.storage.sql.rows import Row, event_row
from packhorse.storage.sqlite.event_writer import BulkInsert, EventWriter
from packhorse.storage.sqlite.rows import LARGE_ARGS, UPDATE_JOB, changed_row
from packhorse.storage.sqlite.statements import SQL

R = TypeVar("R")

_ADD_TALLY = BulkInsert(
    "packhorse_tally",
    ("queue", "task", "state", "number"),
    "ON CONFLICT (queue, task, state) DO UPDATE SET number = number + excluded.number",
)
_ADD_MEASURE = BulkInsert(
    "packhorse_measure",
    ("level", "at", "queue", "task", "counted", "amount"),
    "ON CONFLICT (level, at, queue, task, counted) DO UPDATE SET amount = amount + excluded.amount",
)


class Transaction(transaction.Transaction):
    """What one call does, under the file's write lock."""

    __slots__ = ("_connection", "events", "execute", "executemany")

    executemany: Callable[[str, Any], sqlite3.Cursor]

    def __init__(
        self, connection: sqlite3.Connection | sqlite3.Cursor, now: int, within: Transaction | None = None
    ) -> None:
        super().__init__(now)
        self.events: EventWriter = EventWriter(connection, within.events if within is not None else None)
        self._connection = connection
        self.execute = connection.execute
        self.executemany = connection.executemany

    def keep(self, before: Job, job: Job) -> None:
        self.execute(UPDATE_JOB, changed_row(job))
        if job.args != before.args:
            self.keep_args([job])

    def keep_args(self, jobs: Iterable[Job]) -> None:
        """Long arguments lie apart from the row, which is copied with every change of state."""
        for job in jobs:
            if len(job.args) > LARGE_ARGS:
                self.execute(SQL["put_large_args"], (job.seq, job.args))

    def record(self, events: Iterable[Event]) -> None:
        self.events.add([event_row(event) for event in events])

    def count_failure(self, row: Row) -> None:
        self.execute(SQL["count_failure"], row)

    def nested(self, work: Callable[[Transaction], R]) -> R:
        own = Transaction(self._connection, self.now, self)
        self.execute("SAVEPOINT nested")
        try:
            result = work(own)
        except Exception:
            with suppress(sqlite3.Error):  # a full disk has rolled everything back by itself
                self.execute("ROLLBACK TO nested")
                self.execute("RELEASE nested")
            raise
        self.execute("RELEASE nested")
        self.absorb(own)
        return result

    def absorb(self, other: Transaction) -> None:
        self.events.absorb(other.events)
        super().absorb(other)

    def flush(self) -> None:
        """Write what was collected."""
        self.events.flush(self.now)
        _ADD_TALLY.insert(self._connection, [(*key, number) for key, number in self.tallies.items() if number])
        _ADD_MEASURE.insert(self._connection, self.counted())
