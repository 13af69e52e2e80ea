"""What operators do: abort, force start, set priority, move to a queue, retry, delete jobs; pause and resume queues."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from packhorse.core import transitions
from packhorse.core.event import Kind, Subject
from packhorse.core.job import Job, Operation
from packhorse.core.transitions import Transition
from packhorse.storage.engine.history import record_about
from packhorse.storage.records import PAUSE_IS_OVER, ActionResult, JobVersion, QueueInfo, refusal_for, seen_by_id
from packhorse.storage.transaction import Transaction

Change = Callable[[Job], Transition]


def abort(tx: Transaction, job_ids: Sequence[str], by: str | None, seen: Sequence[JobVersion]) -> list[ActionResult]:
    return _change_jobs(tx, Operation.ABORT, job_ids, seen, lambda job: transitions.aborted(job, tx.now, by))


def force_start(
    tx: Transaction, job_ids: Sequence[str], by: str | None, seen: Sequence[JobVersion]
) -> list[ActionResult]:
    return _change_jobs(tx, Operation.FORCE_START, job_ids, seen, lambda job: transitions.forced(job, tx.now, by))


def set_priority(
    tx: Transaction, job_ids: Sequence[str], priority: int, by: str | None, seen: Sequence[JobVersion]
) -> list[ActionResult]:
    change: Change = lambda job: transitions.reprioritised(job, priority, tx.now, by)  # noqa: E731
    return _change_jobs(tx, Operation.SET_PRIORITY, job_ids, seen, change)


class _NothingChanged(Exception):
    """No job went to the queue. Undoes that the queue became known."""

    def __init__(self, results: list[ActionResult]) -> None:
        self.results = results


def set_queue(
    tx: Transaction,
    job_ids: Sequence[str],
    queue: str,
    by: str | None,
    seen: Sequence[JobVersion],
    options: Mapping[str, Any] | None,
) -> list[ActionResult]:
    def work(own: Transaction) -> list[ActionResult]:
        own.know([queue])
        change: Change = lambda job: transitions.moved_to_queue(job, queue, own.now, by, options)  # noqa: E731
        results = _change_jobs(own, Operation.SET_QUEUE, job_ids, seen, change)
        if not any(result.changed for result in results):
            raise _NothingChanged(results)
        return results

    try:
        return tx.nested(work)
    except _NothingChanged as nothing:
        return nothing.results


def retry(tx: Transaction, job_ids: Sequence[str], by: str | None, seen: Sequence[JobVersion]) -> list[ActionResult]:
    """A retried job holds its unique key again; while another job holds that, it is left alone."""
    jobs = tx.jobs(job_ids, with_keys=True)
    keys = {job.unique_key for job in jobs.values() if job.unique_key}
    holders = {key: job.id for key, job in tx.holders(keys).items()} if keys else {}
    results, seen_of = [], seen_by_id(job_ids, seen)
    for job_id in job_ids:
        job = jobs.get(job_id)
        refused = _refusal(Operation.RETRY, job_id, job, seen_of.get(job_id))
        if refused is not None or job is None:
            results.append(refused or ActionResult(job_id, False))
            continue
        holder = holders.get(job.unique_key or "", job_id)
        if holder != job_id:
            results.append(ActionResult(job_id, False, job.state, conflict=holder))
            continue
        jobs[job_id] = tx.keep(job, transitions.retried(job, tx.now, by))
        if job.unique_key:
            tx.retake_key(job.unique_key, job_id)
            holders[job.unique_key] = job_id
        results.append(ActionResult(job_id, True, jobs[job_id].state))
    return results


def delete(tx: Transaction, job_ids: Sequence[str], by: str | None, seen: Sequence[JobVersion]) -> list[ActionResult]:
    jobs, deleted = tx.jobs(job_ids), []
    results, seen_of = [], seen_by_id(job_ids, seen)
    for job_id in job_ids:
        job = jobs.get(job_id)
        refused = _refusal(Operation.DELETE, job_id, job, seen_of.get(job_id))
        if refused is not None or job is None:
            results.append(refused or ActionResult(job_id, False))
        else:
            deleted.append(jobs.pop(job_id))
            results.append(ActionResult(job_id, True, job.state))
    tx.remove(deleted, by)
    return results


def _change_jobs(
    tx: Transaction, operation: Operation, job_ids: Sequence[str], seen: Sequence[JobVersion], change: Change
) -> list[ActionResult]:
    jobs = tx.jobs(job_ids)
    results, seen_of = [], seen_by_id(job_ids, seen)
    for job_id in job_ids:
        job = jobs.get(job_id)
        refused = _refusal(operation, job_id, job, seen_of.get(job_id))
        if refused is not None or job is None:
            results.append(refused or ActionResult(job_id, False))
            continue
        changed = change(job)
        if operation is Operation.SET_QUEUE and not changed.events:  # it is in that queue already
            results.append(ActionResult(job_id, False, job.state))
            continue
        jobs[job_id] = tx.keep(job, changed)
        results.append(ActionResult(job_id, True, jobs[job_id].state))
    return results


def _refusal(operation: Operation, job_id: str, job: Job | None, seen: JobVersion | None) -> ActionResult | None:
    """Return the result for a job that stays as it is: it does not exist, it is not as `seen`, or its state does not
    allow the operation."""
    return ActionResult(job_id, False) if job is None else refusal_for(operation, job, seen)


def pause(tx: Transaction, queue: str, by: str | None, why: str | None, duration: int | None) -> bool:
    info = tx.records(QueueInfo, [queue]).get(queue, QueueInfo(queue))
    if info.stays(duration, tx.now):
        return False
    until = None if duration is None else tx.now + duration
    tx.put(replace(info, paused_at=tx.now, paused_by=by, paused_why=why, paused_until=until))
    record_about(tx, Subject.QUEUE, Kind.PAUSED, queue=queue, by=by, why=why, until=until)
    return True


def resume(tx: Transaction, queue: str, by: str | None, over: bool) -> bool:
    info = tx.records(QueueInfo, [queue]).get(queue)
    if info is None or not info.is_paused or (over and not info.is_over(tx.now)):
        return False
    tx.put(replace(info, paused_at=None, paused_by=None, paused_why=None, paused_until=None))
    record_about(tx, Subject.QUEUE, Kind.RESUMED, queue=queue, by=by, why=PAUSE_IS_OVER if over else None)
    tx.wake([queue])
    return True
