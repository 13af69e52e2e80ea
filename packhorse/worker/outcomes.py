"""The outcome of a job that was asked to stop: it ran too long, an operator aborted it, or its worker stops.

An attempt that returns or raises has an outcome of its own, which stands unless the job was asked to stop. Executors
use this when they interrupt a job, the finisher when a job returns by itself, the timeouts when they give one up.
"""

from __future__ import annotations

import asyncio
import logging

from msgspec.structs import replace

from packhorse.core.clock import SECOND
from packhorse.core.job import Reason
from packhorse.core.outcome import Completed, Failed, Failure, Halted, Outcome, Released, Snoozed, Stopped
from packhorse.worker.attempt import attempts_to_store, retry_in
from packhorse.worker.held_job import HeldJob
from packhorse.worker.logging import about

log = logging.getLogger("packhorse.worker")

MAX_REASON = 500
"""Characters of text that the short form of a refused outcome keeps."""


def of_stopped(held: HeldJob) -> Outcome | None:
    """The outcome of a job that ended because it was asked to stop; None: it was not asked.

    A run that took too long is a failed attempt. A job that is interrupted because its worker stops is released.
    """
    token, ran = held.job.token, held.ran
    if held.stop_reason is Reason.JOB_TIMEOUT:
        timeout = Failure("Timeout", held.stop_why)
        wait, attempts = retry_in(held.job, held.task, None), attempts_to_store(held.job, held.task)
        return Failed(token, timeout, wait, Reason.JOB_TIMEOUT, ran=ran, max_attempts=attempts)
    if held.stop_reason is not None:
        return Stopped(token, held.stop_reason, ran=ran)
    if held.is_interrupted:
        return Released(token, "its worker was told to stop", ran=ran)
    return None


def of_returned(held: HeldJob, outcome: Outcome) -> Outcome:
    """The outcome of a job that returned or raised after a check-in had told it to stop.

    If it stopped for an operator or a time limit, it has not completed. If its worker stops, its own outcome stands.
    """
    is_cancelled = type(outcome) is Failed and outcome.failure.type == asyncio.CancelledError.__name__
    is_overdue = type(outcome) is Snoozed and held.stop_reason is Reason.JOB_TIMEOUT  # else it would never fail
    has_obeyed = is_overdue or (type(outcome) is Completed and held.stop_reason is not None)
    return of_stopped(held) or outcome if is_cancelled or has_obeyed else outcome


def of_given_up(held: HeldJob, runs_on: int) -> Failed | Stopped:
    """The outcome of a job that was asked to stop and did not.

    Its function runs until its worker ends, which takes at most `runs_on` microseconds; 0: until it returns, in a
    program that continues. The next attempt does not begin before, and the failure says so.
    """
    outcome = of_stopped(held)
    assert isinstance(outcome, Failed | Stopped), "only a job that was asked to stop is given up"
    until = f"may run until its worker is replaced, at most {runs_on / SECOND:g} s later"
    rest = f"did not end when asked: it {until if runs_on else 'runs in its program until it returns'}"
    if isinstance(outcome, Stopped):
        return replace(outcome, failure=Failure("Aborted", f"it {rest}", goes_on=runs_on, worker=held.job.owner))
    message = f"{outcome.failure.message}, and {rest}"
    failure = replace(outcome.failure, message=message, goes_on=runs_on, worker=held.job.owner)
    wait = None if outcome.retry_in is None else max(outcome.retry_in, runs_on)
    return replace(outcome, failure=failure, retry_in=wait)


def of_worker_error(held: HeldJob, error: BaseException) -> Outcome:
    """The outcome of a job on which the worker itself failed."""
    log.error("job %s: the worker failed on it", held.job.id, exc_info=error, extra=about(held.job))
    return Halted(held.job.token, f"its worker failed on it: {type(error).__name__}", ran=held.ran)


def shortened(outcome: Outcome, error: Exception) -> Outcome:
    """The same outcome with less text, for a storage that refuses it as too large.

    A result has no short form. Its work is done and must not be done again, so the job fails for good.
    """
    match outcome:
        case Completed(token=token, ran=ran, ago=ago):
            return Failed(token, Failure(type(error).__name__, _cut(str(error)), final="result"), ran=ran, ago=ago)
        case Failed(failure=failure):
            return replace(outcome, failure=_short_failure(failure, error))
        case Stopped(failure=Failure() as failure):
            return replace(outcome, failure=_short_failure(failure, error))
        case Halted(why=why) | Released(why=why):
            return replace(outcome, why=_cut(why))
    return outcome


def _short_failure(failure: Failure, error: Exception) -> Failure:
    """Keep what failed and where; in place of the traceback say why it is missing."""
    left_out = f"left out, because the storage refused it: {_cut(str(error))}"
    return replace(failure, message=_cut(failure.message), traceback=failure.traceback and left_out)


def _cut(text: str) -> str:
    return text if len(text) <= MAX_REASON else f"{text[:MAX_REASON]}…"
