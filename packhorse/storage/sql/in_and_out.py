"""Jobs in and out: enqueue, get, and the names that become known on the way. Lists are in `lists.py`."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from packhorse.core import transitions
from packhorse.core.errors import ClientNotFound, NotUnique
from packhorse.core.job import HELD, QUEUED, WAITING, Job, NewJob, State, UniqueLock
from packhorse.storage.broken_records import facts_in
from packhorse.storage.records import Enqueued, Placement, QueueInfo, Tally, TaskInfo
from packhorse.storage.sql.batch import Batch
from packhorse.storage.sql.keeper import Keeper
from packhorse.storage.sql.rows import job_of, to_json
from packhorse.storage.sql.transaction import SQLConnection, Transaction

_KNOWN_FOR = 300.0
"""Seconds for which a process trusts that a name it has written is still there."""


class InAndOut(Keeper):
    _known: dict[tuple[str, str], float]

    def enqueue(self, jobs: Sequence[NewJob]) -> list[Enqueued]:
        if not jobs:
            return []
        enqueued = self._write("enqueue", lambda tx: self._enqueue(tx, jobs))
        self._remember(jobs)
        return enqueued

    @abstractmethod
    def _enqueue(self, tx: Any, jobs: Sequence[NewJob]) -> list[Enqueued]:
        """Store new jobs in this transaction."""

    @abstractmethod
    def _insert(self, tx: Any, jobs: Sequence[NewJob]) -> object:
        """Store jobs whose ids are known to be new."""

    def _enqueue_each(self, tx: Transaction, jobs: Sequence[NewJob]) -> list[Enqueued]:
        """Jobs whose keys are locked, in their order: those that meet nobody in large steps, the others one by one."""
        if len(jobs) == 1:
            return [self._enqueue_one(tx, new) for new in jobs]
        ids = [new.id for new in jobs]
        batch = Batch(self._stored_among(tx, ids), self._holders(tx, jobs), self._replaced_among(tx, jobs))
        answers: list[Enqueued] = []
        for new in jobs:
            answer = batch.place(new)
            if answer is None:
                self._insert_run(tx, batch.take_run())
                answer = self._enqueue_one(tx, new)
                batch.note(new, answer)
            answers.append(answer)
        self._insert_run(tx, batch.take_run())
        return answers

    def _stored_among(self, tx: Transaction, job_ids: Sequence[str]) -> set[str]:
        return set(self._jobs(tx, job_ids))

    def _replaced_among(self, tx: Transaction, jobs: Sequence[NewJob]) -> set[str]:
        """The ids of those that have replaced another's call already."""
        ids = [new.id for new in jobs if new.unique and new.unique.on_conflict == "replace"]
        return {row[0] for row in tx.execute(self._sql["replaced_among"], (to_json(ids),)).fetchall()} if ids else set()

    def _holders(self, tx: Transaction, jobs: Sequence[NewJob]) -> dict[str, str | None]:
        """The job that holds each of these jobs' keys now; None: the key is to be asked for. Free ones are left out."""
        keys = sorted({new.unique.key for new in jobs if new.unique})
        if not keys:
            return {}
        locks = tx.execute(self._sql["get_locks"], (to_json(keys),)).fetchall()
        if tx.is_external:  # whose jobs are looked at in another way
            return {row[0]: None for row in locks}
        twins = self._jobs(tx, {row[1] for row in locks}) if locks else {}
        return {
            key: job_id
            for key, job_id, period, until, taken_at in locks
            if job_id in twins and transitions.holds(twins[job_id], UniqueLock(key, period, until), taken_at, tx.now)
        }

    def _insert_run(self, tx: Transaction, run: Sequence[NewJob]) -> None:
        """Jobs whose ids are new and whose keys are free."""
        locks = [(new.unique.key, new.id, new.unique.period, new.unique.until) for new in run if new.unique]
        if locks:
            self._put_locks(tx, locks)
        if run:
            self._insert(tx, run)

    def _put_locks(self, tx: Any, locks: Sequence[tuple[str, str, int | None, str]]) -> None:
        """Each is a key, the job that takes it, a period, and until when."""
        tx.executemany(self._sql["put_lock"], [(*lock, tx.now) for lock in locks])

    def _enqueue_one(self, tx: Transaction, new: NewJob) -> Enqueued:
        if self._is_stored(tx, new.id):
            return Enqueued(new.id, Placement.KEPT)
        if new.unique is not None:
            if new.unique.on_conflict == "replace":
                replaced = tx.execute(self._sql["replaced_by"], (new.id,)).fetchone()
                if replaced is not None:
                    return Enqueued(replaced[0], Placement.REPLACED)
            holder = self._holder(tx, new.unique.key)
            if holder is not None:
                twin = self._meet_twin(tx, holder, new)
                if twin is not None:
                    self._subscribe(tx, new, holder.id)
                    return twin
            lock = new.unique
            tx.execute(self._sql["put_lock"], (lock.key, new.id, lock.period, lock.until, tx.now))
        self._insert(tx, [new])
        self._subscribe(tx, new, new.id)
        return Enqueued(new.id)

    def _subscribe(self, tx: Transaction, new: NewJob, job_id: str) -> None:
        """Whoever enqueued wants the outcome, be it of this job or of the twin that stands for it."""
        if new.subscriber is not None:
            if tx.execute(self._sql["get_client"], (new.subscriber,)).fetchone() is None:
                raise ClientNotFound(new.subscriber)
            tx.execute(self._sql["add_subscriber"], (job_id, new.subscriber))

    def _meet_twin(self, tx: Transaction, holder: Job, new: NewJob) -> Enqueued | None:
        """Another job holds the unique key. None: the new job is to be added all the same."""
        assert new.unique is not None
        if new.unique.on_conflict == "reject":
            raise NotUnique(holder.id, new.unique.key)
        if new.unique.on_conflict == "replace":
            if holder.state in WAITING:
                self._keep(tx, holder, transitions.replaced(holder, new, tx.now))
                tx.execute(self._sql["put_replaced"], (new.id, holder.id, tx.now))
                return Enqueued(holder.id, Placement.REPLACED)
            if holder.state in HELD:
                return None  # it has read the old arguments; the new ones must not be lost
        return Enqueued(holder.id, Placement.KEPT)

    def _know(self, tx: SQLConnection, names: Iterable[tuple[str, str]]) -> None:
        """Task and queue names become known with their first job."""
        now = time.monotonic()
        for task, queue in names:
            if self._known.get((task, queue), 0.0) < now:
                tx.execute(self._sql["know_task"], (task, queue))
                tx.execute(self._sql["know_queue"], (queue,))

    def _remember(self, jobs: Sequence[NewJob]) -> None:
        """Now that they are committed, this process need not write these names again for a while."""
        now = time.monotonic()
        for name in {(new.task, new.queue) for new in jobs}:
            if self._known.get(name, 0.0) < now:
                self._known[name] = now + _KNOWN_FOR

    def get(self, job_id: str) -> Job | None:
        found = self.get_many([job_id])
        return found[0] if found else None

    def get_many(self, job_ids: Sequence[str]) -> list[Job]:
        rows = self._db.read("get", self._sql["jobs_by_ids"], (to_json(list(job_ids)),))
        jobs = {row[0]: job_of(row) for row in rows}
        return [jobs[job_id] for job_id in job_ids if job_id in jobs]

    def tallies(self) -> list[Tally]:
        rows = self._db.read("tallies", self._sql["all_tallies"])
        return [Tally(queue, task, State(state), number) for queue, task, state, number in rows]

    def queues(self) -> list[QueueInfo]:
        def work(connection: SQLConnection) -> list[QueueInfo]:
            counts: dict[str, dict[State, int]] = defaultdict(dict)
            for queue, _, state, number in connection.execute(self._sql["all_tallies"]).fetchall():
                counts[queue][State(state)] = counts[queue].get(State(state), 0) + number
            waiting = [queue for queue, numbers in counts.items() if numbers.get(QUEUED)]
            asked = (to_json(waiting),)
            oldest = dict(connection.execute(self._sql["oldest_in_line"], asked).fetchall()) if waiting else {}
            return [
                QueueInfo(name, counts.get(name, {}), at, by, why, until, oldest.get(name))
                for name, at, by, why, until in connection.execute(self._sql["all_queues"]).fetchall()
            ]

        return self._db.read_with("queues", work)

    def tasks(self) -> list[TaskInfo]:
        rows = self._db.read("tasks", self._sql["all_tasks"])
        return [TaskInfo(name, queue, facts_in(options), at) for name, queue, options, at in rows]

    def announce(self, tasks: Sequence[TaskInfo], *, order: str | None = None) -> None:
        def work(tx: Transaction) -> None:
            if order is not None:
                tx.execute(self._sql["put_order"], (order,))
            for task in tasks:
                tx.execute(self._sql["announce_task"], (task.name, task.queue, to_json(task.options), tx.now))
                tx.execute(self._sql["know_queue"], (task.queue,))

        self._write("announce", work)
