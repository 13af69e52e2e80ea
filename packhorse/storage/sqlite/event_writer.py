"""Collects the events of a transaction and writes them just before its commit.

Events that differ only in their jobs, as those of one call do, become one row: an event batch. Each job of a batch
keeps the id of the batch in the `packs` column of its own row, by which its events are found; so that id must be known
before anything is written. The jobs of a batch may be of several queues: its row then has no queue, and `data` says how
many jobs each has.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from itertools import chain, repeat
from typing import Any, NamedTuple

import msgspec

from packhorse.core.event import Event, Kind, Subject, kind_of
from packhorse.storage.sql.rows import EventRow, Row, event_of, event_row, from_json, to_json

BatchedJob = tuple[Any, ...]
"""What is particular to one event of a batch: (job_id, fence, its `at` minus the batch's, data); the last may lack."""

QueueCounts = Sequence[tuple[str, int]]
"""The queues of the jobs of a batch, and how many jobs each has, in the order of the jobs."""

SMALLEST_BATCH = 4
"""Fewer events are written as rows of their own."""

EVENT_COLUMNS = "id, at, kind, subject, job_id, queue, state, owner, fence, data, jobs, span"

_LAST_ID = "SELECT coalesce(max(id), 0) FROM packhorse_event"
_INSERT = (
    "INSERT INTO packhorse_event (at, kind, subject, job_id, queue, state, owner, fence, data)"
    " VALUES (?, ?, ?, ?, ?, ?, nullif(?, ''), nullif(?, 0), nullif(?, ''))"
)
_INSERT_AT = (
    "INSERT INTO packhorse_event (at, kind, subject, job_id, queue, state, owner, fence, data, id)"
    " VALUES (?, ?, ?, ?, ?, ?, nullif(?, ''), nullif(?, 0), nullif(?, ''), ?)"
)
_MANY_ROWS = 8
"""From so many rows on, one statement with JSON is faster."""


class BulkInsert:
    """Inserts rows into these columns of a table; `conflict` says what happens to a row that exists.

    The driver releases the GIL for each row that it is given, and must wait for it while jobs run; so many rows are
    given to one statement, as JSON."""

    def __init__(self, table: str, columns: Sequence[str], conflict: str = "") -> None:
        into = f"INSERT INTO {table} ({', '.join(columns)})"
        values = ", ".join(f"value ->> {number}" for number in range(len(columns)))
        self._each = f"{into} VALUES ({', '.join('?' * len(columns))}) {conflict}"
        self._all = f"{into} SELECT {values} FROM json_each(?) WHERE true {conflict}"

    def insert(self, connection: sqlite3.Connection | sqlite3.Cursor, rows: Sequence[Row]) -> None:
        if len(rows) >= _MANY_ROWS:
            connection.execute(self._all, (to_json(rows),))
        elif rows:
            connection.executemany(self._each, rows)


_BATCHES = BulkInsert(
    "packhorse_event", ("id", "at", "kind", "subject", "queue", "state", "owner", "data", "jobs", "span")
)


class _EventBatch(NamedTuple):
    kind: str
    queues: QueueCounts
    state: str
    owner: str
    jobs: Sequence[BatchedJob]

    def row(self, number: int, now: int) -> Row:
        """Its row; `number` is the id of its newest event."""
        queue, data = (self.queues[0][0], None) if len(self.queues) == 1 else (None, to_json(self.queues))
        state, owner, jobs = self.state, self.owner or None, self.jobs
        return (number, now, self.kind, "job", queue, state, owner, data, to_json(jobs), len(jobs) - 1)


class EventWriter:
    """The events of one call, or of all calls that share a commit. `before` is the writer of the surrounding
    transaction, whose events come first."""

    __slots__ = ("_batches", "_before", "_connection", "_last_id", "_rows", "number")

    def __init__(self, connection: sqlite3.Connection | sqlite3.Cursor, before: EventWriter | None = None) -> None:
        self._connection = connection
        self._before: int = before.number if before is not None else 0
        self._last_id: int | None = before._last_id if before is not None else None  # the newest stored id, once read
        self._rows: list[EventRow | _EventBatch] = []
        self._batches = 0
        self.number: int = self._before

    def add(self, rows: Sequence[EventRow]) -> None:
        """Add events that get a row each."""
        self._rows += rows
        self.number += len(rows)

    def add_batch(
        self, kind: Kind, now: int, queues: QueueCounts, state: str, owner: str, jobs: Sequence[BatchedJob]
    ) -> str:
        """Add the same event for many jobs. Returns what to append to the `packs` column of each job."""
        if len(jobs) < SMALLEST_BATCH:
            each = zip(_queues_of(queues), jobs, strict=True)
            self.add([_row(kind.value, now, queue, state, owner, *job) for queue, job in each])
            return ""
        self._rows.append(_EventBatch(kind.value, queues, state, owner, jobs))
        self._batches += 1
        self.number += len(jobs)
        return f"{self._newest() + self.number},"

    def _newest(self) -> int:
        """The newest id that is stored."""
        if self._last_id is None:
            self._last_id = int(self._connection.execute(_LAST_ID).fetchone()[0])
        return self._last_id

    def put_back(self, events: Sequence[Event]) -> None:
        """Write what is left of a batch: each event gets a row of its own and keeps its id."""
        self._connection.executemany(_INSERT_AT, [(*event_row(event), event.id) for event in events])

    def absorb(self, other: EventWriter) -> None:
        """Take over the events of a call within this transaction, which began after those here."""
        self._rows += other._rows
        self._batches += other._batches
        self._last_id = other._last_id
        self.number = other.number

    def flush(self, now: int) -> None:
        """Write the events, in order."""
        if not self._batches:
            if self._rows:
                self._connection.executemany(_INSERT, self._rows)
            return
        rows: list[Row] = []
        batches: list[Row] = []
        number = self._newest() + self._before
        for row in self._rows:
            if type(row) is _EventBatch:
                number += len(row.jobs)
                batches.append(row.row(number, now))
            else:
                number += 1
                rows.append((*row, number))
        self._connection.executemany(_INSERT_AT, rows)
        _BATCHES.insert(self._connection, batches)


def _row(
    kind: str, now: int, queue: str, state: str, owner: str, job_id: str, fence: int, at: int = 0, data: object = None
) -> EventRow:
    return (now + at, kind, "job", job_id, queue, state, owner, fence, "" if data is None else to_json(data))


def events_of(row: Row, job_id: str | None = None) -> list[Event]:
    """The events in a row of `EVENT_COLUMNS`: one, or all of a batch; with `job_id`, only this job's."""
    number, at, kind, _, _, queue, state, owner, _, data, jobs, span = row
    if jobs is None:
        return [event_of(row[:-2])]
    try:
        found = from_json(jobs)
        queues = repeat(queue) if data is None else _queues_of(from_json(data))
        return [
            _event(number - span + place, at, kind_of(kind), its_queue, state, owner, *job)
            for place, (its_queue, job) in enumerate(zip(queues, found, strict=False))
            if job_id is None or job[0] == job_id
        ]
    except (msgspec.MsgspecError, TypeError, ValueError):  # the row was damaged
        return [event_of((*row[:9], jobs))]


def _queues_of(queues: QueueCounts) -> Iterator[str]:
    """The queue of each job of a batch, in order."""
    return chain.from_iterable(repeat(queue, number) for queue, number in queues)


def _event(
    number: int,
    now: int,
    kind: Kind,
    queue: str,
    state: str,
    owner: str | None,
    job_id: str,
    fence: int,
    at: int = 0,
    data: dict[str, Any] | None = None,
) -> Event:
    return Event(kind, now + at, Subject.JOB, job_id, queue, state, owner, fence or None, data, number)
