"""The limit on SQLite: plain loops over `sqlite3` that write the rows Packhorse writes, and do nothing else.

Same schema, same durability, same batches: a job's row, its events, the tallies and the chart's counts. No checks, no
fences, no retries. What Packhorse adds is the distance to these.
"""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path

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
ARGS = '{"user_id":1,"email":"a@b.c"}'
OWNER = "a" * 32


def open_bare(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = full")
    connection.execute("PRAGMA wal_autocheckpoint = 4000")
    prepare(connection, path)
    return connection


def enqueue(connection: sqlite3.Connection, number: int, batch: int) -> None:
    """Insert `number` jobs, `batch` to a commit."""
    for _ in range(number // batch):
        now = time.time_ns() // 1_000
        ids = [new_id() for _ in range(batch)]
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany(
            _JOB, [(i, "noop", "noop", ARGS, "queued", 1, 12, now, now, now, now, 4, 3, 0) for i in ids]
        )
        connection.executemany(_ADDED, [(now, i, "noop") for i in ids])
        connection.execute(_TALLY, ("queued", batch))
        connection.execute(_MEASURE, ("added", batch))
        connection.execute("COMMIT")


def drain(connection: sqlite3.Connection, batch: int) -> int:
    """Reserve and complete everything, a batch's completion and the next reservation in one commit."""
    done: list[tuple[str, int, str]] = []
    finished = 0
    while True:
        now = time.time_ns() // 1_000
        events: list[tuple[object, ...]] = []
        connection.execute("BEGIN IMMEDIATE")
        if done:
            connection.executemany(_COMPLETE, [(OWNER, now, now, now, "null", i, OWNER, fence) for i, fence, _ in done])
            for i, fence, _ in done:
                events.append((now, "started", i, "noop", "running", OWNER, fence, ""))
                events.append((now, "completed", i, "noop", "completed", OWNER, fence, '{"ran":1}'))
            connection.executemany(_MEASURE, [(name, len(done)) for name in ("completed", "ran", "waited", "ran_1ms")])
            finished += len(done)
        taken = connection.execute(_TAKE, (OWNER, now, batch)).fetchall()
        events += [(now, "reserved", i, "noop", "reserved", OWNER, fence, "") for i, fence, _ in taken]
        connection.executemany(_EVENT, events)
        moves = [("queued", -len(taken)), ("reserved", len(taken) - len(done)), ("completed", len(done))]
        connection.executemany(_TALLY, moves)
        connection.execute("COMMIT")
        done = taken
        if not taken:
            return finished
