"""Lists and counts of jobs, along the indexes that MySQL has. How they are walked is in `sql/lists.py`."""

from __future__ import annotations

from collections.abc import Iterator

from packhorse.job import HELD, RETRYING
from packhorse.storage.listing import BY_DUE_TIME, Order, Place
from packhorse.storage.mysql.keeper import MySQLKeeper
from packhorse.storage.records import Filter
from packhorse.storage.sql import lists
from packhorse.storage.sql.dialect import Dialect
from packhorse.storage.sql.transaction import Connection


class Lists(MySQLKeeper, lists.Lists):
    def _index(self, connection: Connection) -> lists.Index:
        return _Index(connection, self._dialect, self._sql["lines_of_rank"])


class _Index(lists.Index):
    """Each walk names its index: the server would now and then sort all jobs instead."""

    def __init__(self, connection: Connection, dialect: Dialect, lines_of_rank: str) -> None:
        super().__init__(connection, dialect, lines_of_rank)
        self._ids = f"{self._jobs} FORCE INDEX (packhorse_job_id)"

    def walk(self, order: Order, where: Filter, after: Place | None) -> Iterator[Place]:
        if order is BY_DUE_TIME:
            # Few jobs retry, and those have an index to themselves; many may be scheduled.
            is_retrying = where.states == {RETRYING}
            index, column = ("packhorse_job_retrying", "retry_at") if is_retrying else ("packhorse_job_due", "due_at")
            return self._rows(
                f"SELECT {column}, seq FROM {self._jobs} FORCE INDEX ({index}) WHERE ({column}, seq) > (?, ?)"
                f" ORDER BY {column}, seq",
                after or (-1, -1),
            )
        return super().walk(order, where, after)

    def _walk_one_line(self, rank: int, queue: str, behind: int, first: int) -> Iterator[Place]:
        return self._rows(
            f"SELECT `rank`, seq FROM {self._jobs} FORCE INDEX (packhorse_job_line)"
            " WHERE line = ? AND `rank` = ? AND seq > ? ORDER BY seq",
            (behind,),
            (queue, rank),
            first,
        )

    def _walk_finished(self, state: str, after: Place | None) -> Iterator[Place]:
        return self._rows(
            f"SELECT -finished_at, -seq FROM {self._jobs} FORCE INDEX (packhorse_job_finished)"
            " WHERE ended = ? AND (finished_at, seq) < (?, ?) ORDER BY finished_at DESC, seq DESC",
            (-after[0], -after[1]) if after else (lists.HIGHEST, lists.HIGHEST),
            (state,),
        )

    def _walk_newest(self, where: Filter, after: Place | None) -> Iterator[Place]:
        index, condition, values = "PRIMARY", "", ()  # type: tuple[str, str, tuple[str, ...]]
        if where.owner is not None:
            index, condition, values = "packhorse_job_held", "owner = ? AND ", (where.owner,)
        elif where.states and where.states <= HELD:
            index, condition = "packhorse_job_held", "owner IS NOT NULL AND "
        elif where.cause is not None:
            index, condition, values = "packhorse_job_cause", "cause = ? AND ", (where.cause,)
        elif (queues := self._queues_meant(where)) is not None:
            return self._newest_of_queues(queues, -after[0] if after else lists.HIGHEST)
        return self._rows(
            f"SELECT -seq FROM {self._jobs} FORCE INDEX ({index}) WHERE {condition}seq < ? ORDER BY seq DESC",
            (-after[0] if after else lists.HIGHEST,),
            values,
        )

    def _newest_of_queue(self, queue: str, behind: int, first: int) -> Iterator[Place]:
        return self._rows(
            f"SELECT -seq FROM {self._jobs} FORCE INDEX (packhorse_job_queue)"
            " WHERE queue = ? AND seq < ? ORDER BY seq DESC",
            (behind,),
            (queue,),
            first,
        )
