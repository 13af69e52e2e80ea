"""Lists of a queue's jobs in PostgreSQL, where those in line and the others are in different indexes: an entry less has
to be written for a job that is enqueued. The rest is in `sql/lists.py`."""

from __future__ import annotations

from collections.abc import Iterator

from packhorse.core.job import RANKS
from packhorse.storage.queries import Place
from packhorse.storage.sql import lists
from packhorse.storage.sql.lists import AT_ONCE
from packhorse.storage.sql.transaction import SQLConnection

# In one statement, and so of one moment: a job that comes into line or leaves it is neither missed nor seen twice.
# Here and below, what is before a place is said as a pair: no other index can look for that, or give the order.
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


class Lists(lists.Lists):
    _patience = 0.05  # what nobody has looked at for long comes from the disk

    def _index(self, connection: SQLConnection) -> lists.Index:
        return Index(connection, self._dialect, self._sql)


class Index(lists.Index):
    ids_at_once = 25_000  # a look at more takes longer than whoever searches has patience for

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
            part = min(4 * part, AT_ONCE)
            behind = -rows[-1][0]
