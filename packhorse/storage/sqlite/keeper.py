"""What all groups of operations share: finding jobs under the write lock, and keeping what became of them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

from packhorse import changes
from packhorse.changes import Changed
from packhorse.event import Event, Kind, Subject
from packhorse.failure import Failure
from packhorse.job import QUEUED, Job, UniqueLock
from packhorse.series import has_failed
from packhorse.storage.contract import Storage
from packhorse.storage.sqlite.bell import Bell
from packhorse.storage.sqlite.database import Database
from packhorse.storage.sqlite.recorder import EVENT_COLUMNS
from packhorse.storage.sqlite.rows import (
    JOB_COLUMNS,
    LARGE_ARGS,
    PLAIN_COLUMNS,
    UPDATE_JOB,
    changed_row,
    job_of,
    to_json,
)
from packhorse.storage.sqlite.transaction import Place, Transaction
from packhorse.storage.statements import load_statements
from packhorse.turns import Turns

SQL = load_statements("sqlite", job=JOB_COLUMNS, plain=PLAIN_COLUMNS, event=EVENT_COLUMNS)


def place_of(job: Job) -> Place:
    """Where this job is counted."""
    return (job.queue, job.task, job.state.value)


class Keeper(Storage):
    """The part of the SQLite storage that every group of operations builds on."""

    _db: Database
    _bell: Bell
    _turns: Turns

    # --- finding --------------------------------------------------------------------------------------------------

    def _jobs(self, tx: Transaction, job_ids: Collection[str]) -> dict[str, Job]:
        """The jobs with these ids, by id."""
        rows = tx.execute(SQL["jobs_by_ids"], (to_json(list(job_ids)),)).fetchall()
        return {row[0]: job_of(row) for row in rows}

    def _holder(self, tx: Transaction, key: str) -> Job | None:
        """The job that holds this unique key now."""
        row = tx.execute(SQL["get_lock"], (key,)).fetchone()
        if row is None:
            return None
        job_id, period, until, taken_at = row
        job = self._jobs(tx, [job_id]).get(job_id)
        if job is None or not changes.holds(job, UniqueLock(key, period, until), taken_at, tx.now):
            return None
        return job

    def _promote(self, tx: Transaction, limit: int) -> int:
        """Queue what is due. Reserving does so too, so a lone worker needs no chore for it."""
        due = [job_of(row) for row in tx.execute(SQL["due_jobs"], (tx.now, limit)).fetchall()]
        for job in due:
            self._keep(tx, job, changes.promoted(job, tx.now))
        return len(due)

    def _expire(self, tx: Transaction, limit: int) -> int:
        """Abort what has waited or lived too long. Reserving does so first: nobody shall be handed such a job."""
        over = [job_of(row) for row in tx.execute(SQL["expired_jobs"], (tx.now, limit)).fetchall()]
        for job in over:
            self._keep(tx, job, changes.expired(job, tx.now))
        return len(over)

    # --- keeping --------------------------------------------------------------------------------------------------

    def _keep(self, tx: Transaction, before: Job, change: Changed, ran: int | None = None) -> Job:
        """Write a changed job, its events, and what is counted; wake somebody when it came into line."""
        job = change.job
        tx.execute(UPDATE_JOB, changed_row(job))
        if job.args != before.args:
            self._keep_args(tx, [job])
        tx.record(change.events)
        tx.count(before, job, ran)
        tx.move(place_of(before), place_of(job))
        if job.cause is not None and has_failed(before, job):
            self._count_failure(tx, job)
        if job.state is QUEUED and (place_of(before) != place_of(job) or job.rank < before.rank):
            tx.wakes = True
        return job

    def _keep_args(self, tx: Transaction, jobs: Iterable[Job]) -> None:
        """Long arguments lie apart from the row, which is copied with every change of state."""
        for job in jobs:
            if len(job.args) > LARGE_ARGS:
                tx.execute(SQL["put_large_args"], (job.seq, job.args))

    def _count_failure(self, tx: Transaction, job: Job) -> None:
        failure = Failure.from_json(job.error or "{}")
        told = (job.cause, job.task, failure.pattern(), failure.place, 1, tx.now, tx.now, job.id)
        tx.execute(SQL["count_failure"], told)

    def _remove(self, tx: Transaction, jobs: Sequence[Job], by: str | None) -> None:
        """Jobs go, with all that hangs on them; their events stay."""
        if not jobs:
            return
        numbers, ids = to_json([job.seq for job in jobs]), to_json([job.id for job in jobs])
        tx.execute(SQL["remember_last_seq"], (max(job.seq for job in jobs),))
        tx.execute(SQL["keep_packs_of_gone"], (tx.now, numbers))
        tx.execute(SQL["delete_jobs"], (numbers,))
        tx.execute(SQL["delete_large_args"], (numbers,))
        tx.execute(SQL["delete_log"], (ids,))
        tx.execute(SQL["delete_subscribers"], (ids,))
        keys = [job.unique_key for job in jobs if job.unique_key]
        if keys:
            tx.execute(SQL["delete_locks"], (to_json(keys), ids))
        for job in jobs:
            tx.move(place_of(job), None)
        tx.record(changes.deleted(job, tx.now, by) for job in jobs)

    def _record_about(
        self,
        tx: Transaction,
        subject: Subject,
        kind: Kind,
        *,
        queue: str | None = None,
        owner: str | None = None,
        **facts: Any,
    ) -> None:
        """Write an event that is not about a job."""
        told = {name: value for name, value in facts.items() if value is not None}
        tx.record([Event(kind, tx.now, subject, queue=queue, owner=owner, data=told or None)])
