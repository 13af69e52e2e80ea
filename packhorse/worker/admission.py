"""The admission: which of the jobs that were reserved may have a held job here. The loop asks, and hands the others
back.

A job of a task that this worker does not know waits for another; so does one whose last run would not end and still
goes on, in a worker that is there yet or on a thread of this very program. Both stay away for a while, uncounted.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Sequence

from packhorse.core.clock import SECOND
from packhorse.core.errors import BadValue, StorageUnavailable, TaskNotFound
from packhorse.core.job import Job
from packhorse.core.outcome import Failure, Outcome, Released
from packhorse.monitor.served_queues import serves
from packhorse.storage.contract import Storage
from packhorse.storage.records import Tally, WorkerInfo
from packhorse.worker.executors.pool import ExecutorPool
from packhorse.worker.held_job import HeldJob
from packhorse.worker.logging import about
from packhorse.worker.outage import Outage
from packhorse.worker.refusals import finish_in_portions
from packhorse.worker.unreturned import unreturned

log = logging.getLogger("packhorse.worker")

UNKNOWN_WAIT = 10 * SECOND
"""How long a job whose task this worker does not know stays away from it."""
LOOK_AROUND = 1.0
"""Seconds between two looks at who else runs jobs, and at what waits, while one job after another is of an unknown
task."""
TELL_AGAIN = 60.0
"""Seconds for which the log says nothing more of a task that is not known."""
DOUBLE_WAIT = 3 * SECOND
"""How long a job whose last run still goes on stays away, before it is looked at again; each time twice as long,"""
LONGEST_DOUBLE_WAIT = 30 * SECOND
"""but no longer than this."""


class Admission:
    """Of one worker. Keeps those that it has refused until they are given back."""

    def __init__(self, storage: Storage, owner: str, executors: ExecutorPool, outage: Outage) -> None:
        self._storage = storage
        self._owner = owner
        self._executors = executors
        self._outage = outage
        self._refused: list[Outcome] = []
        self._doubles: dict[str, int] = {}  # how long each of them was to stay away
        self._workers: list[WorkerInfo] = []  # all there are,
        self._tallies: list[Tally] = []  # and what waits,
        self._looked_at = float("-inf")  # as of then
        self._told_at: dict[str, float] = {}  # by task: when the log said that it is not known

    def admit(self, jobs: Sequence[Job]) -> list[HeldJob]:
        """Seats for these jobs, but for those that cannot run here now."""
        return [held for job in self._without_doubles(jobs) if (held := self._hold(job)) is not None]

    def refuse(self, jobs: Iterable[Job], why: str, delay: int = 0) -> None:
        """These cannot run here."""
        self._refused += [Released(job.token, why, delay=delay) for job in jobs]

    def give_back(self) -> None:
        """Hand back what was refused."""
        if not self._refused:
            return
        try:
            self._storage.finish(self._refused)
            self._refused = []
        except BadValue:
            batch = [(released.token.job_id, released) for released in self._refused]
            written = finish_in_portions(batch, lambda portion: self._storage.finish([each for _, each in portion]))
            self._refused = [outcome for _, outcome in written.left]

    def _hold(self, job: Job) -> HeldJob | None:
        """A held job for the job; one whose task came into a queue of ours without our knowing it waits for others."""
        try:
            return self._executors.hold(job)
        except TaskNotFound as error:
            now = time.monotonic()
            is_news = now >= self._told_at.get(job.task, float("-inf")) + TELL_AGAIN
            log.log(
                logging.WARNING if is_news else logging.DEBUG,
                "job %s is handed back, as are others of its task: %s",
                *(job.id, error),
                extra=about(job),
            )
            if is_news:
                self._told_at[job.task] = now
            self.refuse([job], f"{self._owner} does not know its task", UNKNOWN_WAIT)
            if self._executors.served_queues.is_of_others(job.queue) and self._is_to_be_left(job):
                self._executors.served_queues.met_unknown(job.queue)
            return None

    def _is_to_be_left(self, job: Job) -> bool:
        """Is the queue to be left alone for a while, in which this job of an unknown task was met?

        Yes, if another worker takes such jobs: it is not to be delayed. Yes, if no job that is known here waits in it:
        all others would be handed back again and again. No, if one does: it would wait behind them in vain. While
        nobody can tell, yes.
        """
        now = time.monotonic()
        if now >= self._looked_at + LOOK_AROUND:
            self._looked_at = now
            try:
                self._workers, self._tallies = self._storage.workers(), self._storage.tallies()
            except StorageUnavailable as error:
                self._workers, self._tallies = [], []
                self._outage.noticed(error, len(self._executors.finisher))
        if any(each.id != self._owner and serves(each, job.queue, [job.task]) for each in self._workers):
            return True
        return not self._executors.served_queues.waits_in(job.queue, self._tallies)

    def _without_doubles(self, jobs: Sequence[Job]) -> Sequence[Job]:
        """These jobs but for those whose last run would not end and still goes on: they wait until it has returned, or
        its worker is gone."""
        going_on = self._going_on(jobs)
        if not going_on and not self._doubles:
            return jobs
        for job in jobs:
            if job.id in going_on:
                longer = min(2 * self._doubles.get(job.id, 0), LONGEST_DOUBLE_WAIT)
                self._doubles[job.id] = max(DOUBLE_WAIT, longer)
                why = f"its last run would not end, and still goes on in {going_on[job.id]}"
                self.refuse([job], why, self._doubles[job.id])
            else:
                self._doubles.pop(job.id, None)
        return [job for job in jobs if job.id not in going_on]

    def _going_on(self, jobs: Sequence[Job]) -> dict[str, str]:
        """Where the last run of a job goes on, for those of which it does: hardly any, and all jobs come by here."""
        here = unreturned()
        found = {job.id: "this program" for job in jobs if job.id in here} if here else {}
        failed = [job for job in jobs if job.error is not None]
        workers = {job.id: worker for job in failed if (worker := Failure.goes_on_in(job.error)) is not None}
        there = self._still_there(set(workers.values())) if workers else set()
        return found | {job_id: f"worker {worker}" for job_id, worker in workers.items() if worker in there}

    def _still_there(self, workers: set[str]) -> set[str]:
        """Those of these workers that have not gone; all of them, while nobody can tell."""
        try:
            return workers & {each.id for each in self._storage.workers()}
        except StorageUnavailable as error:
            self._outage.noticed(error, len(self._executors.finisher))
            return workers
