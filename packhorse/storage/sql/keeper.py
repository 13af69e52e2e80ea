"""What all groups of operations share: finding jobs under a lock, and keeping what became of them.

For SQLite, PostgreSQL and MySQL alike. What happens to a job is decided in `changes.py`; its row, its events and its
counts are one transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeVar

from packhorse.core import transitions
from packhorse.core.event import Event, Kind, Subject
from packhorse.core.fair_share import FairShare
from packhorse.core.job import QUEUED, WAITING, Job, UniqueLock
from packhorse.core.metrics import has_failed, measure_deleted
from packhorse.core.outcome import Failure
from packhorse.core.transitions import Transition
from packhorse.storage.contract import Storage
from packhorse.storage.records import WorkerInfo
from packhorse.storage.sql.rows import job_of, to_json, worker_of
from packhorse.storage.sql.statements import Dialect
from packhorse.storage.sql.transaction import Database, Place, SQLConnection, Transaction
from packhorse.storage.transfer import Move, decode, may_go_on, quiet_answer

R = TypeVar("R")

_EXPIRED_AT_ONCE = 100
_EXPIRED_AT_MOST = 2_000
"""In one transaction."""


def place_of(job: Job) -> Place:
    """Where this job is counted."""
    return (job.queue, job.task, job.state.value)


class Keeper(Storage):
    """The part of an SQL storage that every group of operations builds on."""

    _db: Database
    _sql: Mapping[str, str]  # its statements by name
    _dialect: Dialect
    _turns: FairShare

    # --- one step -------------------------------------------------------------------------------------------------

    def _write(self, name: str, work: Callable[[Any], R]) -> R:
        """Do `work` in a transaction, committed when this returns. While the storage is moved, only some calls may."""

        def gated(tx: Transaction) -> R:
            tx.mark = self._mark_of(tx)
            if may_go_on(tx.mark, name):
                return work(tx)
            answer: R = quiet_answer(name)
            return answer

        return self._db.write(name, gated)

    def _moment(self) -> Any:
        """What statements take as the time."""
        return self.now()

    def _mark_of(self, tx: Any) -> Move | None:
        """The mark as it is for the whole of this transaction."""
        return self._mark_in(tx)

    def _mark_in(self, connection: SQLConnection) -> Move | None:
        """The mark of a move, as this connection sees it."""
        row = connection.execute(self._sql["get_move"]).fetchone()
        return None if row is None else decode(row[0])

    # --- finding --------------------------------------------------------------------------------------------------

    def _jobs(self, tx: Transaction, job_ids: Collection[str]) -> dict[str, Job]:
        """The jobs with these ids, by id. Nobody else changes them before this transaction ends."""
        rows = tx.execute(self._sql["lock_jobs"], (to_json(list(job_ids)),)).fetchall()
        return {row[0]: job_of(row) for row in rows}

    def _is_stored(self, tx: Transaction, job_id: str) -> bool:
        return bool(self._jobs(tx, [job_id]))

    def _holder(self, tx: Transaction, key: str) -> Job | None:
        """The job that holds this unique key now."""
        row = tx.execute(self._sql["get_lock"], (key,)).fetchone()
        if row is None:
            return None
        job_id, period, until, taken_at = row
        job = self._twin(tx, job_id)
        if job is None or not transitions.holds(job, UniqueLock(key, period, until), taken_at, tx.now):
            return None
        return job

    def _twin(self, tx: Transaction, job_id: str) -> Job | None:
        """The job that took a unique key last. One that waits is not started before this transaction ends: it shall
        find what is done in it. Others are left alone in somebody else's, as their workers want to finish them; what
        such a transaction sees may be old, so a connection of our own is asked."""
        seen = self.get(job_id) if tx.is_external else None
        if seen is not None and seen.state not in WAITING:
            return seen
        return self._jobs(tx, [job_id]).get(job_id)

    def _lock_keys(self, tx: Transaction, keys: Collection[str]) -> None:
        """Nobody else takes or gives up these unique keys before this transaction ends. Called before jobs are locked.
        A database with a single writer need not do anything."""

    def _settled(self) -> tuple[str, list[Any]]:
        """A condition, with its values, for events that no earlier one can still come before. A database with a single
        writer needs none."""
        return "", []

    def _is_old(self, old: str) -> str:
        """A condition for events that were written before a time. A start that is told late, or together with the end
        of its job, bears an earlier time than that of its writing: it is as old as the job's latest event, and as the
        latest change of a job that still runs, unless that is a sign of life."""
        event, job = f"{self._dialect.prefix}event", f"{self._dialect.prefix}job"
        told_since = (
            f"SELECT 1 FROM {event} AS later"
            f" WHERE {self._dialect.later_of_job.replace('{event}', event)} AND later.at >= {old}"
        )
        begun_since = (
            f"SELECT 1 FROM {job} AS job WHERE job.id = {event}.job_id AND job.state = 'running'"
            f" AND job.updated_at >= {old} AND coalesce(job.checkin_at, 0) < job.updated_at"
        )
        is_told_late = f"kind = 'started' AND (EXISTS ({told_since}) OR EXISTS ({begun_since}))"
        return f"at < {old} AND NOT ({is_told_late})"

    def _promote(self, tx: Transaction, limit: int) -> int:
        """Queue what is due. Reserving does so too, so a lone worker needs no chore for it."""
        due = [job_of(row) for row in tx.execute(self._sql["due_jobs"], (tx.now, limit)).fetchall()]
        for job in due:
            self._keep(tx, job, transitions.promoted(job, tx.now))
        return len(due)

    def _expire(self, tx: Transaction, limit: int) -> int:
        """Abort what has waited or lived too long. Reserving does so first: nobody shall be handed such a job."""
        over = [job_of(row) for row in tx.execute(self._sql["expired_jobs"], (tx.now, limit)).fetchall()]
        for job in over:
            self._keep(tx, job, transitions.expired(job, tx.now))
        return len(over)

    def _expire_all(self, tx: Transaction) -> bool:
        """Abort all that has waited or lived too long. False: there are more than one transaction should be long for;
        whoever wanted jobs goes without, is woken at once, and asks again."""
        for _ in range(_EXPIRED_AT_MOST // _EXPIRED_AT_ONCE):
            if self._expire(tx, _EXPIRED_AT_ONCE) < _EXPIRED_AT_ONCE:
                return True
        tx.wakes = True
        return False

    # --- keeping --------------------------------------------------------------------------------------------------

    def _keep(self, tx: Transaction, before: Job, change: Transition, ran: int | None = None) -> Job:
        """Write a changed job, its events, and what is counted; wake somebody when it came into line."""
        job = change.job
        tx.keep(before, job)
        tx.record(change.events)
        tx.count(before, job, ran)
        tx.move(place_of(before), place_of(job))
        if job.cause is not None and has_failed(before, job):
            self._count_failure(tx, job)
        if job.state is QUEUED and (place_of(before) != place_of(job) or job.rank < before.rank):
            tx.wakes = True
        return job

    def _count_failure(self, tx: Transaction, job: Job) -> None:
        failure = Failure.from_json(job.error or "{}")
        about = (job.cause, job.task, failure.pattern(), failure.place)
        tx.count_failure((*about, 1, tx.now, tx.now, job.id, failure.version))
        its = (job.cause or "", job.task)
        tx.causes[its] = tx.causes.get(its, 0) + 1

    def _remove(self, tx: Transaction, jobs: Sequence[Job], by: str | None) -> None:
        """Jobs go, with all that hangs on them; their events stay."""
        if not jobs:
            return
        numbers, ids = to_json([job.seq for job in jobs]), to_json([job.id for job in jobs])
        self._before_removing(tx, jobs)
        tx.execute(self._sql["delete_jobs"], (numbers,))
        tx.execute(self._sql["delete_log"], (ids,))
        tx.execute(self._sql["delete_subscribers"], (ids,))
        keys = [job.unique_key for job in jobs if job.unique_key]
        if keys:
            tx.execute(self._sql["delete_locks"], (to_json(keys), ids))
        for job in jobs:
            tx.move(place_of(job), None)
            measure_deleted(tx.measures, job)
        tx.record(transitions.deleted(job, tx.now, by) for job in jobs)

    def _before_removing(self, tx: Any, jobs: Sequence[Job]) -> None:
        """For a database that must note something about jobs before they go."""

    def _worker(self, tx: Transaction, owner: str) -> WorkerInfo | None:
        """The record of one that has joined."""
        row = tx.execute(self._sql["worker"], (owner,)).fetchone()
        return None if row is None else worker_of(row)

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
