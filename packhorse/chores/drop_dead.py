"""Drop the dead: jobs of tasks with `skip_dead` are not kept once they have died.

Whoever let them die: a worker, a foreman whose worker they killed, a chore. What happened to them stays told by their
events, and counted among the failures.
"""

from __future__ import annotations

from packhorse.job import DEAD, Job
from packhorse.storage import Storage
from packhorse.storage.records import Filter, Seen

BY = "skip_dead"
"""Who deletes them, as their last event says."""
_AT_ONCE = 100


class DropDead:
    """Jobs that are persistent, or that a subscriber still waits for, stay."""

    name = "drop_dead"
    interval = 60.0

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._cursors: dict[str, str] = {}  # by task: where the next batch begins, past those that stay

    def run(self) -> float | None:
        """A batch of each such task; more of them follow at once."""
        told = [task.name for task in self._storage.tasks() if task.options.get("skip_dead")]
        has_more = [self._drop(task) for task in told]
        return 0.0 if any(has_more) else None

    def _drop(self, task: str) -> bool:
        """True: there may be more."""
        where = Filter(states=frozenset({DEAD}), task=task)
        page = self._storage.find(where, cursor=self._cursors.pop(task, None), limit=_AT_ONCE)
        jobs = [job for job in page.jobs if self._may_go(job)]
        if jobs:
            self._storage.delete([job.id for job in jobs], by=BY, seen=[Seen.of(job) for job in jobs])
        if page.next is None:
            return False
        self._cursors[task] = page.next
        return True

    def _may_go(self, job: Job) -> bool:
        return not job.persistent and not self._storage.subscribers(job.id)
