"""Jobs into the SQLite file. What becomes of unique ones, and all that is read, is in `sql/in_and_out.py`."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence

from packhorse import changes
from packhorse.changes import Changed
from packhorse.clock import SECOND
from packhorse.job import Job, NewJob
from packhorse.storage.records import Enqueued, Placement
from packhorse.storage.sql import in_and_out
from packhorse.storage.sql.rows import Row
from packhorse.storage.sqlite.guest import guest
from packhorse.storage.sqlite.keeper import SQLiteKeeper
from packhorse.storage.sqlite.rows import insert_of
from packhorse.storage.sqlite.statements import SQL
from packhorse.storage.sqlite.transaction import Transaction

_SOON = 2 * SECOND


class InAndOut(SQLiteKeeper, in_and_out.InAndOut):
    def enqueue_within(self, connection: object, jobs: Sequence[NewJob]) -> list[Enqueued]:
        self._db.ensure_prepared()
        if not jobs:
            return []
        with guest(connection, self._db.path) as cursor:
            tx = Transaction(cursor, self.now())
            enqueued = self._enqueue(tx, jobs)
            tx.flush()
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
        added = [changes.added(new, seq + place, tx.now) for place, new in enumerate(jobs, start=1)]
        stored = [change.job for change in added]
        rows: dict[str, list[Row]] = {}
        for job in stored:
            statement, row = insert_of(job)
            rows.setdefault(statement, []).append(row)
        for statement, values in rows.items():
            tx.executemany(statement, values)
        tx.keep_args(stored)
        self._note_added(tx, added)
        return stored

    def _note_added(self, tx: Transaction, added: Iterable[Changed]) -> None:
        """As `_note`, for many new jobs at once."""
        for job, events in added:
            tx.record(events)
            state = job.state.value
            tally, measured = (job.queue, job.task, state), (job.queue, job.task, "added")
            tx.tallies[tally] = tx.tallies.get(tally, 0) + 1
            tx.measures[measured] = tx.measures.get(measured, 0) + 1
            # A sleeper has asked when the next job is due, and would oversleep one that is due sooner.
            if job.due_at is None or job.due_at < tx.now + _SOON:
                tx.wakes = True


def _must_be_known_id(error: sqlite3.IntegrityError) -> None:
    """Only a repeated id may be taken for a repeated call; anything else that the file refuses is an error."""
    if error.sqlite_errorcode != sqlite3.SQLITE_CONSTRAINT_UNIQUE:
        raise error
