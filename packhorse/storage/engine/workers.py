"""Workers and foremen: join, heartbeat, leave; and taking jobs back from those that died."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from packhorse.core import transitions
from packhorse.core.event import Event, Kind, Subject
from packhorse.core.job import Job
from packhorse.core.transitions import Transition
from packhorse.storage.contract import BATCH
from packhorse.storage.engine.history import record_about
from packhorse.storage.records import NO_OWNER, REJOINED, Rescued, WorkerInfo
from packhorse.storage.transaction import Transaction


def join(tx: Transaction, worker: WorkerInfo, lease: int, *, has_new_version: bool) -> bool:
    """See `Storage.join`. False: the process before held more jobs than one transaction takes back. Call again."""
    joined = replace(worker, joined_at=tx.now, beat_at=tx.now)
    if not tx.add(joined):
        holder = tx.records(WorkerInfo, [worker.id]).get(worker.id)
        if holder is not None and not worker.takes_over(holder, tx.now, lease):
            tx.put(replace(joined, joined_at=holder.joined_at))
            return True
        if not _take_all(tx, worker.id, lambda job: transitions.rescued(job, tx.now, REJOINED)):
            return False
        if holder is not None:
            record_about(tx, holder.subject, Kind.DIED, owner=worker.id, **holder.event_facts(why=REJOINED))
        tx.put(joined)
    version = worker.code_version
    about = joined.event_facts(host=worker.host, pid=worker.pid, version=version)
    record_about(tx, worker.subject, Kind.STARTED, owner=worker.id, **about)
    if has_new_version:
        record_about(tx, Subject.FOREMAN, Kind.DEPLOYED, owner=worker.foreman or worker.id, version=version)
    return True


def heartbeat(tx: Transaction, reports: Mapping[str, Mapping[str, Any]]) -> tuple[int, list[str]]:
    """Store a sign of life and a report of each. Return the time, and the ids that are unknown."""
    workers = tx.records(WorkerInfo, list(reports))
    for owner, worker in workers.items():
        tx.put(replace(worker, beat_at=tx.now, report=dict(reports[owner])))
    return tx.now, [owner for owner in reports if owner not in workers]


def leave(tx: Transaction, owner: str, why: str, ran: Collection[str]) -> bool:
    """See `Storage.leave`. False: it held more jobs than one transaction releases. Call again."""
    tx.records(WorkerInfo, [owner])  # locks it before its jobs, as join and rescue_owner do
    if not _take_all(tx, owner, lambda job: transitions.released(job, tx.now, why, ran=job.id in ran)):
        return False
    worker = tx.delete_idle_worker(owner)
    if worker is not None:
        record_about(tx, worker.subject, Kind.KILLED, owner=owner, **worker.event_facts(why=why))
    return True


def _take_all(tx: Transaction, owner: str, change: Callable[[Job], Transition]) -> bool:
    """Change what this worker holds. False: there is more."""
    jobs = tx.held_jobs([owner], BATCH)
    for job in jobs:
        tx.keep(job, change(job))
    return len(jobs) < BATCH


def record_event(tx: Transaction, owner: str, kind: Kind, facts: Callable[[WorkerInfo], dict[str, Any]]) -> bool:
    """Record an event about a worker or foreman. False: it is unknown."""
    worker = tx.worker(owner)
    if worker is None:
        return False
    tx.record([Event(kind, tx.now, worker.subject, owner=owner, data=facts(worker))])
    return True


# --- rescue -----------------------------------------------------------------------------------------------------------


def rescue(tx: Transaction, lease: int, why: str, recovered: bool, limit: int, called_at: int) -> list[Rescued]:
    """See `Storage.rescue`."""
    silent = tx.silent_owners(min(called_at, tx.now), max(called_at, tx.now), lease)
    rescued = _take_back(tx, tx.lost_jobs(silent, limit), why, (), recovered)
    for owner in silent:  # not the unknown owners of lost jobs: one of them may have joined meanwhile
        _delete_dead(tx, owner, why)
    return rescued + _take_back(tx, tx.unowned_jobs(limit), NO_OWNER, (), recovered)


def rescue_owner(
    tx: Transaction, owner: str, why: str, foreman: str | None, ran: Collection[str], recovered: bool, limit: int
) -> list[Rescued]:
    """See `Storage.rescue_owner`."""
    worker = tx.records(WorkerInfo, [owner]).get(owner)
    if worker is not None:
        worker.check_may_take_back(foreman, tx.now)
    rescued = _take_back(tx, tx.held_jobs([owner], limit), why, ran, recovered)
    _delete_dead(tx, owner, why)
    return rescued


def _take_back(tx: Transaction, jobs: Sequence[Job], why: str, ran: Collection[str], recovered: bool) -> list[Rescued]:
    rescued = []
    for job in jobs:
        change = transitions.rescued(job, tx.now, why, ran=job.id in ran, recovered=recovered)
        rescued.append(Rescued(job.id, job.owner or "", tx.keep(job, change).state))
    return rescued


def _delete_dead(tx: Transaction, owner: str, why: str) -> None:
    """Delete a dead worker as soon as it holds nothing: its jobs are found by its record."""
    worker = tx.delete_idle_worker(owner)
    if worker is not None:
        record_about(tx, worker.subject, Kind.DIED, owner=owner, **worker.event_facts(why=why))
