"""Upkeep: promote, expire, prune, roll up. Every process may call these at any time; the second finds nothing to do."""

from __future__ import annotations

from packhorse.core import transitions
from packhorse.core.event import Kind, Subject
from packhorse.core.job import FINAL, Job
from packhorse.core.metrics import CAUSE_DAYS, FOLDS
from packhorse.storage.engine.history import record_about
from packhorse.storage.records import MOST_MISSED, ClientInfo, Pruned, Retention
from packhorse.storage.transaction import FullTransaction, Transaction


def promote(tx: Transaction, limit: int) -> int:
    """Queue what is due."""
    due = tx.due_jobs(limit)
    for job in due:
        tx.keep(job, transitions.promoted(job, tx.now))
    return len(due)


def expire(tx: Transaction, limit: int) -> int:
    """Abort what has waited or lived too long."""
    expired = tx.expired_jobs(limit)
    for job in expired:
        tx.keep(job, transitions.expired(job, tx.now))
    return len(expired)


def prune(tx: FullTransaction, keep: Retention, limit: int, at: int | None) -> Pruned:
    """See `Storage.prune`."""
    now = tx.now if at is None else min(at, tx.now)
    clients, more_clients = prune_clients(tx, now - keep.clients, limit)
    jobs, more_jobs = prune_jobs(tx, keep, now, limit)
    events, more_events = tx.prune_history(now - keep.events, limit)
    return Pruned(jobs, events, clients, more_clients or more_jobs or more_events)


def prune_clients(tx: Transaction, before: int, limit: int) -> tuple[int, bool]:
    """Delete silent clients. Return how many, and whether there are more."""
    silent = tx.silent_clients(before, limit + 1)
    for client in tx.records(ClientInfo, silent[:limit]).values():
        missed = tx.subscriptions(client.id, MOST_MISSED)
        tx.delete(client)
        record_about(tx, Subject.CLIENT, Kind.TIMED_OUT, owner=client.id, jobs=missed or None)
    return len(silent[:limit]), len(silent) > limit


def prune_jobs(tx: Transaction, keep: Retention, now: int, limit: int) -> tuple[int, bool]:
    """Delete old finished jobs. Return how many, and whether there are more."""
    old = [job for state in sorted(FINAL) for job in tx.prunable_jobs(state, now - keep.of(state), limit + 1)]
    old.sort(key=_by_end)
    tx.remove(old[:limit], "retention")
    return len(old[:limit]), len(old) > limit


def _by_end(job: Job) -> tuple[int, int]:
    return (job.finished_at or 0, job.seq)


def roll_up(tx: FullTransaction) -> None:
    """See `Storage.roll_up`."""
    for level, coarser in FOLDS:
        tx.fold_measures(level, coarser, tx.now - level.keep - level.width)
    tx.fold_measures(CAUSE_DAYS, None, tx.now - CAUSE_DAYS.keep - CAUSE_DAYS.width)
