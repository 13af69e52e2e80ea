"""A transaction: the statements of one call, and what is written once at its end.

Events, tallies and measures are collected while the calls that share a commit do their work, and written together
just before it: a batch of a hundred jobs updates one tally, not a hundred.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TypeVar

from packhorse.event import Event
from packhorse.job import Job
from packhorse.series import MINUTES, Measures, measure
from packhorse.storage.sqlite.recorder import Recorder
from packhorse.storage.sqlite.rows import event_row

R = TypeVar("R")

Place = tuple[str, str, str]
"""Where a job is counted: its queue, its task, its state."""

_ADD_TALLY = (
    "INSERT INTO packhorse_tally (queue, task, state, number) VALUES (?, ?, ?, ?)"
    " ON CONFLICT (queue, task, state) DO UPDATE SET number = number + excluded.number"
)
_ADD_MEASURE = (
    "INSERT INTO packhorse_measure (level, at, queue, task, counted, amount) VALUES (?, ?, ?, ?, ?, ?)"
    " ON CONFLICT (level, at, queue, task, counted) DO UPDATE SET amount = amount + excluded.amount"
)


class Transaction:
    """What one call does. `now` is the same for everything in it."""

    __slots__ = ("_connection", "events", "execute", "executemany", "measures", "now", "tallies", "wakes")

    def __init__(self, connection: sqlite3.Connection, now: int, within: Transaction | None = None) -> None:
        self._connection = connection
        self.execute = connection.execute
        self.executemany = connection.executemany
        self.now = now
        self.events: Recorder = Recorder(connection, within.events if within is not None else None)
        self.tallies: dict[Place, int] = {}
        self.measures: Measures = {}
        self.wakes = False

    def record(self, events: Iterable[Event]) -> None:
        """Write these events with the commit."""
        self.events.add([event_row(event) for event in events])

    def count(self, before: Job | None, job: Job, ran: int | None) -> None:
        """Count a change for the charts."""
        measure(self.measures, before, job, ran)

    def move(self, before: Place | None, after: Place | None, number: int = 1) -> None:
        """Jobs went from one place to another; None: they came or went."""
        tallies = self.tallies
        if before is not None:
            tallies[before] = tallies.get(before, 0) - number
        if after is not None:
            tallies[after] = tallies.get(after, 0) + number

    def nested(self, work: Callable[[Transaction], R]) -> R:
        """Do `work` as a part of this transaction that is undone alone if it fails."""
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
        self._absorb(own)
        return result

    def _absorb(self, other: Transaction) -> None:
        """Take over what a finished call wants written."""
        self.events.absorb(other.events)
        for tally, number in other.tallies.items():
            self.tallies[tally] = self.tallies.get(tally, 0) + number
        for measured, amount in other.measures.items():
            self.measures[measured] = self.measures.get(measured, 0) + amount
        self.wakes = self.wakes or other.wakes

    def flush(self) -> None:
        """Write what was collected."""
        self.events.flush(self.now)
        if self.tallies:
            self.executemany(_ADD_TALLY, [(*key, number) for key, number in self.tallies.items() if number])
        if self.measures:
            at = MINUTES.start_of(self.now)
            self.executemany(_ADD_MEASURE, [(MINUTES.name, at, *key, amount) for key, amount in self.measures.items()])
