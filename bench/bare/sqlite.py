"""The limit on SQLite: a job's row, its events, the tallies and the chart's counts, through `sqlite3`."""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path

from bench.bare import ARGS, OWNER, RESULT, TASK
from packhorse.ids import new_id
from packhorse.storage.sqlite.schema import prepare

_JOB = (
    "INSERT INTO packhorse_job (id, task, queue, args, state, priority, rank, created_at, updated_at, queued_at,"
    " first_queued_at, max_attempts, max_halts, persistent) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
_ADDED = (
    "INSERT INTO packhorse_event (at, kind, subject, job_id, queue, state) VALUES (?, 'added', 'job', ?, ?, 'queued')"
)
_EVENT = (
    "INSERT INTO packhorse_event (at, kind, subject, job_id, queue, state, owner, fence, data)"
    " VALUES (?, ?, 'job', ?, ?, ?, ?, ?, nullif(?, ''))"
)
_TALLY = (
    "INSERT INTO packhorse_tally (queue, task, state, number) VALUES ('noop', 'noop', ?, ?)"
    " ON CONFLICT (queue, task, state) DO UPDATE SET number = number + excluded.number"
)
_MEASURE = (
    "INSERT INTO packhorse_measure (level, at, queue, task, counted, amount) VALUES ('minute', 0, 'noop', 'noop', ?, ?)"
    " ON CONFLICT (level, at, queue, task, counted) DO UPDATE SET amount = amount + excluded.amount"
)
_TAKE = (
    "UPDATE packhorse_job SET state = 'reserved', owner = ?, fence = fence + 1, updated_at = ? WHERE seq IN"
    " (SELECT seq FROM packhorse_job WHERE state = 'queued' AND rank = 12 AND queue = 'noop' ORDER BY seq LIMIT ?)"
    " RETURNING id, fence, args"
)
_COMPLETE = (
    "UPDATE packhorse_job SET state = 'completed', owner = NULL, last_owner = ?, started_at = ?, finished_at = ?,"
    " updated_at = ?, attempts = attempts + 1, result = ? WHERE id = ? AND owner = ? AND fence = ?"
)


class BareSQLite:
    """One connection, set as Packhorse sets its own."""

    def __init__(self, url: str) -> None:
        path = Path(url.removeprefix("sqlite:///"))
        self._connection = sqlite3.connect(path, isolation_level=None)
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute("PRAGMA synchronous = full")
        self._connection.execute("PRAGMA wal_autocheckpoint = 4000")
        prepare(self._connection, path)

    def enqueue(self, number: int, batch: int) -> None:
        connection = self._connection
        for _ in range(number // batch):
            now = time.time_ns() // 1_000
            ids = [new_id() for _ in range(batch)]
            connection.execute("BEGIN IMMEDIATE")
            connection.executemany(
                _JOB, [(i, TASK, TASK, ARGS, "queued", 1, 12, now, now, now, now, 4, 3, 0) for i in ids]
            )
            connection.executemany(_ADDED, [(now, i, TASK) for i in ids])
            connection.execute(_TALLY, ("queued", batch))
            connection.execute(_MEASURE, ("added", batch))
            connection.execute("COMMIT")

    def drain(self, batch: int) -> int:
        connection = self._connection
        done: list[tuple[str, int, str]] = []
        finished = 0
        while True:
            now = time.time_ns() // 1_000
            connection.execute("BEGIN IMMEDIATE")
            events = self._complete(done, now) if done else []
            taken = connection.execute(_TAKE, (OWNER, now, batch)).fetchall()
            events += [(now, "reserved", i, TASK, "reserved", OWNER, fence, "") for i, fence, _ in taken]
            connection.executemany(_EVENT, events)
            moves = [("queued", -len(taken)), ("reserved", len(taken) - len(done)), ("completed", len(done))]
            connection.executemany(_TALLY, moves)
            connection.execute("COMMIT")
            finished += len(done)
            done = taken
            if not taken:
                return finished

    def _complete(self, done: list[tuple[str, int, str]], now: int) -> list[tuple[object, ...]]:
        """Write the outcomes; answers their events."""
        rows = [(OWNER, now, now, now, RESULT, i, OWNER, fence) for i, fence, _ in done]
        self._connection.executemany(_COMPLETE, rows)
        self._connection.executemany(
            _MEASURE, [(name, len(done)) for name in ("completed", "ran", "waited", "ran_1ms")]
        )
        events: list[tuple[object, ...]] = []
        for i, fence, _ in done:
            events.append((now, "started", i, TASK, "running", OWNER, fence, ""))
            events.append((now, "completed", i, TASK, "completed", OWNER, fence, '{"ran":1}'))
        return events
