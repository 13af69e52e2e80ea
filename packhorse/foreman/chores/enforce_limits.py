"""Ends jobs that are over their time limit and that their worker cannot or does not end.

A worker of ours ends its jobs itself, by the limits of its own code; what other versions announced does not matter.
Only a stuck worker cannot. Its own foreman kills it, so that the job does not run twice; no other foreman ends its
jobs. A foreign worker may ignore limits: any foreman records that its attempt is over, and a later outcome is stale.
Other jobs are not even read. The chore waits for the rescue guard: after an outage, workers need time to write their
outcomes.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from time import monotonic
from typing import Any, NamedTuple

from msgspec.structs import replace

from packhorse.core.clock import SECOND
from packhorse.core.errors import BadValue
from packhorse.core.job import HELD, RUNNING, EffectiveJob, Job, State, effective, left_to_task
from packhorse.core.outcome import Overrun, Verdict
from packhorse.core.retry import Backoff
from packhorse.core.settings import Settings
from packhorse.foreman.chores.call_result_handlers import is_foreign
from packhorse.foreman.chores.chore import EndWorker, StuckJobs, TrustedTime
from packhorse.monitor.liveness import is_alive
from packhorse.storage import BATCH, Storage
from packhorse.storage.records import Filter, PollResult, WorkerInfo

GRACE = 5 * SECOND
"""How long a worker has, after its own grace, to write the outcome."""
FOREMANS_GRACE = 10 * SECOND
"""How much longer to wait if another foreman has the foreign worker: that one can kill it."""
RUN_EVERY = 5.0
"""Seconds between two reads while jobs run: a job with a shorter limit may have started."""

MAX_ASKED = 20
"""Up to so many foreign workers, read the jobs of each; with more, read all running jobs."""

log = logging.getLogger("packhorse.chores")


class Limit(NamedTuple):
    """When a job is over its time limit, and why."""

    at: int
    why: str


class EnforceLimits:
    """Reads the jobs of foreign and stuck workers while there are any, and runs when the next one reaches its limit."""

    name = "enforce_limits"
    interval = 600.0

    def __init__(
        self,
        storage: Storage,
        settings: Settings,
        trusted_time: TrustedTime,
        end_worker: EndWorker,
        stuck_jobs: StuckJobs = dict,
    ) -> None:
        self._storage = storage
        self._lease = settings.lease
        self.adjust(settings)
        self._trusted_time = trusted_time
        self._end_worker = end_worker
        self._stuck_jobs = stuck_jobs
        self._ran_at = float("-inf")

    def adjust(self, settings: Settings) -> None:
        """Use the abort grace of these settings."""
        self._grace = settings.abort_grace + GRACE

    def due_in(self, result: PollResult) -> int | None:
        return round(max(0.0, self._ran_at + RUN_EVERY - monotonic()) * SECOND) if result.held else None

    def run(self) -> float | None:
        """End the jobs that are over their limits."""
        self._ran_at = monotonic()
        now = self._trusted_time()
        if now is None:
            return None
        stuck, workers = self._stuck_jobs(), {worker.id: worker for worker in self._storage.workers()}
        foreign = {worker.id for worker in workers.values() if is_foreign(worker)} - set(stuck)
        running = [*self._in_stuck(stuck, now), *self._in_foreign(foreign)]
        if not running:
            return None
        options = self._announced(running)
        shown = [effective(job, options.get(job.task)) for job in running]
        ends = [(job, limit) for job in shown if (limit := limit_of(job)) is not None]
        over = [(job, limit) for job, limit in ends if limit.at + self._grace <= now]
        left = self._end(over, stuck, workers, now)
        coming = [limit.at + self._grace - now for _, limit in ends if limit.at + self._grace > now]
        wait = min([*coming, *left], default=None)
        return None if wait is None else max(wait, SECOND) / SECOND

    def _in_stuck(self, stuck: Mapping[str, Mapping[str, int]], now: int) -> Iterator[Job]:
        """The jobs in stuck workers of ours. A worker may have got stuck before it could record that its job runs."""
        for owner, runs in stuck.items():
            for job in self._find(HELD, owner):
                if job.id in runs:
                    yield job if job.state is RUNNING else replace(job, started_at=now - runs[job.id])

    def _in_foreign(self, foreign: Collection[str]) -> Iterator[Job]:
        """The jobs that run in these workers."""
        asked: Iterable[str | None] = foreign if len(foreign) <= MAX_ASKED else (None,)
        for owner in asked:
            yield from (job for job in self._find(frozenset({RUNNING}), owner) if job.owner in foreign)

    def _find(self, states: frozenset[State], owner: str | None) -> Iterator[Job]:
        where = Filter(states=states, owner=owner)
        page = self._storage.find(where, limit=BATCH)
        yield from page.jobs
        while page.next is not None:
            page = self._storage.find(where, cursor=page.next, limit=BATCH)
            yield from page.jobs

    def _announced(self, running: Iterable[Job]) -> dict[str, Mapping[str, Any]]:
        """The announced options of the tasks of these jobs; not read if all jobs have limits of their own."""
        if not any(left_to_task(job) for job in running):
            return {}
        return {task.name: task.options for task in self._storage.tasks()}

    def _end(
        self,
        over: list[tuple[EffectiveJob, Limit]],
        stuck: Mapping[str, Mapping[str, int]],
        workers: Mapping[str, WorkerInfo],
        now: int,
    ) -> list[int]:
        """Return the microseconds until the jobs left to other foremen must be read again."""
        left: list[int] = []
        for job, limit in over:
            held, why = stuck.get(job.owner or "", {}), f"{limit.why}, and its worker did not end it"
            ran = 0 if job.state is RUNNING else held.get(job.id, 0)  # for the others, the storage has their start
            overrun = Overrun(job.token, why, _retry_in(job), ran, max_attempts=job.max_attempts)
            if self._end_worker(overrun) or held:
                continue
            waits = limit.at + self._grace + FOREMANS_GRACE - now
            if waits > 0 and self._has_foreman(workers, job.owner, now):
                left.append(waits)
            elif self._storage.finish([overrun]) == [Verdict.ACCEPTED]:
                log.warning(
                    "ended job %s (%s), because its worker %s did not: %s", job.id, job.task, job.owner, limit.why
                )
        return left

    def _has_foreman(self, workers: Mapping[str, WorkerInfo], owner: str | None, now: int) -> bool:
        worker = workers.get(owner or "")
        foreman = workers.get(worker.foreman or "") if worker is not None else None
        return foreman is not None and is_alive(foreman, now, self._lease)


def limit_of(job: EffectiveJob) -> Limit | None:
    """The earliest limit of this running job, or None."""
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
    """The job's own backoff or the default one; only the worker knows the task's."""
    if job.attempts_left <= 1:
        return None
    backoff = Backoff(type="default")
    with suppress(BadValue):  # an invalid job must not keep others from their limits
        backoff = Backoff.from_json(job.backoff) if job.backoff else backoff
    return backoff.wait(job.attempt)
