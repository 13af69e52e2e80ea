"""The timeouts: ends jobs whose time is over, or that somebody wants to end. It asks first, and then makes sure.

The loop has it look around every now and then, in its own thread; it touches no storage, so it works while that is
away. What a job that was told to end comes to is decided in `ending.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from queue import Empty, SimpleQueue

from packhorse.core.clock import SECOND
from packhorse.core.job import Reason
from packhorse.core.outcome import Stopped
from packhorse.worker import unreturned
from packhorse.worker.config import WorkerLimits
from packhorse.worker.executors.pool import ExecutorPool
from packhorse.worker.held_job import HeldJob
from packhorse.worker.outcomes import of_given_up, overrun, time_left


class Timeouts:
    """Looks after the held jobs of one worker. A job that can be ended in no other way is given up, and its worker
    condemned: nothing else ends a thread."""

    def __init__(self, executors: ExecutorPool, limits: WorkerLimits, *, in_program: bool = False) -> None:
        self._executors = executors
        self._grace = limits.abort_grace
        self._in_program = in_program
        self._goes_on = 0 if in_program else round(limits.last_seconds * SECOND)
        self._given_up: list[HeldJob] = []
        self._stops: SimpleQueue[tuple[str, int, Reason]] = SimpleQueue()

    def stop_job(self, job_id: str, fence: int, reason: Reason) -> None:
        """An operator wants this job to end. From any thread."""
        self._stops.put((job_id, fence, reason))

    @property
    def run_on(self) -> list[HeldJob]:
        """The jobs that were given up and still run."""
        self._given_up = [held for held in self._given_up if not held.has_returned]
        return self._given_up

    def look_around(self, held_jobs: Mapping[str, HeldJob], now: float) -> float | None:
        """Ask those to end that should, and end those that were asked. Answers the seconds until the nearest limit."""
        self._note_stops(held_jobs)
        lefts = [self._check_time(held, now) for held in list(held_jobs.values())]
        return min((left for left in lefts if left is not None), default=None)

    def _note_stops(self, held_jobs: Mapping[str, HeldJob]) -> None:
        while True:
            try:
                job_id, fence, reason = self._stops.get_nowait()
            except Empty:
                return
            held = held_jobs.get(job_id)
            if held is not None and held.job.fence == fence:
                self.end(held, reason, _why_stopped(held, reason))

    def end(self, held: HeldJob, reason: Reason, why: str) -> None:
        """Make this job end: ask it; if it has not begun, it never will."""
        # The foreman says it every second until the job has ended; asking twice would disturb its cleaning up.
        if held.stop_reason is not None:
            return
        held.stop(reason, why)
        if not self._executors.hand_back(held, why):
            self._executors.executor_of(held).stop(held, hard=False)

    def _check_time(self, held: HeldJob, now: float) -> float | None:
        """See to the limits of one job; answers the seconds until the nearest."""
        if held.began_at is None or held.is_settled:
            return None
        if held.stopped_at is None:
            why = overrun(held, now)
            if why is None:
                return time_left(held, now)
            self.end(held, Reason.JOB_TIMEOUT, why)
            return self._grace
        left = held.stopped_at + self._grace - now
        if left > 0:
            return left
        self._end_by_force(held)
        return None

    def _end_by_force(self, held: HeldJob) -> None:
        """It was asked and did not end. A child is killed; a thread can only be left behind, with its whole process.
        What becomes of the job is written down first, so that the end of the process cannot be taken for its halt."""
        if self._executors.executor_of(held).stop(held, hard=True):
            return
        outcome = of_given_up(held, self._goes_on)
        if isinstance(outcome, Stopped) and outcome.failure is not None:
            held.log(outcome.failure.message, "error")  # that of a failed attempt is in its log anyway
        self._given_up.append(held)
        if self._in_program:
            unreturned.note(held)
        self._executors.finisher.put(held, outcome)
        self._executors.condemn(
            f"job {held.job.id} ({held.task.name}) did not end within {self._grace:g} s of being asked to"
        )


def _why_stopped(held: HeldJob, reason: Reason) -> str:
    total = held.job.total_timeout
    if reason is Reason.JOB_TIMEOUT and total is not None:
        return f"it was not done within {total / SECOND:g} s"
    return "it was aborted"
