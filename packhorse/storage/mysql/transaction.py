"""A transaction on the MySQL server; see `sql/transaction.py`.

What needs no answer waits for the next statement and is sent with it: a round trip to the server costs more than most
statements. The commit goes with the last of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any, TypeVar

import pymysql

from packhorse.core import transitions
from packhorse.core.job import Job, NewJob
from packhorse.storage.mysql.connection import MySQLConnection, Result, UnexpectedRowCountError
from packhorse.storage.mysql.driver_errors import DUPLICATE, code_of
from packhorse.storage.sql.rows import Row, changed_row, to_json
from packhorse.storage.sql.server import LostRaceError, ServerTransaction
from packhorse.storage.sql.transaction import Shared, is_soon

R = TypeVar("R")

_BYTES_AT_A_TIME = 250_000
"""Bytes of arguments that are sent in one statement: escaped they may be twice as many, and a server may take no more
than a million."""

# The values of `insert_jobs`, in their order.
_stored_values = attrgetter(
    "id", "task", "queue", "args", "state", "priority", "rank", "created_at", "updated_at", "due_at", "queued_at",
    "first_queued_at", "max_attempts", "max_halts", "timeout", "idle_timeout", "expires", "total_timeout", "expire_at",
    "unique_key", "persistent", "created_by", "schedule", "backoff", "meta",
)  # fmt: skip


class MySQLTransaction(ServerTransaction):
    """One operation, on one connection."""

    __slots__ = ("_connection", "_deferred", "_depth", "_expected")

    def __init__(
        self, connection: MySQLConnection, shared: Shared, now: int, mark_text: str | None = None, *, depth: int = 0
    ) -> None:
        super().__init__(shared, now, mark_text)
        self._connection = connection
        self._depth = depth  # a savepoint of the same name would replace an outer one
        self._deferred: list[str] = []
        self._expected: dict[int, int] = {}  # how many rows the statement at this place in `_deferred` must change

    # --- statements -----------------------------------------------------------------------------------------------

    def execute(self, sql: str, values: Sequence[Any] = ()) -> Result:
        return self.send([self._connection.render(sql, values)])[0]

    def executemany(self, sql: str, rows: Sequence[Sequence[Any]]) -> list[Result]:
        return self.send([self._connection.render(sql, row) for row in rows]) if rows else []

    def send(self, statements: Sequence[str]) -> list[Result]:
        """Send the deferred statements and these in one round trip. Returns the results of these."""
        deferred, self._deferred = self._deferred, []
        expected, self._expected = self._expected, {}
        results = self._connection.script([*deferred, *statements])
        for place, number in expected.items():
            if results[place].rowcount != number:
                raise UnexpectedRowCountError
        return results[len(deferred) :]

    def defer(self, sql: str, values: Sequence[Any], *, expected: int | None = None) -> None:
        """A statement that may wait. `expected` is how many rows it must change."""
        if expected is not None:
            self._expected[len(self._deferred)] = expected
        self._deferred.append(self._connection.render(sql, values))

    def nested(self, work: Callable[[MySQLTransaction], R]) -> R:
        own = MySQLTransaction(self._connection, self._shared, self.now, self.mark_text, depth=self._depth + 1)
        own.read_outside = self.read_outside
        savepoint = f"nested_{own._depth}"
        self.send([f"SAVEPOINT {savepoint}"])
        try:
            result = work(own)
            own.send([])
        except Exception:
            self._connection.undo(savepoint)
            raise
        self._deferred.append(f"RELEASE SAVEPOINT {savepoint}")
        self.absorb(own)
        return result

    def commit(self) -> None:
        """Write what was collected, and commit."""
        if self._expected:
            self.send([])
        self.send([*self._collected(), "COMMIT"])

    def flush(self) -> None:
        """Write what was collected, in a caller's transaction."""
        self.send(self._collected())

    def _collected(self) -> list[str]:
        render, statements = self._connection.render, []
        if self.event_rows:
            rows = [(*row[:6], row[6] or None, row[7] or None, row[8] or None) for row in self.event_rows]
            statements.append(render(self._sql["put_events"], (rows,)))
        deltas = self._deltas()
        self.deltas = len(deltas)
        if deltas:
            statements.append(render(self._sql["put_deltas"], (deltas,)))
        statements += [render(self._sql["count_failure"], row) for row in self._failures_in_order()]
        return statements

    # --- jobs -----------------------------------------------------------------------------------------------------

    def _save(self, before: Job, job: Job) -> None:
        self.defer(self._sql["keep_job"], changed_row(job))

    def _insert(self, jobs: Sequence[NewJob]) -> None:
        try:
            self.insert_new(jobs)
        except pymysql.IntegrityError as error:
            check_known_id(error)
            raise LostRaceError from error  # another transaction has stored the same id just now

    def insert_new(self, jobs: Sequence[NewJob]) -> None:
        """Raises IntegrityError if an id is stored already."""
        added = [transitions.added_job(new, 0, self.now) for new in jobs]
        for some in portions(added):
            self.execute(self._sql["insert_jobs"], ([_stored_values(job) for job in some],))
        for new, job in zip(jobs, added, strict=True):
            facts = transitions.added_facts(new, job)
            data = "" if facts is None else to_json(facts)
            self.event_rows.append((self.now, "added", "job", job.id, job.queue, job.state.value, "", 0, data))
        for (queue, task, state), number in Counter([(job.queue, job.task, job.state) for job in added]).items():
            self.count_added((queue, task, state.value), number)
        self.wakes = self.wakes or any(is_soon(job.due_at, self.now) for job in added)

    def _put_keys(self, rows: Sequence[Row]) -> None:
        self.execute(self._sql["put_locks"], (rows,))

    def lock_keys(self, keys: Collection[str]) -> None:
        if keys:
            self.execute(self._sql["lock_keys"], ([(key,) for key in sorted(keys)],))

    # --- clients --------------------------------------------------------------------------------------------------

    def _client_exists(self, client_id: str) -> bool:
        if self.read_outside is None:
            return super()._client_exists(client_id)
        return self.execute(self._sql["client_exists_unlocked"], (client_id,)).fetchone() is not None

    # --- names ----------------------------------------------------------------------------------------------------

    def know(self, queues: Collection[str], tasks: Mapping[str, str] = {}) -> None:
        if self.read_outside is None:  # a caller's transaction would lock the names until it ends
            super().know(queues, tasks)

    def _write_names(self, tasks: Mapping[str, str], queues: Sequence[str]) -> None:
        write_names(self, self._sql, tasks, queues)

    # --- pruning events -----------------------------------------------------------------------------------------------

    def _drop_events(self, before: int, limit: int) -> tuple[int, bool]:
        oldest = self.execute(self._sql["oldest_event"]).fetchone()
        if oldest is None or oldest[0] > before:
            return 0, False
        old = [row[0] for row in self.execute(self._sql["old_events"], (limit + 1, before)).fetchall()]
        self.execute(self._sql["delete_events"], (to_json(old[:limit]),))
        return len(old[:limit]), len(old) > limit


