"""What storages on a database server share: the server's clock, transactions that other writers run beside, tables that
a program which only looks does not create, and counters that are folded now and then. For PostgreSQL and MySQL."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from packhorse.core import clock
from packhorse.core.errors import SchemaOutdated, SchemaTooNew, StorageError, StorageNotFound
from packhorse.core.event import Event
from packhorse.core.job import Job, NewJob, State
from packhorse.storage.engine import maintenance
from packhorse.storage.records import Enqueued, Retention
from packhorse.storage.sql.rows import EventRow, Row, event_row, to_json
from packhorse.storage.sql.statements import Dialect
from packhorse.storage.sql.storage import SQLStorage
from packhorse.storage.sql.transaction import Shared, SQLTransaction
from packhorse.storage.transfer import Move, decode

R = TypeVar("R")

FOLD_AFTER = 2_000
"""Rows that this process adds before it folds all that it finds."""
REPEATED_CALLS = frozenset({"enqueue"})
"""Calls that are repeated when the connection broke and the server may or may not have done them. That is
harmless because the jobs have ids; a user who repeats the call would give them others, and have every job twice."""
FRESH = 0.02
"""Seconds for which the due time that a reserve without result has read is used."""


class LostRaceError(Exception):
    """Another transaction has changed what this one relied on. It is repeated."""


class ServerTransaction(SQLTransaction):
    """A transaction that collects its events, and adds rows to what is counted instead of changing rows, so that no two
    transactions wait for each other."""

    __slots__ = ("_failures", "deltas", "event_rows", "mark_text")

    def __init__(self, shared: Shared, now: int, mark_text: str | None) -> None:
        super().__init__(shared, now)
        self.mark_text = mark_text  # of a move, as it was when this began
        self.deltas = 0  # rows that it has added to those to be folded
        self.event_rows: list[EventRow] = []
        self._failures: list[Row] = []

    def record(self, events: Iterable[Event]) -> None:
        self.event_rows.extend([event_row(event) for event in events])

    def _count_failure(self, row: Row) -> None:
        self._failures.append(row)

    def absorb(self, other: Any) -> None:
        super().absorb(other)
        self.event_rows += other.event_rows
        self._failures += other._failures

    def _failures_in_order(self) -> list[Row]:
        """In the order of their causes, and written last of all: two transactions that count the same ones never
        deadlock."""
        return sorted(self._failures, key=lambda row: str(row[0]))

    def _deltas(self) -> list[Row]:
        rows: list[Row] = [("tally", 0, *key, number) for key, number in self.tallies.items() if number]
        return rows + self._counted()

    def stored(self, job_ids: Collection[str]) -> set[str]:
        found = super().stored(job_ids)
        if self.read_outside is not None:  # the caller's transaction may not see what others have stored since
            found |= {job.id for job in self.read_outside(list(job_ids))}
        return found

    def prunable_jobs(self, state: State, before: int, limit: int) -> list[Job]:
        jobs = super().prunable_jobs(state, before, limit)
        asked = (to_json([job.id for job in jobs]),)
        # A client may have subscribed while they were looked up and locked.
        wanted = {row[0] for row in self.execute(self._sql["subscribed_among"], asked).fetchall()} if jobs else set()
        return [job for job in jobs if job.id not in wanted]


class ServerStorage(SQLStorage):
    """Jobs in a database on a server."""

    _clock: clock.Now | None  # the server's own, unless a test brings one
    _creates = True
    _unfolded = 0
    due_seen: tuple[float, int | None] | None = None
    """When a reserve found nothing, and how long it was until the next job is due."""

    @property
    def has_test_clock(self) -> bool:
        return self._clock is not None

    def write(self, name: str, work: Callable[[Any], R]) -> R:
        """`_write`, for the hot path."""
        return self._write(name, work)

    def now(self) -> int:
        if self._clock is not None:
            return self._clock()
        ((now,),) = self._db.read("now", self._sql["now"])
        return int(now)

    def require_existing(self) -> None:
        self._creates = False

    def _read_mark(self, tx: Any) -> Move | None:
        return decode(tx.mark_text)

    def next_due(self) -> int | None:
        seen, self.due_seen = self.due_seen, None
        if seen is not None and self._clock is None and (age := time.monotonic() - seen[0]) < FRESH:
            due_in = None if seen[1] is None else seen[1] - round(age * clock.SECOND)
        else:
            ((due_in,),) = self._db.read("next_due", self._sql["next_due"], (self.moment(),))
        return self._unless_moved(due_in)

    # --- enqueue --------------------------------------------------------------------------------------------------

    @abstractmethod
    def _enqueue(self, tx: Any, jobs: Sequence[NewJob]) -> list[Enqueued]:
        """Store new jobs in this transaction."""

    def _enqueue_outside(self, tx: Any, jobs: Sequence[NewJob]) -> list[Enqueued]:
        """Store new jobs in a caller's transaction, which cannot be repeated when it lost a race."""
        if not any(new.unique or new.subscriber for new in jobs):
            return self._enqueue(tx, jobs)
        try:
            enqueued: list[Enqueued] = tx.nested(lambda own: self._enqueue(own, jobs))
            return enqueued
        except LostRaceError:
            return self._enqueue(tx, jobs)

    # --- maintenance: mostly there is nothing to do, and a read before the transaction shows that ---------------------

    def _has_lost(self, called_at: int, lease: int) -> bool:
        return bool(self._db.read("rescue", self._sql["has_lost"], (called_at, called_at, lease))[0][0])

    def _may_have_old(self, keep: Retention, now: int) -> bool:
        ages = (keep.clients, keep.completed, keep.dead, keep.aborted, keep.events)
        return bool(self._db.read("prune", self._sql["has_old"], [now - age for age in ages])[0][0])

    # --- folding --------------------------------------------------------------------------------------------------

    def note_deltas(self, rows: int) -> None:
        """This process has added so many rows to what is counted."""
        self._unfolded += rows
        if self._unfolded >= FOLD_AFTER:
            self._unfolded = 0
            with suppress(StorageError):  # the call itself is done; the next one folds
                self._db.write("fold", self._fold)

    @abstractmethod
    def _fold(self, tx: Any) -> bool:
        """Sum up what was counted. False: another process is doing it."""

    def roll_up(self) -> None:
        def work(tx: Any) -> None:
            if self._fold(tx):
                maintenance.roll_up(tx)

        self._write("roll_up", work)


