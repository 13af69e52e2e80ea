"""Jobs in and out: enqueue, get, and the names that become known on the way. Lists are in `lists.py`."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from packhorse.core import transitions
from packhorse.core.errors import ClientNotFound, NotUnique
from packhorse.core.job import HELD, WAITING, Job, NewJob
from packhorse.storage.memory.keeper import Keeper, atomic
from packhorse.storage.records import Enqueued, Placement, QueueInfo, TaskInfo


class InAndOut(Keeper):
    @atomic
    def enqueue(self, jobs: Sequence[NewJob]) -> list[Enqueued]:
        before = self._remembered() if any(new.unique or new.subscriber for new in jobs) else {}
        try:
            for new in jobs:
                self._know(new.task, new.queue)
            return [self._enqueue_one(new) for new in jobs]
        except (NotUnique, ClientNotFound):
            self.__dict__.update(before)
            raise

    def _remembered(self) -> dict[str, Any]:
        """All that a refused batch may have touched."""
        copied = {
            name: copy.copy(value) for name, value in self.__dict__.items() if isinstance(value, dict | list | int)
        }
        copied["_subscribers"] = {job_id: list(clients) for job_id, clients in self._subscribers.items()}
        return copied

    def _enqueue_one(self, new: NewJob) -> Enqueued:
        if new.id in self._jobs:
            return Enqueued(new.id, Placement.KEPT)
        if new.unique is not None:
            if new.unique.on_conflict == "replace" and new.id in self._replaced:
                return Enqueued(self._replaced[new.id][0], Placement.REPLACED)  # it comes again: its answer was lost
            holder = self._holder(new.unique.key)
            if holder is not None and new.unique.on_conflict == "reject":
                raise NotUnique(holder.id, new.unique.key)
            if holder is not None and new.unique.on_conflict == "replace" and holder.state in WAITING:
                self._keep(holder, transitions.replaced(holder, new, self.now()))
                self._replaced[new.id] = (holder.id, self.now())
                self._subscribe(new, holder.id)
                return Enqueued(holder.id, Placement.REPLACED)
            # A holder that runs already cannot be replaced: the new arguments get a job of their own, so that they
            # are not lost.
            if holder is not None and not (new.unique.on_conflict == "replace" and holder.state in HELD):
                self._subscribe(new, holder.id)
                return Enqueued(holder.id, Placement.KEPT)
        self._seq += 1
        self._keep(None, transitions.added(new, self._seq, self.now()))
        if new.unique is not None:
            self._locks[new.unique.key] = (new.id, new.unique, self.now())
        self._subscribe(new, new.id)
        return Enqueued(new.id)

    def _subscribe(self, new: NewJob, job_id: str) -> None:
        """Whoever enqueued wants the outcome, be it of this job or of the twin that stands for it."""
        if new.subscriber is None:
            return
        if new.subscriber not in self._clients:
            raise ClientNotFound(new.subscriber)
        clients = self._subscribers.setdefault(job_id, [])
        if new.subscriber not in clients:
            clients.append(new.subscriber)

    @atomic
    def get(self, job_id: str) -> Job | None:
        return self._jobs.get(job_id)

    @atomic
    def get_many(self, job_ids: Sequence[str]) -> list[Job]:
        return [self._jobs[job_id] for job_id in job_ids if job_id in self._jobs]

    @atomic
    def announce(self, tasks: Sequence[TaskInfo], *, order: str | None = None) -> None:
        self._order = order or self._order
        for task in tasks:
            self._know(task.name, task.queue)
            self._tasks[task.name] = replace(task, announced_at=self.now())

    def _know(self, task: str, queue: str) -> None:
        self._tasks.setdefault(task, TaskInfo(task, queue))
        self._queues.setdefault(queue, QueueInfo(queue))
