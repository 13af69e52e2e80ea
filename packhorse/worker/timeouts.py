"""Time limits and aborts: stops jobs that run too long or that an operator wants to stop.

It asks first, and after the grace period makes sure. The loop calls it in its own thread. It needs no storage, so time
limits hold during an outage. The outcome of a stopped job is decided in `outcomes.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from queue import Empty, SimpleQueue

from packhorse.core.clock import SECOND
from packhorse.core.job import Reason
from packhorse.core.outcome import Stopped
from packhorse.worker.attempt import idle_timeout_of, timeout_of
from packhorse.worker.config import WorkerLimits
from packhorse.worker.executors.pool import ExecutorPool
from packhorse.worker.held_job import HeldJob, note_unreturned
from packhorse.worker.outcomes import of_given_up


class Timeouts:
    """The timeouts of one worker's jobs. If nothing stops a job, the worker gives it up and must be replaced: only the
    end of the process ends a thread."""

    def __init__(self, executors: ExecutorPool, limits: WorkerLimits, *, in_program: bool = False) -> None:
        self._executors = executors
        self._grace = limits.abort_grace
        self._in_program = in_program
        self._runs_on = 0 if in_program else round(limits.last_seconds * SECOND)
        self._given_up: list[HeldJob] = []
        self._requests: SimpleQueue[tuple[str, int, Reason]] = SimpleQueue()

    def stop_job(self, job_id: str, fence: int, reason: Reason) -> None:
        """An operator wants this job to stop. From any thread."""
        self._requests.put((job_id, fence, reason))

    @property
    def given_up(self) -> list[HeldJob]:
        """The jobs that were given up and still run."""
        self._given_up = [held for held in self._given_up if not held.has_returned]
        return self._given_up

    def enforce(self, held_jobs: Mapping[str, HeldJob], now: float) -> float | None:
        """Stop the jobs whose time is over. Return the seconds until the nearest limit."""
        self._take_requests(held_jobs)
        left = [self._check(held, now) for held in list(held_jobs.values())]
        return min((seconds for seconds in left if seconds is not None), default=None)

    def _take_requests(self, held_jobs: Mapping[str, HeldJob]) -> None:
        while True:
            try:
                job_id, fence, reason = self._requests.get_nowait()
            except Empty:
                return
            held = held_jobs.get(job_id)
            if held is not None and held.job.fence == fence:
                self.stop(held, reason, _why_stopped(held, reason))

    def stop(self, held: HeldJob, reason: Reason, why: str) -> None:
        """Ask this job to stop. If it has not begun, it never will."""
        # The foreman repeats the request every second; a second signal would disturb the job's cleanup.
        if held.stop_reason is not None:
            return
        held.stop(reason, why)
        if not self._executors.hand_back(held, why):
            self._executors.executor_of(held).stop(held, hard=False)

    def _check(self, held: HeldJob, now: float) -> float | None:
        """Enforce the limits of one job. Return the seconds until the nearest."""
        if held.began_at is None or held.is_settled:
            return None
        if held.stopped_at is None:
            limits = limits_of(held, now)
            for left, why in limits:
                if left <= 0:
                    self.stop(held, Reason.JOB_TIMEOUT, why)
                    return self._grace
            return min((left for left, _ in limits), default=None)
        left = held.stopped_at + self._grace - now
        if left > 0:
            return left
        self._stop_hard(held)
        return None

    def _stop_hard(self, held: HeldJob) -> None:
        """The job was asked and did not stop. A child process is killed; a thread can only be left behind, with its
        whole process. The outcome is written first, so that the end of the process does not count as a halt."""
        if self._executors.executor_of(held).stop(held, hard=True):
            return
        outcome = of_given_up(held, self._runs_on)
        if isinstance(outcome, Stopped) and outcome.failure is not None:
            held.log(outcome.failure.message, "error")  # the log of a failed attempt has its failure anyway
        self._given_up.append(held)
        if self._in_program:
            note_unreturned(held)
        self._executors.outcomes.put(held, outcome)
        self._executors.report_stuck(
            f"job {held.job.id} ({held.task.name}) did not end within {self._grace:g} s of being asked to"
        )


def limits_of(held: HeldJob, now: float) -> list[tuple[float, str]]:
    """For each time limit of a running job: the seconds that are left, and why it is stopped when they are over."""
    began_at = held.began_at
    if began_at is None:
        return []
    limits = []
    run, idle = timeout_of(held.job, held.task), idle_timeout_of(held.job, held.task)
    if run is not None:
        limits.append((began_at + run / SECOND - now, f"it ran for longer than {run / SECOND:g} s"))
    if idle is not None:
        since = held.checked_in_at or began_at
        limits.append((since + idle / SECOND - now, f"it did not check in for {idle / SECOND:g} s"))
    return limits


def _why_stopped(held: HeldJob, reason: Reason) -> str:
    total = held.job.total_timeout
    if reason is Reason.JOB_TIMEOUT and total is not None:
        return f"it was not done within {total / SECOND:g} s"
    return "it was aborted"