def ensure_schema(
    what: str, versions: tuple[int, int], wanted: int, create: Callable[[], object], missing: StorageNotFound | None
) -> None:
    """Check that this program, which knows the version `wanted`, can work with the version that is there and the oldest
    program that it supports. Where there is none, create it, or raise `missing` if this program only looks."""
    present, oldest = versions
    if present == 0:
        if missing is not None:
            raise missing
        create()
    elif present < wanted:
        raise SchemaOutdated(f"{what} version {present}; this Packhorse needs {wanted}", hint="run: packhorse migrate")
    elif present > wanted and oldest > wanted:
        raise SchemaTooNew(
            f"{what} version {present}; this Packhorse knows versions up to {wanted}",
            hint="upgrade Packhorse in this program: pip install -U packhorse",
        )


def old_event_condition(dialect: Dialect, before: str) -> str:
    """A condition for events that were written before a time. A start that was stored late, or together with the end of
    its job, has an earlier time than that of its writing: it is as old as the job's latest event, and as the latest
    change of a job that still runs, unless that is a check-in."""
    event, job = f"{dialect.prefix}event", f"{dialect.prefix}job"
    later_event = (
        f"SELECT 1 FROM {event} AS later"
        f" WHERE {dialect.later_of_job.replace('{event}', event)} AND later.at >= {before}"
    )
    later_start = (
        f"SELECT 1 FROM {job} AS job WHERE job.id = {event}.job_id AND job.state = 'running'"
        f" AND job.updated_at >= {before} AND coalesce(job.checkin_at, 0) < job.updated_at"
    )
    stored_late = f"kind = 'started' AND (EXISTS ({later_event}) OR EXISTS ({later_start}))"
    return f"at < {before} AND NOT ({stored_late})"
