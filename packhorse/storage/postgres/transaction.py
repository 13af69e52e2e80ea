"""A transaction on the PostgreSQL server; see `sql/transaction.py`.

Changed jobs are collected, and sent together before the next statement or at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeVar

from packhorse.core.job import Job, NewJob
from packhorse.storage.postgres.connection import PostgresConnection
from packhorse.storage.sql.rows import changed_row, to_json, update_of
from packhorse.storage.sql.server import LostRaceError, ServerTransaction
from packhorse.storage.sql.transaction import Cursor, Shared
from packhorse.storage.transfer import decode, may_go_on

R = TypeVar("R")


class PostgresTransaction(ServerTransaction):
    """One operation, on one connection."""

    __slots__ = ("_changed", "_connection")

    def __init__(self, connection: PostgresConnection, shared: Shared, now: int, mark_text: str | None = None) -> None:
        super().__init__(shared, now, mark_text)
        self._connection = connection
        self._changed: list[list[Any]] = []

    def execute(self, sql: str, values: Sequence[Any] = ()) -> Cursor:
        self._send_changed()
        return self._connection.execute(sql, values)

    def executemany(self, sql: str, rows: Sequence[Sequence[Any]]) -> None:
        self._send_changed()
        if rows:
            self._connection.executemany(sql, rows)

    def nested(self, work: Callable[[PostgresTransaction], R]) -> R:
        own = PostgresTransaction(self._connection, self._shared, self.now, self.mark_text)
        own.read_outside = self.read_outside
        self.execute("SAVEPOINT nested")
        try:
            result = work(own)
            own._send_changed()
        except Exception:
            self._connection.undo("nested")
            raise
        self.execute("RELEASE nested")
        self.absorb(own)
        return result

    def flush(self) -> None:
        """Write what was collected."""
        self._send_changed()
        if self.event_rows:
            values = [list(column) for column in zip(*self.event_rows, strict=True)]
            self._connection.execute(self._sql["put_events"], values)
        deltas = self._deltas()
        self.deltas = len(deltas)
        if deltas:
            self._connection.execute(self._sql["put_deltas"], [list(column) for column in zip(*deltas, strict=True)])
        if self._failures:
            self._connection.executemany(self._sql["count_failure"], self._failures_in_order())

    # --- jobs -----------------------------------------------------------------------------------------------------

    def _save(self, before: Job, job: Job) -> None:
        self._changed.append(changed_row(job))

    def _send_changed(self) -> None:
        if self._changed:
            changed, self._changed = self._changed, []
            dialect = self._shared.dialect
            self._connection.executemany(dialect.say(update_of(dialect.prefix)), changed)

    def _insert(self, jobs: Sequence[NewJob]) -> None:
        if len(self.insert_new(jobs)) < len(jobs):
            raise LostRaceError  # another transaction has stored the same id just now

    def insert_new(self, jobs: Sequence[NewJob]) -> set[str]:
        """Store the jobs whose ids are new. Returns their ids. The statement writes events and counts, and wakes a
        worker."""
        wakes = self.read_outside is None  # a caller's transaction would lock the waiter's row
        rows = self.execute(self._sql["enqueue"], (to_json(jobs), self.now, wakes)).fetchall()
        if len(rows) < len(jobs) and self.read_outside is not None:  # the statement stores nothing in a moved storage
            mark = self.execute(self._sql["get_move"]).fetchone()
            may_go_on(decode(mark[0]) if mark else None, "enqueue")
        return {row[0] for row in rows}

    def _put_keys(self, rows: Sequence[Sequence[Any]]) -> None:
        *columns, now = zip(*rows, strict=True)
        self.execute(self._sql["put_locks"], [*map(list, columns), now[0]])

    def lock_keys(self, keys: Collection[str]) -> None:
        if keys:
            self.execute(self._sql["lock_keys"], (to_json(list(keys)),)).fetchall()

    # --- names ----------------------------------------------------------------------------------------------------

    def know(self, queues: Collection[str], tasks: Mapping[str, str] = {}) -> None:
        if self.read_outside is None:  # a caller's transaction would lock the names until it ends
            super().know(queues, tasks)

    def _write_names(self, tasks: Mapping[str, str], queues: Sequence[str]) -> None:
        for task, queue in tasks.items():
            self.execute(self._sql["know_task"], (task, queue))
        for queue in queues:
            self.execute(self._sql["know_queue"], (queue,))
            self.execute(self._sql["wake_others"], (queue, self.now))

    # --- pruning events -----------------------------------------------------------------------------------------------

    def _drop_events(self, before: int, limit: int) -> tuple[int, bool]:
        oldest = self.execute(self._sql["oldest_event"]).fetchone()
        if oldest is None or oldest[0] > before:
            return 0, False
        self.execute(self._sql["lock_old_events"]).fetchall()
        dropped, more, whole = 0, False, []
        for row_id, number, size in self.execute(self._sql["old_events"], (limit + 1, before)).fetchall():
            going = min(number, limit - dropped)
            if going == size:
                whole.append(row_id)
            elif going:
                self.execute(self._sql["trim_pack"], (row_id, going))
            dropped, more = dropped + going, more or going < number
        self.execute(self._sql["delete_events"], (to_json(whole),))
        return dropped, more
