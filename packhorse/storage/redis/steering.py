"""What operators do to jobs: abort, force start, set priority, retry, delete. Pausing queues is in `queues.py`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from packhorse.core import transitions
from packhorse.core.job import Job, Operation, UniqueLock
from packhorse.core.transitions import Transition
from packhorse.storage.records import Seen, Steered, left_alone, seen_by_id
from packhorse.storage.redis.keeper import Keeper
from packhorse.storage.redis.transaction import Transaction

Step = Callable[[Job, int], Transition]


class Steering(Keeper):
    def abort(self, job_ids: Sequence[str], *, by: str | None = None, seen: Sequence[Seen] = ()) -> list[Steered]:
        return self._steer(Operation.ABORT, job_ids, seen, lambda job, now: transitions.aborted(job, now, by))

    def force_start(self, job_ids: Sequence[str], *, by: str | None = None, seen: Sequence[Seen] = ()) -> list[Steered]:
        return self._steer(Operation.FORCE_START, job_ids, seen, lambda job, now: transitions.forced(job, now, by))

    def set_priority(
        self, job_ids: Sequence[str], priority: int, *, by: str | None = None, seen: Sequence[Seen] = ()
    ) -> list[Steered]:
        return self._steer(
            Operation.SET_PRIORITY, job_ids, seen, lambda job, now: transitions.reprioritised(job, priority, now, by)
        )

    def set_queue(
        self,
        job_ids: Sequence[str],
        queue: str,
        *,
        by: str | None = None,
        seen: Sequence[Seen] = (),
        options: Mapping[str, Any] | None = None,
    ) -> list[Steered]:
        def work(tx: Transaction) -> list[Steered]:
            tx.jobs(job_ids)
            step: Step = lambda job, now: transitions.requeued(job, queue, now, by, options)  # noqa: E731
            seen_of = seen_by_id(job_ids, seen)
            answers = [self._steer_one(tx, Operation.SET_QUEUE, job_id, seen_of, step) for job_id in job_ids]
            if any(answer.changed for answer in answers):
                tx.do("HSETNX", self._keys.queues, queue, "")
            return answers

        return self._change("set_queue", work)

    def retry(self, job_ids: Sequence[str], *, by: str | None = None, seen: Sequence[Seen] = ()) -> list[Steered]:
        return self._steer(Operation.RETRY, job_ids, seen, lambda job, now: transitions.retried(job, now, by))

    def _steer(self, operation: Operation, job_ids: Sequence[str], seen: Sequence[Seen], step: Step) -> list[Steered]:
        seen_of = seen_by_id(job_ids, seen)

        def work(tx: Transaction) -> list[Steered]:
            jobs = tx.jobs(job_ids)
            if operation is Operation.RETRY:
                tx.fields(self._keys.locks, [job.unique_key for job in jobs.values() if job.unique_key])
            return [self._steer_one(tx, operation, job_id, seen_of, step) for job_id in job_ids]

        return self._change(operation.value, work)

    def _steer_one(
        self, tx: Transaction, operation: Operation, job_id: str, seen_of: Mapping[str, Seen], step: Step
    ) -> Steered:
        job = tx.jobs([job_id]).get(job_id)
        if job is None:
            return Steered(job_id, False)
        if left := left_alone(operation, job, seen_of.get(job_id)):
            return left
        key = job.unique_key if operation is Operation.RETRY else None
        twin = tx.holder(key) if key else None
        if twin is not None and twin.id != job_id:
            return Steered(job_id, False, job.state, conflict=twin.id)
        change = step(job, tx.now)
        if operation is Operation.SET_QUEUE and not change.events:
            return Steered(job_id, False, job.state)
        after = tx.keep(job, change)
        if key:
            _retake_lock(tx, key, job_id)
        return Steered(job_id, True, after.state)

    def delete(self, job_ids: Sequence[str], *, by: str | None = None, seen: Sequence[Seen] = ()) -> list[Steered]:
        def work(tx: Transaction) -> list[Steered]:
            jobs = tx.jobs(job_ids)
            tx.fields(self._keys.locks, [job.unique_key for job in jobs.values() if job.unique_key])
            seen_of = seen_by_id(job_ids, seen)
            return [_delete_one(tx, job_id, seen_of.get(job_id), by) for job_id in job_ids]

        return self._change("delete", work)


def _retake_lock(tx: Transaction, key: str, job_id: str) -> None:
    """A job that is retried holds its key again. A lock that is its own already stays as it is."""
    taken = tx.lock(key)
    if taken is None or taken.job_id != job_id:
        tx.take_lock(UniqueLock(key, None, taken.lock.until if taken else "finish"), job_id)


def _delete_one(tx: Transaction, job_id: str, seen: Seen | None, by: str | None) -> Steered:
    job = tx.jobs([job_id]).get(job_id)
    if job is None:
        return Steered(job_id, False)
    if left := left_alone(Operation.DELETE, job, seen):
        return left
    tx.remove(job, by)
    return Steered(job_id, True, job.state)
