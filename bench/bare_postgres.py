"""The limit on PostgreSQL: plain loops over psycopg that write the rows Packhorse writes, and do nothing else.

Same schema, same durability, same batches, the best way known to write them: COPY into the tables, one UPDATE for a
batch. No checks, no fences, no retries, no turns. What Packhorse adds is the distance to these.
"""

from __future__ import annotations

import time
from typing import Any

import psycopg

from packhorse.ids import new_id

_JOB_COLUMNS = (
    "id, task, queue, args, state, priority, rank, created_at, updated_at, queued_at, first_queued_at, max_attempts,"
    " max_halts, persistent"
)
_TAKE = """
UPDATE {schema}.packhorse_job SET state = 'reserved', owner = %s, fence = fence + 1, updated_at = %s WHERE seq IN (
    SELECT seq FROM {schema}.packhorse_job WHERE state = 'queued' AND queue = 'noop' ORDER BY rank, seq LIMIT %s
    FOR UPDATE SKIP LOCKED
) RETURNING id, fence, args
"""
_COMPLETE = """
UPDATE {schema}.packhorse_job AS job SET state = 'completed', owner = NULL, last_owner = %s, started_at = %s,
    finished_at = %s, updated_at = %s, attempts = attempts + 1, result = done.result
FROM unnest(%s::text[], %s::bigint[], %s::text[]) AS done (id, fence, result)
WHERE job.id = done.id AND job.fence = done.fence
"""
_SINGLE = """
WITH job AS (
    INSERT INTO {schema}.packhorse_job ({columns})
    VALUES (%s, 'noop', 'noop', %s, 'queued', 1, 12, %s, %s, %s, %s, 4, 3, 0) RETURNING id
),
event AS (
    INSERT INTO {schema}.packhorse_event (at, kind, subject, job_id, queue, state)
    SELECT %s, 'added', 'job', id, 'noop', 'queued' FROM job
)
INSERT INTO {schema}.packhorse_delta (level, at, queue, task, counted, amount)
VALUES ('tally', 0, 'noop', 'noop', 'queued', 1), ('minute', 0, 'noop', 'noop', 'added', 1)
"""
ARGS = '{"user_id":1,"email":"a@b.c"}'
OWNER = "a" * 32


class Bare:
    """A connection and the schema that Packhorse has made."""

    def __init__(self, url: str, schema: str) -> None:
        self._connection = psycopg.connect(url, autocommit=True)
        self._schema = schema

    def close(self) -> None:
        self._connection.close()

    def _sql(self, sql: str) -> Any:
        return sql.replace("{schema}", self._schema).replace("{columns}", _JOB_COLUMNS)

    def enqueue(self, number: int) -> None:
        """Insert jobs, one to a commit."""
        sql = self._sql(_SINGLE)
        for _ in range(number):
            now = time.time_ns() // 1_000
            self._connection.execute(sql, (new_id(), ARGS, now, now, now, now, now))

    def enqueue_many(self, number: int, batch: int) -> None:
        """COPY jobs in, `batch` to a commit."""
        for _ in range(number // batch):
            now = time.time_ns() // 1_000
            ids = [new_id() for _ in range(batch)]
            with self._connection.transaction():
                self._copy(
                    f"packhorse_job ({_JOB_COLUMNS})",
                    [(i, "noop", "noop", ARGS, "queued", 1, 12, now, now, now, now, 4, 3, 0) for i in ids],
                )
                self._copy(
                    "packhorse_event (at, kind, subject, job_id, queue, state)",
                    [(now, "added", "job", i, "noop", "queued") for i in ids],
                )
                self._count([("tally", "queued", batch), ("minute", "added", batch)])

    def drain(self, batch: int) -> int:
        """Reserve and complete everything, a batch's completion and the next reservation in one commit."""
        done: list[tuple[str, int, str]] = []
        finished = 0
        take, complete = self._sql(_TAKE), self._sql(_COMPLETE)
        while True:
            now = time.time_ns() // 1_000
            events: list[tuple[Any, ...]] = []
            with self._connection.transaction():
                if done:
                    ids, fences, results = [one[0] for one in done], [one[1] for one in done], ["null"] * len(done)
                    self._connection.execute(complete, (OWNER, now, now, now, ids, fences, results))
                    for i, fence, _ in done:
                        events.append((now, "started", "job", i, "noop", "running", OWNER, fence, None))
                        events.append((now, "completed", "job", i, "noop", "completed", OWNER, fence, '{"ran":1}'))
                    finished += len(done)
                taken = self._connection.execute(take, (OWNER, now, batch)).fetchall()
                events += [(now, "reserved", "job", i, "noop", "reserved", OWNER, fence, None) for i, fence, _ in taken]
                self._copy("packhorse_event (at, kind, subject, job_id, queue, state, owner, fence, data)", events)
                moves = [("tally", "queued", -len(taken)), ("tally", "completed", len(done))]
                self._count([*moves, ("minute", "completed", len(done)), ("minute", "ran", len(done))])
            done = taken
            if not taken:
                return finished

    def _copy(self, table: str, rows: list[tuple[Any, ...]]) -> None:
        with self._connection.cursor().copy(f"COPY {self._schema}.{table} FROM STDIN") as copy:
            for row in rows:
                copy.write_row(row)

    def _count(self, counted: list[tuple[str, str, int]]) -> None:
        rows = [(level, 0, "noop", "noop", what, amount) for level, what, amount in counted]
        self._copy("packhorse_delta (level, at, queue, task, counted, amount)", rows)
