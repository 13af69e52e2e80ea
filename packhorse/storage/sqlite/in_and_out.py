"""Jobs into the SQLite file. What becomes of unique ones, and all that is read, is in `sql/in_and_out.py`."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from itertools import chain

from packhorse.core import transitions
from packhorse.core.clock import SECOND
from packhorse.core.errors import BadValue
from packhorse.core.event import Kind
from packhorse.core.job import Job, NewJob, State
from packhorse.storage.after_commit import when_committed
from packhorse.storage.records import Enqueued, Placement
from packhorse.storage.sql import in_and_out
from packhorse.storage.sql.rows import Row
from packhorse.storage.sqlite import schema
from packhorse.storage.sqlite.event_writer import BatchedJob
from packhorse.storage.sqlite.external_connection import joined, own_connection
from packhorse.storage.sqlite.keeper import SQLiteKeeper
from packhorse.storage.sqlite.rows import insert_of
from packhorse.storage.sqlite.statements import SQL
from packhorse.storage.sqlite.transaction import Transaction
from packhorse.storage.transfer import may_go_on

_SOON = 2 * SECOND


class InAndOut(SQLiteKeeper, in_and_out.InAndOut):
    def enqueue_within(self, connection: object, jobs: Sequence[NewJob]) -> list[Enqueued]:
        if not jobs:
            return []
        if self._db.is_open:
            self._db.ensure_prepared()  # the file may be another's by now
        with joined(connection, self._db.path, self._db.ensure_prepared) as cursor:
            if not self._db.is_open:
                # His transaction has begun and holds the file: to open it, and to make what is missing, we would wait
                # for his commit, and he for us.
                schema.prepare_within(cursor, self._db.path)
            tx = Transaction(cursor, self.now())
            may_go_on(self._mark_in(tx), "enqueue")
            enqueued = self._enqueue(tx, jobs)
            tx.flush()
        with suppress(BadValue):  # not all connections tell
            when_committed(connection, self._notifier.notify)
        return enqueued

    def get_many(self, job_ids: Sequence[str]) -> list[Job]:
        if not self._db.is_open and self._has_no_tables():
            # Creating them waits for the write lock. The caller's own open transaction may hold it, with the tables and
            # the first jobs in it, and could never commit while we wait.
            return []
        return super().get_many(job_ids)

    def _has_no_tables(self) -> bool:
        self._db.refuse_mismatch()
        return schema.has_none(self._db.path)

    def can_be_read_beside(self, connection: object) -> bool:
        own = own_connection(connection)
        try:
            return self._db.is_open or not own.in_transaction or schema.is_ready(own)
        except sqlite3.Error:  # of no use to anybody, as `enqueue_within` will say
            return True

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
            self._insert_one(tx, new)
        except sqlite3.IntegrityError as error:
            _must_be_known_id(error)
            return Enqueued(new.id, Placement.KEPT)
        return Enqueued(new.id)

    def _insert_one(self, tx: Transaction, new: NewJob) -> None:
        seq = tx.execute(SQL["last_seq"]).fetchone()[0] + 1
        job, events = transitions.added(new, seq, tx.now)
        tx.execute(*insert_of(job))  # before anything is recorded: its id may turn out to be there already
        tx.record(events)
        tx.keep_args([job])
        _count_added(tx, (job.queue, job.task, job.state), 1)
        tx.wakes = tx.wakes or _is_soon(job, tx.now)

    def _insert(self, tx: Transaction, jobs: Sequence[NewJob]) -> None:
        if len(jobs) == 1:
            self._insert_one(tx, jobs[0])
            return
        seq = tx.execute(SQL["last_seq"]).fetchone()[0]
        stored = [transitions.added_job(new, seq + place, tx.now) for place, new in enumerate(jobs, start=1)]
        packs = self._record_added(tx, jobs, stored)
        rows: dict[str, list[Row]] = {}
        for job in stored:
            statement, row = insert_of(job, packs.get(job.id, ""))
            rows.setdefault(statement, []).append(row)
        for statement, values in rows.items():
            tx.executemany(statement, values)
        tx.keep_args(stored)
        for alike, number in Counter([(job.queue, job.task, job.state) for job in stored]).items():
            _count_added(tx, alike, number)
        tx.wakes = tx.wakes or any(_is_soon(job, tx.now) for job in stored)

    def _record_added(self, tx: Transaction, new_jobs: Sequence[NewJob], added: Sequence[Job]) -> dict[str, str]:
        """The event of each, and in which pack it is, if it is in one."""
        alike: dict[State, dict[str, list[BatchedJob]]] = {}
        for new, job in zip(new_jobs, added, strict=True):
            facts = transitions.added_facts(new, job)
            packed = (job.id, 0) if facts is None else (job.id, 0, 0, facts)
            alike.setdefault(job.state, {}).setdefault(job.queue, []).append(packed)
        packs: dict[str, str] = {}
        for state, queues in alike.items():
            lines = [(queue, len(jobs)) for queue, jobs in queues.items()]
            jobs = list(chain.from_iterable(queues.values()))
            pack = tx.events.add_batch(Kind.ADDED, tx.now, lines, state.value, "", jobs)
            if pack:
                packs.update(dict.fromkeys([job_id for job_id, *_ in jobs], pack))
        return packs


def _count_added(tx: Transaction, alike: tuple[str, str, State], number: int) -> None:
    queue, task, state = alike
    tx.move(None, (queue, task, state.value), number)
    tx.measures[queue, task, "added"] = tx.measures.get((queue, task, "added"), 0) + number


def _is_soon(job: Job, now: int) -> bool:
    """A sleeper has asked when the next job is due, and would oversleep one that is due sooner."""
    return job.due_at is None or job.due_at < now + _SOON


def _must_be_known_id(error: sqlite3.IntegrityError) -> None:
    """Only a repeated id may be taken for a repeated call; anything else that the file refuses is an error."""
    if error.sqlite_errorcode != sqlite3.SQLITE_CONSTRAINT_UNIQUE:
        raise error
