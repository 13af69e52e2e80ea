"""A transaction: the statements of one call, and what is written once at its end.

Events, tallies and measures are collected while a call does its work and written together just before the commit: a
batch of a hundred jobs updates one tally, not a hundred. Each database says how.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, TypeVar

from packhorse.core.event import Event
from packhorse.core.job import Job
from packhorse.core.metrics import CAUSE_MINUTES, CAUSED, MINUTES, Measures, measure
from packhorse.storage.sql.rows import Row
from packhorse.storage.transfer import Move

R = TypeVar("R")

Place = tuple[str, str, str]
"""Where a job is counted: its queue, its task, its state."""


class Cursor(Protocol):
    """What a statement came to."""

    @property
    def rowcount(self) -> int: ...
    def fetchone(self) -> Any: ...
    def fetchall(self) -> list[Any]: ...


class SQLConnection(Protocol):
    """Something that takes statements."""

    def execute(self, sql: str, values: Sequence[Any] = ..., /) -> Cursor: ...


class Transaction(ABC):
    """What one call does. `now` is the same for everything in it."""

    __slots__ = ("causes", "mark", "measures", "now", "tallies", "wakes")

    execute: Callable[..., Cursor]
    executemany: Callable[[str, Any], object]
    is_external: bool = False  # is it somebody else's transaction, of which nobody knows when it ends?

    def __init__(self, now: int) -> None:
        self.now = now
        self.mark: Move | None = None  # of a move of this storage
        self.tallies: dict[Place, int] = {}
        self.measures: Measures = {}
        self.causes: dict[tuple[str, str], int] = {}  # cause and task of what failed -> how often
        self.wakes = False

    @abstractmethod
    def keep(self, before: Job, job: Job) -> None:
        """Write a changed job."""

    @abstractmethod
    def count_failure(self, row: Row) -> None:
        """One more of its cause: (cause, task, pattern, place, number, first_at, last_at, last_job_id, version)."""

    @abstractmethod
    def nested(self, work: Callable[[Any], R]) -> R:
        """Do `work` as a part of this transaction that is undone alone if it fails."""

    @abstractmethod
    def record(self, events: Iterable[Event]) -> None:
        """Write these events with the commit."""

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

    def counted(self) -> list[Row]:
        """What was counted, as rows: (level, at, queue, task, counted, amount)."""
        at = MINUTES.start_of(self.now)
        rows: list[Row] = [(MINUTES.name, at, *key, amount) for key, amount in self.measures.items()]
        if self.causes:
            rows += [(CAUSE_MINUTES.name, at, *its, CAUSED, number) for its, number in self.causes.items()]
        return rows

    def absorb(self, other: Any) -> None:
        """Take over what a finished part of this transaction wants written."""
        for tally, number in other.tallies.items():
            self.tallies[tally] = self.tallies.get(tally, 0) + number
        for measured, amount in other.measures.items():
            self.measures[measured] = self.measures.get(measured, 0) + amount
        for its, number in other.causes.items():
            self.causes[its] = self.causes.get(its, 0) + number
        self.wakes = self.wakes or other.wakes


class Database(Protocol):
    """One database and this process's connections to it."""

    def write(self, name: str, work: Callable[[Any], R], /) -> R:
        """Do `work` in a transaction, committed when this returns; all of it or nothing."""

    def read(self, name: str, sql: str, values: Sequence[Any] = ..., /) -> list[Any]:
        """All rows of one query, as of one moment."""

    def read_with(self, name: str, work: Callable[[Any], R], /) -> R:
        """Several queries on one connection."""
