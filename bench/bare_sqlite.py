"""The limit on SQLite: plain loops over `sqlite3` that write the rows Packhorse writes, and do nothing else.

Same schema, same durability, same batches: a job's row, its events, the tallies and the chart's counts. No checks, no
fences, no retries. What Packhorse adds is the distance to these.
"""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path

import msgspec

from packhorse.ids import new_id
from packhorse.storage.sqlite.schema import prepare

_JOB = (
    "INSERT INTO packhorse_job (id, task, queue, args, state, priority, rank, created_at, updated_at, queued_at,"
    " first_queued_at, max_attempts, max_halts, persistent, packs) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
_ADDED = (
    "INSERT INTO packhorse_event (at, kind, subject, job_id, queue, state) VALUES (?, 'added', 'job', ?, ?, 'queued')"
)
_PACK = (
    "INSERT INTO packhorse_event (at, kind, subject, queue, state, owner, jobs, span)"
    " VALUES (?, ?, 'job', 'noop', ?, ?, ?, ?)"
)
_TALLY = (
    "INSERT INTO packhorse_tally (queue, task, state, number) VALUES ('noop', 'noop', ?, ?)"
    " ON CONFLICT (queue, task, state) DO UPDATE SET number = number + excluded.number"
)
_MEASURE = (
    "INSERT INTO packhorse_measure (level, at, queue, task, counted, amount) VALUES ('minute', 0, 'noop', 'noop', ?, ?)"
    " ON CONFLICT (level, at, queue, task, counted) DO UPDATE SET amount = amount + excluded.amount"
)
_LINE = (
    "SELECT id, seq, task, args, fence FROM packhorse_job"
    " WHERE state = 'queued' AND rank = 12 AND queue = 'noop' ORDER BY seq LIMIT ?"
)
_TAKE = (
    "UPDATE packhorse_job SET state = 'reserved', owner = ?, fence = fence + 1, updated_at = ?, packs = packs || ?"
    " WHERE state = 'queued' AND rank = 12 AND queue = 'noop' AND seq BETWEEN ? AND ?"
)
_COMPLETE = (
    "UPDATE packhorse_job SET state = 'completed', owner = NULL, last_owner = ?, started_at = ?, finished_at = ?,"
    " updated_at = ?, attempts = attempts + 1, result = ?, packs = packs || ? WHERE seq = ? AND owner = ? AND fence = 1"
)
ARGS = '{"user_id":1,"email":"a@b.c"}'
OWNER = "a" * 22


def open_bare(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = full")
    connection.execute("PRAGMA wal_autocheckpoint = 16000")
    prepare(connection, path)
    return connection


def enqueue(connection: sqlite3.Connection, number: int, batch: int) -> None:
    """Insert `number` jobs, `batch` to a commit."""
    for _ in range(number // batch):
        now = time.time_ns() // 1_000
        ids = [new_id() for _ in range(batch)]
        connection.execute("BEGIN IMMEDIATE")
        pack = "" if batch == 1 else _pack(connection, now, "added", "queued", [(i, 0) for i in ids])
        connection.executemany(
            _JOB, [(i, "noop", "noop", ARGS, "queued", 1, 12, now, now, now, now, 4, 3, 0, pack) for i in ids]
        )
        if batch == 1:
            connection.execute(_ADDED, (now, ids[0], "noop"))
        connection.execute(_TALLY, ("queued", batch))
        connection.execute(_MEASURE, ("added", batch))
        connection.execute("COMMIT")


def _pack(connection: sqlite3.Connection, now: int, kind: str, state: str, jobs: list[tuple[object, ...]]) -> str:
    """One row for the same event of many jobs; answers its id as the jobs keep it."""
    row = (now, kind, state, OWNER, msgspec.json.encode(jobs).decode(), len(jobs) - 1)
    return f"{connection.execute(_PACK, row).lastrowid},"


def drain(connection: sqlite3.Connection, batch: int) -> int:
    """Reserve and complete everything, a batch's completion and the next reservation in one commit."""
    done: list[tuple[str, int, str, str, int]] = []
    finished = 0
    while True:
        now = time.time_ns() // 1_000
        connection.execute("BEGIN IMMEDIATE")
        if done:
            packs = _pack(connection, now, "started", "running", [(job[0], 1, -1) for job in done])
            packs += _pack(connection, now, "completed", "completed", [(job[0], 1, 0, {"ran": 1}) for job in done])
            connection.executemany(_COMPLETE, [(OWNER, now, now, now, "null", packs, job[1], OWNER) for job in done])
            connection.executemany(_MEASURE, [(name, len(done)) for name in ("completed", "ran", "waited", "ran_1ms")])
            finished += len(done)
        taken = connection.execute(_LINE, (batch,)).fetchall()
        if taken:
            pack = _pack(connection, now, "reserved", "reserved", [(job[0], 1) for job in taken])
            connection.execute(_TAKE, (OWNER, now, pack, taken[0][1], taken[-1][1]))
        moves = [("queued", -len(taken)), ("reserved", len(taken) - len(done)), ("completed", len(done))]
        connection.executemany(_TALLY, moves)
        connection.execute("COMMIT")
        done = taken
        if not taken:
            return finished
