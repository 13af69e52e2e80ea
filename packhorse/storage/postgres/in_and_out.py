"""Jobs into PostgreSQL: one statement for plain ones, however many. What becomes of unique ones, and all that is read,
is in `sql/in_and_out.py`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from operator import attrgetter, itemgetter

import psycopg

from packhorse.job import NewJob
from packhorse.storage.moving import may_go_on
from packhorse.storage.postgres.guest import guest
from packhorse.storage.postgres.keeper import PostgresKeeper
from packhorse.storage.postgres.transaction import Transaction
from packhorse.storage.postgres.trouble import translate
from packhorse.storage.records import Enqueued, Placement
from packhorse.storage.sql import in_and_out
from packhorse.storage.sql.rows import to_json

# The values of `enqueue_one`, but for the last, the time.
_values_of_one = attrgetter(
    "id", "task", "queue", "args", "priority", "delay", "due_at", "max_attempts", "max_halts", "timeout",
    "idle_timeout", "expires", "total_timeout", "persistent", "created_by", "schedule", "backoff", "meta",
)  # fmt: skip


class InAndOut(PostgresKeeper, in_and_out.InAndOut):
    def enqueue(self, jobs: Sequence[NewJob]) -> list[Enqueued]:
        if not jobs:
            return []
        if any(new.unique or new.subscriber for new in jobs) or not self._are_known(jobs):
            return super().enqueue(jobs)
        if len(jobs) == 1 and jobs[0].copied_from is None:
            values = (*_values_of_one(jobs[0]), self._moment())
            rows = self._db.run("enqueue", self._sql["enqueue_one"], values)
        else:
            rows = self._db.run("enqueue", self._sql["enqueue"], (to_json(jobs), self._moment(), True))
        self._counting(2)
        if len(rows) < len(jobs):
            may_go_on(self.move(), "enqueue")  # else their ids are there already
        return _placements(jobs, rows)

    def enqueue_within(self, connection: object, jobs: Sequence[NewJob]) -> list[Enqueued]:
        with self._db.lent():
            pass  # makes sure that the tables are there: making them is not for the caller's transaction
        if not jobs:
            return []
        try:
            with guest(connection, self._sql, self._dialect) as link:
                now = self._moment()
                if now is None:
                    now = int(link.execute(self._sql["now"]).fetchone()[0])
                tx = Transaction(link, now, is_guest=True)
                may_go_on(self._mark_in(tx), "enqueue")
                enqueued = self._enqueue(tx, jobs)
                tx.flush()
                link.execute(self._sql["hint"], (to_json(sorted({new.queue for new in jobs})), now))
        except psycopg.Error as error:
            raise translate(error, self._db.address) from error
        return enqueued

    def _are_known(self, jobs: Sequence[NewJob]) -> bool:
        now = time.monotonic()
        return all(self._known.get((new.task, new.queue), 0.0) >= now for new in jobs)

    def _enqueue(self, tx: Transaction, jobs: Sequence[NewJob]) -> list[Enqueued]:
        # In the order of their names, as everybody writes them; a task's first queue stays its first.
        self._know(tx, sorted(dict.fromkeys((new.task, new.queue) for new in jobs), key=itemgetter(0)))
        if not any(new.unique or new.subscriber for new in jobs):
            return self._insert(tx, jobs)
        self._lock_keys(tx, {new.unique.key for new in jobs if new.unique})
        return [self._enqueue_one(tx, new) for new in jobs]

    def _insert(self, tx: Transaction, jobs: Sequence[NewJob]) -> list[Enqueued]:
        rows = tx.execute(self._sql["enqueue"], (to_json(jobs), tx.now, not tx.is_guest)).fetchall()
        if len(rows) < len(jobs):
            may_go_on(self._mark_in(tx), "enqueue")
        return _placements(jobs, rows)


def _placements(jobs: Sequence[NewJob], rows: Sequence[tuple[str]]) -> list[Enqueued]:
    if len(rows) == len(jobs):
        return [Enqueued(new.id) for new in jobs]
    added = {row[0] for row in rows}
    answers = []
    for new in jobs:
        answers.append(Enqueued(new.id, Placement.ADDED if new.id in added else Placement.KEPT))
        added.discard(new.id)  # the same id once more in one batch
    return answers
