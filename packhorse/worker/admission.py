"""Admission: which of the reserved jobs may run in this worker. The fetcher asks, and hands the others back.

A job of a task that this worker does not know waits for another worker. So does a job whose last run was given up and
still continues, in another worker or on a thread of this program. Both are released with a delay; it counts nothing.
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
from packhorse.worker.finisher import finish_in_parts
from packhorse.worker.held_job import HeldJob, unreturned_ids
from packhorse.worker.logging import about
from packhorse.worker.outage import Outage

log = logging.getLogger("packhorse.worker")

UNKNOWN_WAIT = 10 * SECOND
"""Delay of a job whose task this worker does not know."""
READ_EVERY = 1.0
"""Seconds between two reads of the other workers and of the waiting jobs, while jobs of unknown tasks come in."""
LOG_EVERY = 60.0
"""Seconds between two warnings about the same unknown task."""
DOUBLE_WAIT = 3 * SECOND
"""Delay of a job whose last run still continues. It doubles each time,"""
LONGEST_DOUBLE_WAIT = 30 * SECOND
"""up to this."""


class Admission:
    """Of one worker. It keeps the jobs that it refuses until they are handed back."""

    def __init__(self, storage: Storage, owner: str, executors: ExecutorPool, outage: Outage) -> None:
        self._storage = storage
        self._owner = owner
        self._executors = executors
        self._outage = outage
        self._refused: list[Outcome] = []
        self._delays: dict[str, int] = {}  # of jobs whose last run continues, by id
        self._workers: list[WorkerInfo] = []  # all workers,
        self._tallies: list[Tally] = []  # and the waiting jobs,
        self._read_at = float("-inf")  # as of this time
        self._warned_at: dict[str, float] = {}  # by unknown task

    def admit(self, jobs: Sequence[Job]) -> list[HeldJob]:
        """Hold the jobs that may run here now."""
        return [held for job in self._without_running(jobs) if (held := self._hold(job)) is not None]

    def refuse(self, jobs: Iterable[Job], why: str, delay: int = 0) -> None:
        """Hand these jobs back with the next `hand_back`."""
        self._refused += [Released(job.token, why, delay=delay) for job in jobs]

    def hand_back(self) -> None:
        """Release the refused jobs."""
        if not self._refused:
            return
        try:
            self._storage.finish(self._refused)
            self._refused = []
        except BadValue:
            batch = [(released.token.job_id, released) for released in self._refused]
            parts = finish_in_parts(batch, lambda part: self._storage.finish([outcome for _, outcome in part]))
            self._refused = [outcome for _, outcome in parts.left]

    def _hold(self, job: Job) -> HeldJob | None:
        """A held job; None: its task is unknown here, and it waits for another worker."""
        try:
            return self._executors.hold(job)
        except TaskNotFound as error:
            now = time.monotonic()
            is_new = now >= self._warned_at.get(job.task, float("-inf")) + LOG_EVERY
            log.log(
                logging.WARNING if is_new else logging.DEBUG,
                "job %s is handed back, as are others of its task: %s",
                *(job.id, error),
                extra=about(job),
            )
            if is_new:
                self._warned_at[job.task] = now
            self.refuse([job], f"{self._owner} does not know its task", UNKNOWN_WAIT)
            if self._executors.served_queues.is_of_others(job.queue) and self._should_leave(job):
                self._executors.served_queues.leave(job.queue)
            return None

    def _should_leave(self, job: Job) -> bool:
        """Should this worker stop serving the queue of this job, whose task it does not know?

        Yes, if another worker takes such jobs: this one must not delay them. Yes, if no job of a known task waits in
        the queue: this worker would only hand jobs back. No, if one does: it would wait behind them in vain. Yes, while
        the storage is away.
        """
        now = time.monotonic()
        if now >= self._read_at + READ_EVERY:
            self._read_at = now
            try:
                self._workers, self._tallies = self._storage.workers(), self._storage.tallies()
            except StorageUnavailable as error:
                self._workers, self._tallies = [], []
                self._outage.note(error, len(self._executors.outcomes))
        if any(each.id != self._owner and serves(each, job.queue, [job.task]) for each in self._workers):
            return True
        return not self._executors.served_queues.waits_in(job.queue, self._tallies)

    def _without_running(self, jobs: Sequence[Job]) -> Sequence[Job]:
        """The jobs, without those whose last run was given up and still continues. Those wait until the run has
        returned or its worker is gone."""
        places = self._places_of_runs(jobs)
        if not places and not self._delays:
            return jobs
        for job in jobs:
            if job.id in places:
                longer = min(2 * self._delays.get(job.id, 0), LONGEST_DOUBLE_WAIT)
                self._delays[job.id] = max(DOUBLE_WAIT, longer)
                why = f"its last run was given up and still continues in {places[job.id]}"
                self.refuse([job], why, self._delays[job.id])
            else:
                self._delays.pop(job.id, None)
        return [job for job in jobs if job.id not in places]

    def _places_of_runs(self, jobs: Sequence[Job]) -> dict[str, str]:
        """Where the last run of a job still continues. Hardly any job has one, and every job is asked about."""
        here = unreturned_ids()
        places = {job.id: "this program" for job in jobs if job.id in here} if here else {}
        failed = [job for job in jobs if job.error is not None]
        workers = {job.id: worker for job in failed if (worker := Failure.goes_on_in(job.error)) is not None}
        alive = self._alive(set(workers.values())) if workers else set()
        return places | {job_id: f"worker {worker}" for job_id, worker in workers.items() if worker in alive}

    def _alive(self, workers: set[str]) -> set[str]:
        """Those of these workers that are not gone; all of them while the storage is away."""
        try:
            return workers & {each.id for each in self._storage.workers()}
        except StorageUnavailable as error:
            self._outage.note(error, len(self._executors.outcomes))
            return workers
