"""What becomes of a job that was told to end: its time is over, an operator said so, or its whole worker goes.

Executors ask when such a job was cut short, the finisher when it ended by itself, and the timeouts when it had to be
given up. An attempt that returned or raised has an outcome of its own, which stands when only its worker stops.
"""

from __future__ import annotations

import asyncio
import logging

from msgspec.structs import replace

from packhorse.core.clock import SECOND
from packhorse.core.job import Reason
from packhorse.core.outcome import Completed, Failed, Failure, Halted, Outcome, Released, Snoozed, Stopped
from packhorse.worker.attempt import attempts_to_tell, idle_timeout_of, retry_in, timeout_of
from packhorse.worker.held_job import HeldJob
from packhorse.worker.logging import about
from packhorse.worker.portions import LONGEST_REASON

log = logging.getLogger("packhorse.worker")


def of_told(held: HeldJob) -> Outcome | None:
    """The outcome of a job that ended because it was told to; None: nobody has ended it.

    A run that took too long is a failed attempt. A job that is cut short because its worker goes is handed back.
    """
    token, ran = held.job.token, held.ran
    if held.stop_reason is Reason.JOB_TIMEOUT:
        timeout = Failure("Timeout", held.stop_why)
        wait, attempts = retry_in(held.job, held.task, None), attempts_to_tell(held.job, held.task)
        return Failed(token, timeout, wait, Reason.JOB_TIMEOUT, ran=ran, max_attempts=attempts)
    if held.stop_reason is not None:
        return Stopped(token, held.stop_reason, ran=ran)
    if held.is_cut_short:
        return Released(token, "its worker was told to stop", ran=ran)
    return None


def of_ended(held: HeldJob, outcome: Outcome) -> Outcome:
    """The outcome of a job that ended by itself after a check-in had told it to stop.

    If an operator or a time limit wanted that, it did as it was told, which is not the same as having completed. If
    its worker stops, what it returned or raised stands.
    """
    is_cancelled = type(outcome) is Failed and outcome.failure.type == asyncio.CancelledError.__name__
    is_late = type(outcome) is Snoozed and held.stop_reason is Reason.JOB_TIMEOUT  # else it would never fail of it
    did_as_told = is_late or (type(outcome) is Completed and held.stop_reason is not None)
    return of_told(held) or outcome if is_cancelled or did_as_told else outcome


def of_given_up(held: HeldJob, goes_on: int) -> Failed | Stopped:
    """The outcome of a job that was told to end and did not: its function runs until its worker ends, which takes at
    most `goes_on` microseconds; 0: in a program that runs on, until it returns. Its next attempt does not begin before,
    and whoever looks at the job can read of it."""
    outcome = of_told(held)
    assert isinstance(outcome, Failed | Stopped), "only a job that was told to end is given up"
    how_long = f"may go on until its worker is replaced, at most {goes_on / SECOND:g} s later"
    rest = f"did not end when asked: it {how_long if goes_on else 'goes on in its program until it returns'}"
    if isinstance(outcome, Stopped):
        return replace(outcome, failure=Failure("Aborted", f"it {rest}", goes_on=goes_on, worker=held.job.owner))
    message = f"{outcome.failure.message}, and {rest}"
    failure = replace(outcome.failure, message=message, goes_on=goes_on, worker=held.job.owner)
    wait = None if outcome.retry_in is None else max(outcome.retry_in, goes_on)
    return replace(outcome, failure=failure, retry_in=wait)


def of_refused(outcome: Outcome, error: Exception) -> Outcome:
    """What is said instead of an outcome that the storage does not take, because it is too long for a server: the same,
    with less text. A result has no shorter form: its work is done and must not be done again because it cannot be kept,
    so its job has failed for good."""
    match outcome:
        case Completed(token=token, ran=ran, ago=ago):
            why = _cut(str(error))
            return Failed(token, Failure(type(error).__name__, why, final="result"), ran=ran, ago=ago)
        case Failed(failure=failure):
            return replace(outcome, failure=_shortened(failure, error))
        case Stopped(failure=Failure() as failure):
            return replace(outcome, failure=_shortened(failure, error))
        case Halted(why=why) | Released(why=why):
            return replace(outcome, why=_cut(why))
    return outcome


def _shortened(failure: Failure, error: Exception) -> Failure:
    """What and where it was; instead of its traceback, why that is missing."""
    left_out = f"left out, for it was refused: {_cut(str(error))}"
    return replace(failure, message=_cut(failure.message), traceback=failure.traceback and left_out)


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST_REASON else f"{text[:LONGEST_REASON]}…"


def of_unknown(held: HeldJob, error: BaseException) -> Outcome:
    """The outcome of a job whose end could not be made out, because the worker itself failed on it."""
    log.error("job %s: the worker failed on it", held.job.id, exc_info=error, extra=about(held.job))
    return Halted(held.job.token, f"its worker failed on it: {type(error).__name__}", ran=held.ran)


def time_left(held: HeldJob, now: float) -> float | None:
    """Seconds until the nearest limit of a running job; None: it has none."""
    return min((left for left, _ in _limits(held, now)), default=None)


def overrun(held: HeldJob, now: float) -> str | None:
    """Which limit of a running job is over, as a sentence; None: none."""
    return next((why for left, why in _limits(held, now) if left <= 0), None)


def _limits(held: HeldJob, now: float) -> list[tuple[float, str]]:
    """For each limit the seconds that are left, and what to say when none are."""
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
