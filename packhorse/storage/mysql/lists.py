"""Lists of jobs along the indexes that MySQL has; see `sql/lists.py`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from packhorse.core.job import RETRYING, Job
from packhorse.storage.queries import BY_DUE_TIME, Order, Place
from packhorse.storage.records import Filter
from packhorse.storage.sql import lists
from packhorse.storage.sql.statements import Dialect
from packhorse.storage.sql.transaction import SQLConnection

PATIENCE = 0.05
"""Seconds for which a list looks for jobs: those that are far apart come from the disk, unless the server has much
memory."""


class MySQLIndex(lists.Index):
    """Each walk names its index: the server would now and then sort all jobs instead. The numbers of a place are called
    `place`, where there are two, and `number`."""

    ids_at_a_time = 25_000  # in a tenth of a second

    def __init__(self, connection: SQLConnection, dialect: Dialect, statements: Mapping[str, str]) -> None:
        super().__init__(connection, dialect, statements)
        self._ids = f"{self._jobs} FORCE INDEX (packhorse_job_id)"

    def fitting(self, where: Filter, places: list[Place], most: int) -> list[Job]:
        """The driver takes long for each value of a job, so first ask which are wanted."""
        if where != Filter():
            fits = {row[0] for row in self._ask("seq", where, places)}
            places = [place for place in places if abs(place[-1]) in fits]
        jobs: list[Job] = []
        while places and len(jobs) < most:  # once, unless one has changed meanwhile
            wanted, places = places[: most - len(jobs)], places[most - len(jobs) :]
            jobs += super().fitting(where, wanted, most)
        return jobs

    def _part(self, sql: str, values: Sequence[Any]) -> list[Place]:
        """As one JSON text, which may be in any order: the driver takes long for each row."""
        place = "place, number" if " AS place, " in sql else "number"
        ((text,),) = self._execute(f"SELECT JSON_ARRAYAGG(JSON_ARRAY({place})) FROM ({sql}) AS part", values).fetchall()
        return sorted(msgspec.json.decode(text, type=list[Place])) if text else []

    def walk(self, order: Order, where: Filter, after: Place | None) -> Iterator[Place]:
        if order is BY_DUE_TIME:
            # Few jobs retry, and those have an index to themselves; many may be scheduled.
            is_retrying = where.states == {RETRYING}
            index, column = ("packhorse_job_retrying", "retry_at") if is_retrying else ("packhorse_job_due", "due_at")
            return self._rows(
                f"SELECT {column} AS place, seq AS number FROM {self._jobs} FORCE INDEX ({index})"
                f" WHERE ({column}, seq) > (?, ?) ORDER BY {column}, seq",
                after or (-1, -1),
            )
        return super().walk(order, where, after)

    def _walk_one_line(self, rank: int, queue: str, behind: int, first: int) -> Iterator[Place]:
        return self._rows(
            f"SELECT `rank` AS place, seq AS number FROM {self._jobs} FORCE INDEX (packhorse_job_line)"
            " WHERE line = ? AND `rank` = ? AND seq > ? ORDER BY seq",
            (behind,),
            (queue, rank),
            first,
        )

    def _walk_finished(self, state: str, after: Place | None) -> Iterator[Place]:
        return self._rows(
            f"SELECT -finished_at AS place, -seq AS number FROM {self._jobs} FORCE INDEX (packhorse_job_finished)"
            " WHERE ended = ? AND (finished_at, seq) < (?, ?) ORDER BY finished_at DESC, seq DESC",
            (-after[0], -after[1]) if after else (lists.HIGHEST, lists.HIGHEST),
            (state,),
        )

    def _newest_of_all(self, behind: int) -> Iterator[Place]:
        return self._newest_along("PRIMARY", "", behind)

    def _newest_held(self, behind: int) -> Iterator[Place]:
        return self._newest_along("packhorse_job_held", "owner IS NOT NULL AND ", behind)

    def _newest_with(self, column: str, value: str, behind: int) -> Iterator[Place]:
        index = {"owner": "packhorse_job_held", "cause": "packhorse_job_cause"}[column]
        return self._newest_along(index, f"{column} = ? AND ", behind, value)

    def _newest_along(self, index: str, condition: str, behind: int, *values: str) -> Iterator[Place]:
        return self._rows(
            f"SELECT -seq AS number FROM {self._jobs} FORCE INDEX ({index}) WHERE {condition}seq < ? ORDER BY seq DESC",
            (behind,),
            values,
        )

    def _newest_of_queue(self, queue: str, behind: int, first: int) -> Iterator[Place]:
        return self._rows(
            f"SELECT -seq AS number FROM {self._jobs} FORCE INDEX (packhorse_job_queue)"
            " WHERE queue = ? AND seq < ? ORDER BY seq DESC",
            (behind,),
            (queue,),
            first,
        )
