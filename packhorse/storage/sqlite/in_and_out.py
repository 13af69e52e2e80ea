"""Jobs in and out: enqueue, get, and the names that become known on the way. Lists are in `lists.py`."""

from __future__ import annotations

import sqlite3
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from packhorse import changes
from packhorse.clock import SECOND
from packhorse.errors import ClientNotFound, NotUnique
from packhorse.event import Kind
from packhorse.job import HELD, QUEUED, WAITING, Job, NewJob, State
from packhorse.storage.records import Enqueued, Placement, QueueInfo, Tally, TaskInfo
from packhorse.storage.sqlite.keeper import SQL, Keeper
from packhorse.storage.sqlite.recorder import Packed
from packhorse.storage.sqlite.rows import Row, from_json, insert_of, job_of, to_json
from packhorse.storage.sqlite.transaction import Transaction

_SOON = 2 * SECOND
_KNOWN_FOR = 300.0
"""Seconds for which a process trusts that a name it has written is still there."""


class InAndOut(Keeper):
    _known: dict[tuple[str, str], float]

    def enqueue(self, jobs: Sequence[NewJob]) -> list[Enqueued]:
        if not jobs:
            return []
        enqueued = self._db.write("enqueue", lambda tx: self._enqueue(tx, jobs))
        self._remember(jobs)
        return enqueued

    def _enqueue(self, tx: Transaction, jobs: Sequence[NewJob]) -> list[Enqueued]:
        self._know(tx, dict.fromkeys((new.task, new.queue) for new in jobs))
        if any(new.unique or new.subscriber for new in jobs):
            return [self._enqueue_one(tx, new) for new in jobs]
        if len(jobs) == 1:
            return [self._enqueue_plain(tx, jobs[0])]
        try:
            tx.nested(lambda own: self._insert(own, jobs))
        except sqlite3.IntegrityError as error:
            _must_be_known_id(error)
            # An id is there already: somebody repeats a call whose answer was lost. One by one, then.
            return [self._enqueue_one(tx, new) for new in jobs]
        return [Enqueued(new.id) for new in jobs]

    def _enqueue_plain(self, tx: Transaction, new: NewJob) -> Enqueued:
        try:
            self._insert(tx, [new])
        except sqlite3.IntegrityError as error:
            _must_be_known_id(error)
            return Enqueued(new.id, Placement.KEPT)
        return Enqueued(new.id)

    def _insert(self, tx: Transaction, jobs: Sequence[NewJob]) -> list[Job]:
        seq = tx.execute(SQL["last_seq"]).fetchone()[0]
        stored = [changes.added_job(new, seq + place, tx.now) for place, new in enumerate(jobs, start=1)]
        # One alone is recorded when it is in: its id may turn out to be there already. Several are undone together.
        packs = self._record_added(tx, jobs, stored) if len(stored) > 1 else {}
        rows: dict[str, list[Row]] = {}
        for job in stored:
            statement, row = insert_of(job, packs.get(job.id, ""))
            rows.setdefault(statement, []).append(row)
        for statement, values in rows.items():
            tx.executemany(statement, values)
        if len(stored) == 1:
            self._record_added(tx, jobs, stored)
        self._keep_args(tx, stored)
        self._count_added(tx, stored)
        return stored

    def _record_added(self, tx: Transaction, new_jobs: Sequence[NewJob], added: Sequence[Job]) -> dict[str, str]:
        """The event of each, and in which pack it is, if it is in one."""
        alike: dict[tuple[str, State], list[Packed]] = {}
        for new, job in zip(new_jobs, added, strict=True):
            facts = changes.added_facts(new, job)
            packed = (job.id, 0) if facts is None else (job.id, 0, 0, facts)
            alike.setdefault((job.queue, job.state), []).append(packed)
        packs: dict[str, str] = {}
        for (queue, state), jobs in alike.items():
            pack = tx.events.pack(Kind.ADDED, tx.now, queue, state.value, "", jobs)
            if pack:
                packs.update(dict.fromkeys([job_id for job_id, *_ in jobs], pack))
        return packs

    def _count_added(self, tx: Transaction, added: Sequence[Job]) -> None:
        for (queue, task, state), number in Counter([(job.queue, job.task, job.state) for job in added]).items():
            tx.move(None, (queue, task, state.value), number)
            tx.measures[queue, task, "added"] = tx.measures.get((queue, task, "added"), 0) + number
        # A sleeper has asked when the next job is due, and would oversleep one that is due sooner.
        if any(job.due_at is None or job.due_at < tx.now + _SOON for job in added):
            tx.wakes = True

    def _enqueue_one(self, tx: Transaction, new: NewJob) -> Enqueued:
        if self._jobs(tx, [new.id]):
            return Enqueued(new.id, Placement.KEPT)
        if new.unique is not None:
            if new.unique.on_conflict == "replace":
                replaced = tx.execute(SQL["replaced_by"], (new.id,)).fetchone()
                if replaced is not None:
                    return Enqueued(replaced[0], Placement.REPLACED)
            holder = self._holder(tx, new.unique.key)
            if holder is not None:
                twin = self._meet_twin(tx, holder, new)
                if twin is not None:
                    self._subscribe(tx, new, holder.id)
                    return twin
            lock = new.unique
            tx.execute(SQL["put_lock"], (lock.key, new.id, lock.period, lock.until, tx.now))
        self._insert(tx, [new])
        self._subscribe(tx, new, new.id)
        return Enqueued(new.id)

    def _subscribe(self, tx: Transaction, new: NewJob, job_id: str) -> None:
        """Whoever enqueued wants the outcome, be it of this job or of the twin that stands for it."""
        if new.subscriber is not None:
            if tx.execute(SQL["get_client"], (new.subscriber,)).fetchone() is None:
                raise ClientNotFound(new.subscriber)
            tx.execute(SQL["add_subscriber"], (job_id, new.subscriber))

    def _meet_twin(self, tx: Transaction, holder: Job, new: NewJob) -> Enqueued | None:
        """Another job holds the unique key. None: the new job is to be added all the same."""
        assert new.unique is not None
        if new.unique.on_conflict == "reject":
            raise NotUnique(holder.id, new.unique.key)
        if new.unique.on_conflict == "replace":
            if holder.state in WAITING:
                self._keep(tx, holder, changes.replaced(holder, new, tx.now))
                tx.execute(SQL["put_replaced"], (new.id, holder.id, tx.now))
                return Enqueued(holder.id, Placement.REPLACED)
            if holder.state in HELD:
                return None  # it has read the old arguments; the new ones must not be lost
        return Enqueued(holder.id, Placement.KEPT)

    def _know(self, tx: Transaction, names: Iterable[tuple[str, str]]) -> None:
        """Task and queue names become known with their first job."""
        now = time.monotonic()
        for task, queue in names:
            if self._known.get((task, queue), 0.0) < now:
                tx.execute(SQL["know_task"], (task, queue))
                tx.execute(SQL["know_queue"], (queue,))

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
        rows = self._db.read("get", SQL["jobs_by_ids"], (to_json(list(job_ids)),))
        jobs = {row[0]: job_of(row) for row in rows}
        return [jobs[job_id] for job_id in job_ids if job_id in jobs]

    def tallies(self) -> list[Tally]:
        rows = self._db.read("tallies", SQL["all_tallies"])
        return [Tally(queue, task, State(state), number) for queue, task, state, number in rows]

    def queues(self) -> list[QueueInfo]:
        def work(connection: sqlite3.Connection) -> list[QueueInfo]:
            counts: dict[str, dict[State, int]] = defaultdict(dict)
            for queue, _, state, number in connection.execute(SQL["all_tallies"]).fetchall():
                counts[queue][State(state)] = counts[queue].get(State(state), 0) + number
            waiting = [queue for queue, numbers in counts.items() if numbers.get(QUEUED)]
            oldest = dict(connection.execute(SQL["oldest_in_line"], (to_json(waiting),)).fetchall())
            return [
                QueueInfo(name, counts.get(name, {}), paused_at, by, why, oldest.get(name))
                for name, paused_at, by, why in connection.execute(SQL["all_queues"]).fetchall()
            ]

        return self._db.read_with("queues", work)

    def tasks(self) -> list[TaskInfo]:
        rows = self._db.read("tasks", SQL["all_tasks"])
        return [TaskInfo(name, queue, from_json(options), at) for name, queue, options, at in rows]

    def announce(self, tasks: Sequence[TaskInfo]) -> None:
        def work(tx: Transaction) -> None:
            for task in tasks:
                tx.execute(SQL["announce_task"], (task.name, task.queue, to_json(task.options), tx.now))
                tx.execute(SQL["know_queue"], (task.queue,))

        self._db.write("announce", work)


def _must_be_known_id(error: sqlite3.IntegrityError) -> None:
    """Only a repeated id may be taken for a repeated call; anything else that the file refuses is an error."""
    if error.sqlite_errorcode != sqlite3.SQLITE_CONSTRAINT_UNIQUE:
        raise error
