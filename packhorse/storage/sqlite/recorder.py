"""The recorder: gathers the events of a transaction and writes them just before its commit.

Events that differ only in their jobs, as those of a batch do, become one row: a pack. A job that is in a pack keeps the
pack's id in its own row, which is how its events are found; so the id must be known before anything is written. The
jobs of a pack may be of several queues: its row then has no queue, and tells in `data` how many are of which.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from itertools import chain, repeat
from typing import Any, NamedTuple

import msgspec

from packhorse.core.event import Event, Kind, Subject, kind_of
from packhorse.storage.sql.rows import EventRow, Row, event_of, event_row, from_json, to_json
from packhorse.storage.sqlite.insert import Insert

Packed = tuple[Any, ...]
"""What an event of a pack has of its own: (job_id, fence, its `at` less the pack's, data); the last ones may lack."""

Lines = Sequence[tuple[str, int]]
"""Of which queues the jobs of a pack are, and how many of each, in the order of the jobs."""

FEWEST = 4
"""So many alike events are worth a pack; fewer are rows of their own."""

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
_INSERT_PACK = Insert(
    "packhorse_event", ("id", "at", "kind", "subject", "queue", "state", "owner", "data", "jobs", "span")
)


class _Pack(NamedTuple):
    kind: str
    lines: Lines
    state: str
    owner: str
    jobs: Sequence[Packed]

    def row(self, number: int, now: int) -> Row:
        """It as a row; the newest of its events has this number."""
        queue, data = (self.lines[0][0], None) if len(self.lines) == 1 else (None, to_json(self.lines))
        state, owner, jobs = self.state, self.owner or None, self.jobs
        return (number, now, self.kind, "job", queue, state, owner, data, to_json(jobs), len(jobs) - 1)


class Recorder:
    """The events of one call, or of all calls that share a commit. `before` counts those that others have recorded in
    the same transaction."""

    __slots__ = ("_before", "_connection", "_last_id", "_packs", "_rows", "number")

    def __init__(self, connection: sqlite3.Connection | sqlite3.Cursor, before: Recorder | None = None) -> None:
        self._connection = connection
        self._before: int = before.number if before is not None else 0
        self._last_id: int | None = before._last_id if before is not None else None  # the newest stored id, once asked
        self._rows: list[EventRow | _Pack] = []
        self._packs = 0
        self.number: int = self._before

    def add(self, rows: Sequence[EventRow]) -> None:
        """Events that stand for themselves."""
        self._rows += rows
        self.number += len(rows)

    def pack(self, kind: Kind, now: int, lines: Lines, state: str, owner: str, jobs: Sequence[Packed]) -> str:
        """The same event for many jobs. Answers what each of them has to append to its `packs`."""
        if len(jobs) < FEWEST:
            each = zip(_queues_of(lines), jobs, strict=True)
            self.add([_row(kind.value, now, queue, state, owner, *job) for queue, job in each])
            return ""
        self._rows.append(_Pack(kind.value, lines, state, owner, jobs))
        self._packs += 1
        self.number += len(jobs)
        return f"{self._newest() + self.number},"

    def _newest(self) -> int:
        """The newest id that is stored."""
        if self._last_id is None:
            self._last_id = int(self._connection.execute(_LAST_ID).fetchone()[0])
        return self._last_id

    def put_back(self, events: Sequence[Event]) -> None:
        """Events that keep their ids, each as a row of its own: what is left of a pack."""
        self._connection.executemany(_INSERT_AT, [(*event_row(event), event.id) for event in events])

    def absorb(self, other: Recorder) -> None:
        """What a call within this transaction has recorded; it began where this one stands."""
        self._rows += other._rows
        self._packs += other._packs
        self._last_id = other._last_id
        self.number = other.number

    def flush(self, now: int) -> None:
        """Write them, in their order."""
        if not self._packs:
            if self._rows:
                self._connection.executemany(_INSERT, self._rows)
            return
        rows: list[Row] = []
        packs: list[Row] = []
        number = self._newest() + self._before
        for row in self._rows:
            if type(row) is _Pack:
                number += len(row.jobs)
                packs.append(row.row(number, now))
            else:
                number += 1
                rows.append((*row, number))
        self._connection.executemany(_INSERT_AT, rows)
        _INSERT_PACK.put(self._connection, packs)


def _row(
    kind: str, now: int, queue: str, state: str, owner: str, job_id: str, fence: int, at: int = 0, data: object = None
) -> EventRow:
    return (now + at, kind, "job", job_id, queue, state, owner, fence, "" if data is None else to_json(data))


def events_of(row: Row, job_id: str | None = None) -> list[Event]:
    """The events of a row of `EVENT_COLUMNS`: one, or all those of a pack; with `job_id`, of a pack only this job's."""
    number, at, kind, _, _, queue, state, owner, _, data, jobs, span = row
    if jobs is None:
        return [event_of(row[:-2])]
    try:
        told = from_json(jobs)
        queues = repeat(queue) if data is None else _queues_of(from_json(data))
        return [
            _unpacked(number - span + place, at, kind_of(kind), its_queue, state, owner, *packed)
            for place, (its_queue, packed) in enumerate(zip(queues, told, strict=False))
            if job_id is None or packed[0] == job_id
        ]
    except (msgspec.MsgspecError, TypeError, ValueError):  # somebody has garbled it
        return [event_of((*row[:9], jobs))]


def _queues_of(lines: Lines) -> Iterator[str]:
    """The queue of each job of a pack, in their order."""
    return chain.from_iterable(repeat(queue, number) for queue, number in lines)


def _unpacked(
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
