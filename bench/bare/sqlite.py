"""The limit on SQLite: a job's row, its events, the tallies and the chart's counts, through `sqlite3`."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from bench.bare import ARGS, OWNER, RESULT, TASK
from packhorse.core.ids import new_id
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


class BareSQLite:
    """One connection, set as Packhorse sets its own."""

    def __init__(self, url: str) -> None:
        path = Path(url.removeprefix("sqlite:///"))
        self._connection = sqlite3.connect(path, isolation_level=None)
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute("PRAGMA synchronous = full")
        self._connection.execute("PRAGMA wal_autocheckpoint = 16000")
        prepare(self._connection, path)

    def close(self) -> None:
        self._connection.close()

    def enqueue(self, number: int, batch: int) -> None:
        connection = self._connection
        for _ in range(number // batch):
            now = time.time_ns() // 1_000
            ids = [new_id() for _ in range(batch)]
            connection.execute("BEGIN IMMEDIATE")
            pack = self._pack(now, "added", "queued", [(i, 0) for i in ids]) if batch > 1 else ""
            connection.executemany(
                _JOB, [(i, TASK, TASK, ARGS, "queued", 1, 12, now, now, now, now, 4, 3, 0, pack) for i in ids]
            )
            if batch == 1:
                connection.execute(_ADDED, (now, ids[0], TASK))
            connection.execute(_TALLY, ("queued", batch))
            connection.execute(_MEASURE, ("added", batch))
            connection.execute("COMMIT")

    def drain(self, batch: int) -> int:
        connection = self._connection
        done: list[tuple[str, int]] = []
        finished = 0
        while True:
            now = time.time_ns() // 1_000
            connection.execute("BEGIN IMMEDIATE")
            if done:
                self._complete(done, now)
            taken = connection.execute(_LINE, (batch,)).fetchall()
            if taken:
                pack = self._pack(now, "reserved", "reserved", [(i, 1) for i, *_ in taken])
                connection.execute(_TAKE, (OWNER, now, pack, taken[0][1], taken[-1][1]))
            moves = [("queued", -len(taken)), ("reserved", len(taken) - len(done)), ("completed", len(done))]
            connection.executemany(_TALLY, moves)
            connection.execute("COMMIT")
            finished += len(done)
            done = [(i, seq) for i, seq, *_ in taken]
            if not taken:
                return finished

    def _complete(self, done: list[tuple[str, int]], now: int) -> None:
        packs = self._pack(now, "started", "running", [(i, 1, -1) for i, _ in done])
        packs += self._pack(now, "completed", "completed", [(i, 1, 0, {"ran": 1}) for i, _ in done])
        rows = [(OWNER, now, now, now, RESULT, packs, seq, OWNER) for _, seq in done]
        self._connection.executemany(_COMPLETE, rows)
        self._connection.executemany(
            _MEASURE, [(name, len(done)) for name in ("completed", "ran", "waited", "run_1ms", "wait_1s")]
        )

    def _pack(self, now: int, kind: str, state: str, jobs: Sequence[tuple[object, ...]]) -> str:
        """Insert one row for the same event of many jobs; return its id as the jobs store it."""
        row = (now, kind, state, OWNER, msgspec.json.encode(jobs).decode(), len(jobs) - 1)
        return f"{self._connection.execute(_PACK, row).lastrowid},"
