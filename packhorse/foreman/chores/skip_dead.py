"""Deletes dead jobs of tasks with `skip_dead`.

It does not matter what let them die: a worker, a foreman or a chore. Their events and the failure counts stay.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from packhorse.core.clock import HOUR, MINUTE, SECOND
from packhorse.core.job import DEAD, Job
from packhorse.storage import Storage
from packhorse.storage.records import Filter, JobVersion

BY = "skip_dead"
"""The author of the deletion in their last event."""
_BATCH = 100
_ALL_EVERY = HOUR
"""How often jobs that had to stay are checked again: a subscriber may have left."""
_OVERLAP = MINUTE
"""How much of the last pass is read again, for late writes."""
_REST = 1.0
"""Seconds between two batches, if all jobs of the first had to stay."""


class _Pass(NamedTuple):
    """A pass through the dead jobs of a task, the latest first."""

    began: int
    floor: int  # jobs that died earlier were checked by an earlier pass; 0: check all
    cursor: str | None = None


class SkipDead:
    """Persistent jobs, and jobs with subscribers, stay. To avoid reading these every minute, a pass ends where the last
    one began, except once an hour."""

    name = "drop_dead"
    interval = 60.0

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._passes: dict[str, _Pass] = {}  # by task: the passes under way
        self._last: dict[str, int] = {}  # by task: the start of the last pass, and of the last pass through all
        self._last_full: dict[str, int] = {}

    def run(self) -> float | None:
        """Check one batch of each such task; more follow soon."""
        tasks = [task.name for task in self._storage.tasks() if task.options.get("skip_dead")]
        if not tasks:
            return None
        now = self._storage.now()
        deleted = sum(self._step(task, now) for task in tasks if task in self._passes or self._is_time(task, now))
        if self._passes.keys().isdisjoint(tasks):
            return None
        return 0.0 if deleted else _REST

    def _is_time(self, task: str, now: int) -> bool:
        """Is another pass through the dead jobs of this task due, also while one of another task takes long?"""
        return task not in self._last or not 0 <= now - self._last[task] < self.interval * SECOND / 2

    def _step(self, task: str, now: int) -> int:
        """Return the number of deleted jobs."""
        pass_ = self._passes.pop(task, None) or self._new_pass(task, now)
        where = Filter(states=frozenset({DEAD}), task=task)
        page = self._storage.find(where, cursor=pass_.cursor, limit=_BATCH)
        jobs = [job for job in page.jobs if (job.finished_at or pass_.floor) >= pass_.floor]
        deleted = self._delete(jobs)
        if page.next is not None and len(jobs) == len(page.jobs):
            self._passes[task] = pass_._replace(cursor=page.next)
        else:
            self._last[task] = pass_.began
            if not pass_.floor:
                self._last_full[task] = pass_.began
        return deleted

    def _new_pass(self, task: str, now: int) -> _Pass:
        is_full = task not in self._last_full or not 0 <= now - self._last_full[task] < _ALL_EVERY
        return _Pass(now, 0 if is_full else max(0, self._last[task] - _OVERLAP))

    def _delete(self, jobs: Sequence[Job]) -> int:
        going = [job for job in jobs if not job.persistent]
        # Usually there are no subscribers at all; read those of each job only if there are any.
        if going and any(client.subscriptions for client in self._storage.clients()):
            going = [job for job in going if not self._storage.subscribers(job.id)]
        if going:
            self._storage.delete([job.id for job in going], by=BY, seen=[JobVersion.of(job) for job in going])
        return len(going)