def write_names(
    connection: MySQLConnection | MySQLTransaction,
    sql: Mapping[str, str],
    tasks: Mapping[str, str],
    queues: Sequence[str],
) -> None:
    """Write the names that are not there. Looks first, without a lock: writing a name that is there would wait for its
    other writers."""
    asked = (to_json(list(tasks)), to_json(list(queues)))
    known_tasks = {row[0] for row in connection.execute(sql["known_tasks"], asked[:1]).fetchall()}
    known_queues = {row[0] for row in connection.execute(sql["known_queues"], asked[1:]).fetchall()}
    new_tasks = [(task, queue) for task, queue in tasks.items() if task not in known_tasks]
    new_queues = [(queue,) for queue in queues if queue not in known_queues]
    if new_tasks:
        connection.executemany(sql["know_task"], sorted(new_tasks))
    if new_queues:
        connection.executemany(sql["know_queue"], sorted(new_queues))


def check_known_id(error: pymysql.IntegrityError) -> None:
    """Raise the error unless it says that an id is stored already."""
    if code_of(error) != DUPLICATE or "packhorse_job_id" not in str(error):
        raise error


def portions(jobs: Sequence[Any]) -> Iterator[Sequence[Any]]:
    """These jobs in parts that make a statement of bounded length each."""
    start = length = 0
    for place, job in enumerate(jobs):
        own = len(job.args) if job.args.isascii() else len(job.args.encode(errors="replace"))
        if length and length + own > _BYTES_AT_A_TIME:
            yield jobs[start:place]
            start, length = place, 0
        length += own
    yield jobs[start:]
