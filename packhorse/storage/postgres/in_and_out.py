"""Jobs into PostgreSQL: one statement for plain ones, however many. What becomes of unique ones, and all that is read,
is in `sql/in_and_out.py`."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence
from operator import attrgetter, itemgetter
from typing import Any

import psycopg
from msgspec.structs import replace

from packhorse.core.errors import StorageError
from packhorse.core.job import Job, NewJob, State
from packhorse.storage.external_connection import elsewhere
from packhorse.storage.postgres import event_batches
from packhorse.storage.postgres.connection import can_be_stored
from packhorse.storage.postgres.driver_errors import translate, without_password
from packhorse.storage.postgres.external_connection import await_pipeline, joined
from packhorse.storage.postgres.keeper import PostgresKeeper
from packhorse.storage.postgres.transaction import Transaction
from packhorse.storage.records import Enqueued, Placement, QueueInfo
from packhorse.storage.sql import in_and_out
from packhorse.storage.sql.rows import to_json
from packhorse.storage.transfer import may_go_on

# The values of `enqueue_one`, but for the last, the time.
_values_of_one = attrgetter(
    "id", "task", "queue", "args", "priority", "delay", "due_at", "max_attempts", "max_halts", "timeout",
    "idle_timeout", "expires", "total_timeout", "persistent", "created_by", "schedule", "backoff", "meta",
)  # fmt: skip

_options_of = attrgetter(
    "delay", "due_at", "max_attempts", "max_halts", "timeout", "idle_timeout", "expires", "total_timeout", "persistent",
    "created_by", "schedule", "backoff", "meta",
)  # fmt: skip
_NO_OPTIONS = _options_of(NewJob("", "", ""))


class InAndOut(PostgresKeeper, in_and_out.InAndOut):
    _here: list[Any] | None = None

    def enqueue(self, jobs: Sequence[NewJob]) -> list[Enqueued]:
        if not jobs:
            return []
        if len(jobs) > 1 and self._enqueue_alike(jobs):
            self._counting(2)
            return [Enqueued(new.id) for new in jobs]
        if any(new.unique or new.subscriber for new in jobs) or not self._are_known(jobs):
            return super().enqueue(jobs)
        if len(jobs) == 1 and jobs[0].copied_from is None and jobs[0].chosen is None:
            rows = self._enqueue_alone(jobs[0])
        else:
            rows = self._db.run("enqueue", self._sql["enqueue"], (to_json(jobs), self._moment(), True))
        self._counting(2 * len({(new.queue, new.task) for new in jobs}))
        if not rows:
            # Their ids are there already, or the storage is moved, or was a moment ago. A transaction tells which: the
            # mark stays for the whole of it as it is.
            return super().enqueue(jobs)
        return _placements(jobs, rows)

    def _enqueue_alone(self, new: NewJob) -> list[Any]:
        if _options_of(new) == _NO_OPTIONS:
            values = (new.id, new.task, new.queue, new.args, new.priority, self._moment())
            return self._db.run("enqueue", self._sql["enqueue_plain"], values)
        return self._db.run("enqueue", self._sql["enqueue_one"], (*_values_of_one(new), self._moment()))

    def _enqueue_alike(self, jobs: Sequence[NewJob]) -> bool:
        """Jobs that differ in nothing but ids and arguments, as those of a loop do. False: nothing was done."""
        first = jobs[0]
        is_unusual = first.unique or first.subscriber or first.copied_from is not None or first.chosen is not None
        if is_unusual or not self._are_known(jobs[:1]):
            return False
        job_ids, blank = [new.id for new in jobs], replace(first, id="", args="")
        bounds = event_batches.bounds(job_ids)  # None also for more than a value of the sequence has numbers for
        if bounds is None or any(replace(new, id="", args="") != blank for new in jobs):
            return False
        ids, args = "\n".join(job_ids), "\n".join([new.args for new in jobs])
        if ids.count("\n") + args.count("\n") > 2 * len(jobs) - 2:
            return False
        _, task, queue, _, *rest = _values_of_one(first)
        values = (ids, task, queue, args, *rest, self._moment(), len(jobs), *bounds)
        try:
            return bool(self._db.run("enqueue", self._sql["enqueue_alike"], values))
        except StorageError as error:
            if isinstance(error.__cause__, psycopg.errors.UniqueViolation):
                return False  # somebody repeats a call whose answer was lost
            raise

    def enqueue_within(self, connection: object, jobs: Sequence[NewJob]) -> list[Enqueued]:
        here = self._here or self._look_around()
        if not jobs:
            return []
        self._make_known(jobs)
        await_pipeline(connection)
        try:
            with joined(connection, self._sql, self._dialect) as external:
                now, *there = external.execute(self._sql["whereabouts"]).fetchone()
                if there != here and there != self._look_around():  # it may have been restarted
                    which = f"the database {there[0]}" if there[0] != here[0] else "another server"
                    raise elsewhere(which, without_password(self._db.address))
                tx = Transaction(external, now if self._clock is None else self._clock(), is_external=True)
                # Whoever closes the storage waits for this transaction from now on. Asked on a connection of our own:
                # the caller's may be of the kind that sees only what was there when it began.
                external.execute(self._sql["share_writing"])
                may_go_on(self.move(), "enqueue")
                enqueued = self._enqueue(tx, jobs)
                tx.flush()
                if external.may_notify:
                    external.execute(self._sql["hint"], (to_json(sorted({new.queue for new in jobs})), tx.now))
        except (psycopg.errors.SerializationFailure, psycopg.errors.DeadlockDetected):
            raise  # his transaction has lost a race: whoever makes it again waits for just this error
        except psycopg.Error as error:
            raise translate(error, self._db.address) from error
        return enqueued

    def _make_known(self, jobs: Sequence[NewJob]) -> None:
        """Names, by a connection of our own: one that the caller's transaction made known would be locked until it
        ends, for everybody else who comes with that name. Each statement for itself, so this waits for nobody who
        waits for the caller."""
        if self._are_known(jobs):
            return
        may_go_on(self.move(), "enqueue")
        self._db.read_with("know", lambda connection: self._know(connection, _names_of(jobs)))
        self._remember(jobs)

    def _look_around(self) -> list[Any]:
        """Which database of which server the jobs are in. Asking also makes sure that the tables are there: making them
        is not for the caller's transaction."""
        ((_, *self._here),) = self._db.read("whereabouts", self._sql["whereabouts"])
        return self._here

    def get_many(self, job_ids: Sequence[str]) -> list[Job]:
        return super().get_many([job_id for job_id in job_ids if can_be_stored(job_id)])

    def queues(self) -> list[QueueInfo]:
        paused: dict[str, list[Any]] = {}
        counts: defaultdict[str, dict[State, int]] = defaultdict(dict)
        oldest: dict[str, int] = {}
        for name, what, number, *rest in self._db.read("queues", self._sql["all_queues"]):
            if not what:
                paused[name] = [number, *rest]
            elif what == "oldest":
                oldest[name] = number
            else:
                counts[name][State(what)] = number
        return [
            QueueInfo(name, counts.get(name, {}), at, by, why, until, oldest.get(name))
            for name, (at, by, why, until) in sorted(paused.items())
        ]

    def _are_known(self, jobs: Sequence[NewJob]) -> bool:
        return all(self._is_known((new.task, new.queue)) for new in jobs)

    def _is_known(self, name: tuple[str, str]) -> bool:
        return self._known.get(name, 0.0) >= time.monotonic()

    def _enqueue(self, tx: Transaction, jobs: Sequence[NewJob]) -> list[Enqueued]:
        if not tx.is_external:
            names = [name for name in _names_of(jobs) if not self._is_known(name)]
            self._know(tx, names)
            for queue in dict.fromkeys(queue for _, queue in names):
                tx.execute(self._sql["wake_others"], (queue, tx.now))
        if not any(new.unique or new.subscriber for new in jobs):
            return self._insert(tx, jobs)
        self._lock_keys(tx, {new.unique.key for new in jobs if new.unique})
        return self._enqueue_each(tx, jobs)

    def _put_locks(self, tx: Transaction, locks: Sequence[tuple[str, str, int | None, str]]) -> None:
        tx.execute(self._sql["put_locks"], [*(list(column) for column in zip(*locks, strict=True)), tx.now])

    def _insert(self, tx: Transaction, jobs: Sequence[NewJob]) -> list[Enqueued]:
        rows = tx.execute(self._sql["enqueue"], (to_json(jobs), tx.now, not tx.is_external)).fetchall()
        if len(rows) < len(jobs):
            may_go_on(self._mark_in(tx), "enqueue")
        return _placements(jobs, rows)


def _names_of(jobs: Sequence[NewJob]) -> list[tuple[str, str]]:
    """In the order in which everybody writes them; a task's first queue stays its first."""
    return sorted(dict.fromkeys((new.task, new.queue) for new in jobs), key=itemgetter(0))


def _placements(jobs: Sequence[NewJob], rows: Sequence[Any]) -> list[Enqueued]:
    if len(rows) == len(jobs):
        return [Enqueued(new.id) for new in jobs]
    added = {row[0] for row in rows}
    answers = []
    for new in jobs:
        answers.append(Enqueued(new.id, Placement.ADDED if new.id in added else Placement.KEPT))
        added.discard(new.id)  # the same id once more in one batch
    return answers
