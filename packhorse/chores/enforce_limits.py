"""Enforce limits: a job whose time is over, and that its worker has not ended, is ended here.

A worker of ours ends its jobs itself. One that is frozen or stuck does not, and a foreign one may not care. A foreman
kills its own worker first, so that nobody runs the job twice; of others it says in the storage that the attempt is
over, and what they say later is stale. It keeps still until the foreman is steady: after an outage workers must have
had the time to tell what their jobs came to.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from contextlib import suppress
from time import monotonic
from typing import Any, NamedTuple

from packhorse.chores.chore import EndWorker, SteadyTime
from packhorse.clock import SECOND
from packhorse.errors import BadValue
from packhorse.job import RUNNING, EffectiveJob, Job, effective, left_to_task
from packhorse.outcome import Overrun, Verdict
from packhorse.presence import is_alive
from packhorse.retry import Backoff
from packhorse.settings import Settings
from packhorse.storage import BATCH, Storage
from packhorse.storage.records import Filter, Outlook, WorkerInfo

GRACE = 5 * SECOND
"""How long a worker has, when its own grace is over, to write down what it has ended."""
FOREMANS_GRACE = 10 * SECOND
"""How much later a job is ended whose worker has a foreman elsewhere, which can do more than we: it kills."""
LOOK_EVERY = 5.0
"""Seconds between two looks while anything runs: it may have begun since, with a shorter limit."""

log = logging.getLogger("packhorse.chores")


class Limit(NamedTuple):
    """When the time of a job is over, and why."""

    at: int
    why: str


class EnforceLimits:
    """Looks at what runs as long as anything does, and just when the next of it will be over."""

    name = "enforce_limits"
    interval = 600.0

    def __init__(self, storage: Storage, settings: Settings, steady_time: SteadyTime, end_worker: EndWorker) -> None:
        self._storage = storage
        self._lease = settings.lease
        self.adjust(settings)
        self._steady_time = steady_time
        self._end_worker = end_worker
        self._looked_at = float("-inf")

    def adjust(self, settings: Settings) -> None:
        """Wait as long as these say before a job is ended."""
        self._grace = settings.abort_grace + GRACE

    def due_in(self, outlook: Outlook) -> int | None:
        return round(max(0.0, self._looked_at + LOOK_EVERY - monotonic()) * SECOND) if outlook.held else None

    def run(self) -> float | None:
        """End what is over."""
        self._looked_at = monotonic()
        now = self._steady_time()
        running = [] if now is None else self._running()
        if now is None or not running:
            return None
        options = self._announced(running)
        shown = [effective(job, options.get(job.task)) for job in running]
        ends = [(job, limit) for job in shown if (limit := limit_of(job)) is not None]
        over = [(job, limit) for job, limit in ends if limit.at + self._grace <= now]
        left = self._end(over, now) if over else []
        coming = [limit.at + self._grace - now for _, limit in ends if limit.at + self._grace > now]
        wait = min([*coming, *left], default=None)
        return None if wait is None else max(wait, SECOND) / SECOND

    def _running(self) -> list[Job]:
        page = self._storage.find(Filter(states=frozenset({RUNNING})), limit=BATCH)
        running = page.jobs
        while page.next is not None:
            page = self._storage.find(Filter(states=frozenset({RUNNING})), cursor=page.next, limit=BATCH)
            running += page.jobs
        return running

    def _announced(self, running: Iterable[Job]) -> dict[str, Mapping[str, Any]]:
        """What workers have announced of the tasks of these jobs; not asked where each job has limits of its own."""
        if not any(left_to_task(job) for job in running):
            return {}
        return {task.name: task.options for task in self._storage.tasks()}

    def _end(self, over: list[tuple[EffectiveJob, Limit]], now: int) -> list[int]:
        """Answers in how long it is worth looking again at those that are left to another foreman."""
        workers = {worker.id: worker for worker in self._storage.workers()}
        left: list[int] = []
        for job, limit in over:
            overrun = Overrun(
                job.token, f"{limit.why}, and its worker did not end it", _retry_in(job), max_attempts=job.max_attempts
            )
            if self._end_worker(overrun):
                continue
            waits = limit.at + self._grace + FOREMANS_GRACE - now
            if waits > 0 and self._has_foreman(workers, job.owner, now):
                left.append(waits)
            elif self._storage.finish([overrun]) == [Verdict.ACCEPTED]:
                log.warning(
                    "job %s (%s) was ended, which its worker %s did not: %s", job.id, job.task, job.owner, limit.why
                )
        return left

    def _has_foreman(self, workers: Mapping[str, WorkerInfo], owner: str | None, now: int) -> bool:
        worker = workers.get(owner or "")
        foreman = workers.get(worker.foreman or "") if worker is not None else None
        return foreman is not None and is_alive(foreman, now, self._lease)


def limit_of(job: EffectiveJob) -> Limit | None:
    """When the time of this running job is over; None: it has none."""
    began_at = job.started_at or job.updated_at
    limits = []
    if (run := job.timeout) is not None:
        limits.append(Limit(began_at + run, f"it ran for longer than {run / SECOND:g} s"))
    if (idle := job.idle_timeout) is not None:
        limits.append(Limit(max(began_at, job.checkin_at or 0) + idle, f"it did not check in for {idle / SECOND:g} s"))
    if job.abort_at is not None:
        limits.append(Limit(job.abort_at, "it was asked to stop"))
    return min(limits, default=None)


def _retry_in(job: Job) -> int | None:
    """Its own wait, or the usual one; only the worker knows its task's."""
    if job.attempts_left <= 1:
        return None
    backoff = Backoff(type="default")
    with suppress(BadValue):  # whatever stands in one job, the others must not go without their limits
        backoff = Backoff.from_json(job.backoff) if job.backoff else backoff
    return backoff.wait(job.attempt)
