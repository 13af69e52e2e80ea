"""Drop the dead: jobs of tasks with `skip_dead` are not kept once they have died.

Whoever let them die: a worker, a foreman whose worker they killed, a chore. What happened to them stays told by their
events, and counted among the failures.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from packhorse.core.clock import HOUR, MINUTE, SECOND
from packhorse.core.job import DEAD, Job
from packhorse.storage import Storage
from packhorse.storage.records import Filter, Seen

BY = "skip_dead"
"""Who deletes them, as their last event says."""
_AT_ONCE = 100
_ALL_EVERY = HOUR
"""How often those that had to stay are looked at again: a subscriber may have gone without a word."""
_OVERLAP = MINUTE
"""For what was written late: so much of what the last walk has seen is looked at again."""
_REST = 1.0
"""Seconds between two batches, if all of the first had to stay."""


class _Walk(NamedTuple):
    """A walk through the dead jobs of a task, the latest first."""

    began: int
    floor: int  # what died before has been looked at; 0: all are to be
    cursor: str | None = None


class SkipDead:
    """Jobs that are persistent, or that a subscriber still waits for, stay. So that these are not read every minute, a
    walk ends where the last one began, but for one in an hour."""

    name = "drop_dead"
    interval = 60.0

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._walks: dict[str, _Walk] = {}  # by task: those under way
        self._last: dict[str, int] = {}  # by task: when the last walk began, and the last through all
        self._last_of_all: dict[str, int] = {}

    def run(self) -> float | None:
        """A batch of each such task; more of them follow soon."""
        told = [task.name for task in self._storage.tasks() if task.options.get("skip_dead")]
        if not told:
            return None
        now = self._storage.now()
        dropped = sum(self._step(task, now) for task in told if task in self._walks or self._is_time(task, now))
        if self._walks.keys().isdisjoint(told):
            return None
        return 0.0 if dropped else _REST

    def _is_time(self, task: str, now: int) -> bool:
        """For another walk through the dead jobs of this task, also while that of another task takes long."""
        return task not in self._last or not 0 <= now - self._last[task] < self.interval * SECOND / 2

    def _step(self, task: str, now: int) -> int:
        """Answers how many were dropped."""
        walk = self._walks.pop(task, None) or self._new_walk(task, now)
        where = Filter(states=frozenset({DEAD}), task=task)
        page = self._storage.find(where, cursor=walk.cursor, limit=_AT_ONCE)
        jobs = [job for job in page.jobs if (job.finished_at or walk.floor) >= walk.floor]
        dropped = self._drop(jobs)
        if page.next is not None and len(jobs) == len(page.jobs):
            self._walks[task] = walk._replace(cursor=page.next)
        else:
            self._last[task] = walk.began
            if not walk.floor:
                self._last_of_all[task] = walk.began
        return dropped

    def _new_walk(self, task: str, now: int) -> _Walk:
        is_for_all = task not in self._last_of_all or not 0 <= now - self._last_of_all[task] < _ALL_EVERY
        return _Walk(now, 0 if is_for_all else max(0, self._last[task] - _OVERLAP))

    def _drop(self, jobs: Sequence[Job]) -> int:
        going = [job for job in jobs if not job.persistent]
        # Most storages have no subscribers most of the time; only if there are, each job is asked for its own.
        if going and any(client.subscriptions for client in self._storage.clients()):
            going = [job for job in going if not self._storage.subscribers(job.id)]
        if going:
            self._storage.delete([job.id for job in going], by=BY, seen=[Seen.of(job) for job in going])
        return len(going)
