"""Lists of jobs in PostgreSQL, where queued jobs and the others are in different indexes, so that enqueueing writes one
entry less; see `sql/lists.py`."""

from __future__ import annotations

from collections.abc import Iterator

from packhorse.core.job import RANKS
from packhorse.storage.queries import Place
from packhorse.storage.sql import lists
from packhorse.storage.sql.lists import AT_A_TIME

# In one statement, and so of one moment: a job that enters or leaves the queue is neither missed nor seen twice. Here
# and below, bounds are compared as pairs, so that only the right index can serve.
_NEWEST_OF_QUEUE = f"""
SELECT -seq FROM (
    (
        SELECT seq FROM {{jobs}} WHERE queue >= $1 AND (queue, seq) < ($1, $2) AND state <> 'queued'
        ORDER BY queue DESC, seq DESC LIMIT $3
    )
    UNION ALL
    SELECT line.seq FROM generate_series({RANKS[0]}, {RANKS[-1]}) AS place (rank), LATERAL (
        SELECT seq FROM {{jobs}} AS job
        WHERE state = 'queued' AND queue = $1 AND job.rank >= place.rank AND (job.rank, seq) < (place.rank, $2)
        ORDER BY job.rank DESC, seq DESC LIMIT $3
    ) AS line
) AS found ORDER BY seq DESC LIMIT $3"""


PATIENCE = 0.05
"""Seconds for which a list looks for jobs: those that were not read for long come from the disk."""


class PostgresIndex(lists.Index):
    ids_at_a_time = 25_000  # more would take longer than a user waits

    def _walk_one_line(self, rank: int, queue: str, behind: int, first: int) -> Iterator[Place]:
        sql = f"""
        SELECT rank, seq FROM {self._jobs}
        WHERE state = 'queued' AND queue = ? AND rank <= ? AND (rank, seq) > (?, ?) ORDER BY rank, seq"""
        return self._rows(sql, (rank, behind), (queue, rank), first)

    def _newest_with(self, column: str, value: str, behind: int) -> Iterator[Place]:
        sql = f"""
        SELECT -seq FROM {self._jobs} WHERE {column} >= ? AND ({column}, seq) < (?, ?)
        ORDER BY {column} DESC, seq DESC"""
        return self._rows(sql, (behind,), (value, value))

    def _newest_of_queue(self, queue: str, behind: int, first: int) -> Iterator[Place]:
        sql, part = _NEWEST_OF_QUEUE.format(jobs=self._jobs), first
        while rows := self._execute(sql, (queue, behind, part)).fetchall():
            yield from rows
            if len(rows) < part:
                return
            part = min(4 * part, AT_A_TIME)
            behind = -rows[-1][0]
