"""The warden: ends jobs whose time is over, or that somebody wants to end. It asks first, and then makes sure.

The desk has it look around every now and then, in its own thread; it touches no storage, so it works while that is
away. What a job that was told to end comes to is decided in `ending.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from queue import Empty, SimpleQueue

from packhorse.core.clock import SECOND
from packhorse.core.job import Reason
from packhorse.core.outcome import Stopped
from packhorse.worker import unreturned
from packhorse.worker.assignment import Limits
from packhorse.worker.ending import of_given_up, overrun, time_left
from packhorse.worker.floor import Floor
from packhorse.worker.seat import Seat


class Warden:
    """Looks after the seats of one worker. A job that can be ended in no other way is given up, and its worker
    condemned: nothing else ends a thread."""

    def __init__(self, floor: Floor, limits: Limits, *, in_program: bool = False) -> None:
        self._floor = floor
        self._grace = limits.abort_grace
        self._in_program = in_program
        self._goes_on = 0 if in_program else round(limits.last_seconds * SECOND)
        self._given_up: list[Seat] = []
        self._stops: SimpleQueue[tuple[str, int, Reason]] = SimpleQueue()

    def stop_job(self, job_id: str, fence: int, reason: Reason) -> None:
        """An operator wants this job to end. From any thread."""
        self._stops.put((job_id, fence, reason))

    @property
    def run_on(self) -> list[Seat]:
        """The jobs that were given up and still run."""
        self._given_up = [seat for seat in self._given_up if not seat.has_returned]
        return self._given_up

    def look_around(self, seats: Mapping[str, Seat], now: float) -> float | None:
        """Ask those to end that should, and end those that were asked. Answers the seconds until the nearest limit."""
        self._note_stops(seats)
        lefts = [self._check_time(seat, now) for seat in list(seats.values())]
        return min((left for left in lefts if left is not None), default=None)

    def _note_stops(self, seats: Mapping[str, Seat]) -> None:
        while True:
            try:
                job_id, fence, reason = self._stops.get_nowait()
            except Empty:
                return
            seat = seats.get(job_id)
            if seat is not None and seat.job.fence == fence:
                self.end(seat, reason, _why_stopped(seat, reason))

    def end(self, seat: Seat, reason: Reason, why: str) -> None:
        """Make this job end: ask it; if it has not begun, it never will."""
        # The foreman says it every second until the job has ended; asking twice would disturb its cleaning up.
        if seat.stop_reason is not None:
            return
        seat.stop(reason, why)
        if not self._floor.hand_back(seat, why):
            self._floor.executor_of(seat).stop(seat, hard=False)

    def _check_time(self, seat: Seat, now: float) -> float | None:
        """See to the limits of one job; answers the seconds until the nearest."""
        if seat.began_at is None or seat.is_settled:
            return None
        if seat.stopped_at is None:
            why = overrun(seat, now)
            if why is None:
                return time_left(seat, now)
            self.end(seat, Reason.JOB_TIMEOUT, why)
            return self._grace
        left = seat.stopped_at + self._grace - now
        if left > 0:
            return left
        self._end_by_force(seat)
        return None

    def _end_by_force(self, seat: Seat) -> None:
        """It was asked and did not end. A child is killed; a thread can only be left behind, with its whole process.
        What becomes of the job is written down first, so that the end of the process cannot be taken for its halt."""
        if self._floor.executor_of(seat).stop(seat, hard=True):
            return
        outcome = of_given_up(seat, self._goes_on)
        if isinstance(outcome, Stopped) and outcome.failure is not None:
            seat.log(outcome.failure.message, "error")  # that of a failed attempt is in its log anyway
        self._given_up.append(seat)
        if self._in_program:
            unreturned.note(seat)
        self._floor.finisher.put(seat, outcome)
        self._floor.condemn(
            f"job {seat.job.id} ({seat.task.name}) did not end within {self._grace:g} s of being asked to"
        )


def _why_stopped(seat: Seat, reason: Reason) -> str:
    total = seat.job.total_timeout
    if reason is Reason.JOB_TIMEOUT and total is not None:
        return f"it was not done within {total / SECOND:g} s"
    return "it was aborted"
