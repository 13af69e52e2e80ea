"""The limit on PostgreSQL: a job's row, its events and its counts, through `psycopg`.

The fastest known way: one statement for a single job, COPY for many, one UPDATE for a batch.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import closing
from typing import Any

import psycopg

from bench.bare import ARGS, OWNER, RESULT, TASK
from packhorse.core.ids import new_id
from packhorse.storage.postgres import Postgres

_COLUMNS = (
    "id, task, queue, args, state, priority, rank, created_at, updated_at, queued_at, first_queued_at, max_attempts,"
    " max_halts, persistent"
)
_SINGLE = f"""
WITH job AS (
    INSERT INTO packhorse.packhorse_job ({_COLUMNS})
    VALUES (%s, 'noop', 'noop', %s, 'queued', 1, 12, %s, %s, %s, %s, 4, 3, 0) RETURNING id
),
event AS (
    INSERT INTO packhorse.packhorse_event (at, kind, subject, job_id, queue, state)
    SELECT %s, 'added', 'job', id, 'noop', 'queued' FROM job
)
INSERT INTO packhorse.packhorse_delta (level, at, queue, task, counted, amount)
VALUES ('tally', 0, 'noop', 'noop', 'queued', 1), ('minute', 0, 'noop', 'noop', 'added', 1)
"""
_TAKE = """
UPDATE packhorse.packhorse_job SET state = 'reserved', owner = %s, fence = fence + 1, updated_at = %s WHERE seq IN (
    SELECT seq FROM packhorse.packhorse_job WHERE state = 'queued' AND queue = 'noop' ORDER BY rank, seq LIMIT %s
    FOR UPDATE SKIP LOCKED
) RETURNING id, fence, args
"""
_COMPLETE = """
UPDATE packhorse.packhorse_job AS job SET state = 'completed', owner = NULL, last_owner = %s, started_at = %s,
    finished_at = %s, updated_at = %s, attempts = attempts + 1, result = %s
FROM unnest(%s::text[], %s::bigint[]) AS done (id, fence)
WHERE job.id = done.id AND job.fence = done.fence
"""
_EVENTS = "packhorse_event (at, kind, subject, job_id, queue, state, owner, fence, data)"

Taken = list[tuple[str, int]]


class BarePostgres:
    """One connection to the schema that Packhorse created."""

    def __init__(self, url: str) -> None:
        with closing(Postgres.from_url(url)) as storage:
            storage.tallies()
        self._connection = psycopg.connect(url, autocommit=True)

    def close(self) -> None:
        self._connection.close()

    def enqueue(self, number: int, batch: int) -> None:
        for _ in range(number // batch):
            now = time.time_ns() // 1_000
            if batch == 1:
                self._connection.execute(_SINGLE, (new_id(), ARGS, now, now, now, now, now))
            else:
                self._enqueue_batch(now, batch)

    def _enqueue_batch(self, now: int, batch: int) -> None:
        ids = [new_id() for _ in range(batch)]
        with self._connection.transaction():
            jobs = [(i, TASK, TASK, ARGS, "queued", 1, 12, now, now, now, now, 4, 3, 0) for i in ids]
            self._copy(f"packhorse_job ({_COLUMNS})", jobs)
            self._copy(_EVENTS, [(now, "added", "job", i, TASK, "queued", None, None, None) for i in ids])
            self._count([("tally", "queued", batch), ("minute", "added", batch)])

    def drain(self, batch: int) -> int:
        done: Taken = []
        finished = 0
        while True:
            now = time.time_ns() // 1_000
            with self._connection.transaction():
                events = self._complete(done, now) if done else []
                found = self._connection.execute(_TAKE, (OWNER, now, batch)).fetchall()
                taken = [(i, fence) for i, fence, _ in found]
                events += [(now, "reserved", "job", i, TASK, "reserved", OWNER, fence, None) for i, fence in taken]
                self._copy(_EVENTS, events)
                moves = [("queued", -len(taken)), ("reserved", len(taken) - len(done)), ("completed", len(done))]
                measures = [(name, len(done)) for name in ("completed", "ran", "waited", "run_1ms", "wait_1s")]
                self._count([("tally", *move) for move in moves] + [("minute", *one) for one in measures])
            finished += len(done)
            done = taken
            if not taken:
                return finished

    def _complete(self, done: Taken, now: int) -> list[tuple[Any, ...]]:
        """Complete the jobs; return their events."""
        ids, fences = [i for i, _ in done], [fence for _, fence in done]
        self._connection.execute(_COMPLETE, (OWNER, now, now, now, RESULT, ids, fences))
        events: list[tuple[Any, ...]] = []
        for i, fence in done:
            events.append((now, "started", "job", i, TASK, "running", OWNER, fence, None))
            events.append((now, "completed", "job", i, TASK, "completed", OWNER, fence, '{"ran":1}'))
        return events

    def _copy(self, table: str, rows: Sequence[tuple[Any, ...]]) -> None:
        with self._connection.cursor().copy(f"COPY packhorse.{table} FROM STDIN") as copy:
            for row in rows:
                copy.write_row(row)

    def _count(self, counted: Sequence[tuple[str, str, int]]) -> None:
        rows = [(level, 0, TASK, TASK, what, amount) for level, what, amount in counted]
        self._copy("packhorse_delta (level, at, queue, task, counted, amount)", rows)
