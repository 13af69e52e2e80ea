"""Enqueue: store new jobs, and decide what becomes of those whose unique key another job holds."""

from __future__ import annotations

from collections.abc import Sequence

from packhorse.core import transitions
from packhorse.core.errors import NotUnique
from packhorse.core.job import HELD, WAITING, NewJob, UniqueLock
from packhorse.storage.records import Enqueued, Placement
from packhorse.storage.transaction import Transaction


def enqueue(tx: Transaction, jobs: Sequence[NewJob]) -> list[Enqueued]:
    """See `Storage.enqueue`."""
    tx.know({new.queue for new in jobs}, {new.task: new.queue for new in reversed(jobs)})
    batch = _Batch(tx, jobs)
    placed = [batch.place(new) for new in jobs]
    batch.finish()
    return placed


class _Batch:
    """The jobs of one call, placed one after the other. New ones are gathered and inserted together."""

    def __init__(self, tx: Transaction, jobs: Sequence[NewJob]) -> None:
        keys = {new.unique.key for new in jobs if new.unique is not None}
        self._tx = tx
        if keys:
            tx.lock_keys(keys)
        self._stored = tx.stored([new.id for new in jobs])
        replacing = [new.id for new in jobs if _replaces(new)]
        self._replaced_by = tx.replaced_by(replacing) if replacing else {}
        self._holders = tx.holders(keys) if keys else {}
        self._new: list[NewJob] = []  # to be inserted
        self._new_holders: dict[str, tuple[str, UniqueLock]] = {}  # the unique keys that these take
        self._subscriptions: list[tuple[str, str]] = []

    def place(self, new: NewJob) -> Enqueued:
        if new.id in self._stored:
            return Enqueued(new.id, Placement.KEPT)
        if new.id in self._replaced_by and _replaces(new):  # the call is repeated: its answer was lost
            return Enqueued(self._replaced_by[new.id], Placement.REPLACED)
        placed = None if new.unique is None else self._meet_holder(new, new.unique)
        if placed is None:
            placed = self._add(new)
        if new.subscriber is not None:
            self._subscriptions.append((placed.job_id, new.subscriber))
        return placed

    def finish(self) -> None:
        if self._new:
            self._tx.insert(self._new)
        for job_id, client_id in self._subscriptions:
            self._tx.subscribe(job_id, client_id)

    def _add(self, new: NewJob) -> Enqueued:
        self._stored.add(new.id)
        self._new.append(new)
        if new.unique is not None:
            self._new_holders[new.unique.key] = (new.id, new.unique)
        return Enqueued(new.id)

    def _meet_holder(self, new: NewJob, unique: UniqueLock) -> Enqueued | None:
        """Decide between a new job and the holder of its key. None: the key is free, or the job is added anyway."""
        if unique.key in self._new_holders:
            holder_id, lock = self._new_holders[unique.key]
            if unique.on_conflict == "keep" and lock.period != 0:
                return Enqueued(holder_id, Placement.KEPT)
            self._insert_gathered()
        holder = self._holders.get(unique.key)
        if holder is None:
            return None
        if unique.on_conflict == "reject":
            raise NotUnique(holder.id, unique.key)
        if unique.on_conflict == "replace":
            if holder.state in WAITING:
                self._holders[unique.key] = self._tx.keep(holder, transitions.replaced(holder, new, self._tx.now))
                self._tx.remember_replaced(new.id, holder.id)
                self._replaced_by[new.id] = holder.id
                return Enqueued(holder.id, Placement.REPLACED)
            if holder.state in HELD:
                return None  # it has read its arguments; the new ones must not be lost
        return Enqueued(holder.id, Placement.KEPT)

    def _insert_gathered(self) -> None:
        keys = set(self._new_holders)
        self._tx.insert(self._new)
        self._new, self._new_holders = [], {}
        holders = self._tx.holders(keys)
        self._holders = {key: job for key, job in self._holders.items() if key not in keys} | holders


def _replaces(new: NewJob) -> bool:
    return new.unique is not None and new.unique.on_conflict == "replace"
