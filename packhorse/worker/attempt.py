"""One attempt from start to outcome: the file to read first.

The executors call `run` with a reserved job. It decodes the arguments, opens the context, calls the task through its
middleware, and turns whatever happens into an `Outcome`. It never raises, whatever the code of a task, its result or
its error does, and touches no storage.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

from msgspec.structs import replace

from packhorse.core.clock import SECOND
from packhorse.core.codec import encode_result
from packhorse.core.context import CURRENT, JobContext, WorkerLink, tidy
from packhorse.core.errors import WaitRefused
from packhorse.core.job import OF_TASK, Job, Reason
from packhorse.core.outcome import Abort, Completed, Failed, Failure, Outcome, Retry, Snooze, Snoozed, Stopped
from packhorse.core.retry import Backoff, RetryPolicy, parse_backoff
from packhorse.core.task import RegisteredTask
from packhorse.worker.middleware import Chain

_PACKAGE = str(Path(__file__).parent.parent) + os.sep


def max_attempts_of(job: Job, task: RegisteredTask) -> int:
    """How often this job may be tried: its own option, or else its task's."""
    return job.max_attempts if job.max_attempts != OF_TASK else task.options.max_attempts


def attempts_to_store(job: Job, task: RegisteredTask) -> int | None:
    """The same for the storage, which decides about the next attempt. None: the job has its own option."""
    return task.options.max_attempts if job.max_attempts == OF_TASK else None


def timeout_of(job: Job, task: RegisteredTask) -> int | None:
    """How long one run of this job may take: its own limit, or else its task's."""
    return (job.timeout if job.timeout is not None else task.options.timeout) or None


def idle_timeout_of(job: Job, task: RegisteredTask) -> int | None:
    """How long this job may run without a check-in."""
    return (job.idle_timeout if job.idle_timeout is not None else task.options.idle_timeout) or None


def run(job: Job, task: RegisteredTask, chain: Chain, link: WorkerLink, result_limit: int) -> Outcome:
    """Run a plain task in this thread."""
    began_at = time.perf_counter()
    try:
        try:
            args = task.signature.decode(job.args)
        except Exception as error:  # noqa: BLE001 - besides BadArguments, what the code of an argument's type may raise
            return _bad_arguments(job, error)
        context = JobContext(job, args, link, timeout_of(job, task), max_attempts_of(job, task))
        mark = CURRENT.set(context)
        try:
            value = chain(context)
        except BaseException as error:  # noqa: BLE001 - SystemExit and the like fail the task, not the worker
            return failed_with(job, task, error, _since(began_at))
        finally:
            CURRENT.reset(mark)
        return _returned(job, task, value, _since(began_at), result_limit)
    except BaseException as error:  # noqa: BLE001 - raised outside the task, by the code of a value or by a signal
        return _cut_short(job, task, error, _since(began_at))


async def arun(job: Job, task: RegisteredTask, chain: Chain, link: WorkerLink, result_limit: int) -> Outcome:
    """Run an async task. Only a cancellation goes up to the executor, which knows its reason, and the GeneratorExit of
    a coroutine that is closed."""
    began_at, awaiting = time.perf_counter(), asyncio.current_task()
    try:
        try:
            args = task.signature.decode(job.args)
        except Exception as error:  # noqa: BLE001 - as above
            return _bad_arguments(job, error)
        context = JobContext(job, args, link, timeout_of(job, task), max_attempts_of(job, task))
        CURRENT.set(context)  # a task of the event loop has context variables of its own
        try:
            value = await chain(context)
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # a KeyboardInterrupt that got through would end the event loop
            if _is_closed(error, awaiting):
                raise
            return failed_with(job, task, error, _since(began_at))
        return _returned(job, task, value, _since(began_at), result_limit)
    except asyncio.CancelledError:
        raise
    except BaseException as error:  # as above
        if _is_closed(error, awaiting):
            raise
        return _cut_short(job, task, error, _since(began_at))


def _is_closed(error: BaseException, awaiting: asyncio.Task[Any] | None) -> bool:
    """Was the coroutine closed, rather than that the task raised? The garbage collector closes what is left of an event
    loop that has ended, at any time and in any thread: no user code may run then, and nothing that parses."""
    if not isinstance(error, GeneratorExit):
        return False
    try:
        return asyncio.current_task() is not awaiting
    except RuntimeError:  # no loop runs in this thread
        return True


def _bad_arguments(job: Job, error: Exception) -> Outcome:
    """The arguments do not fit the task: no other attempt would help."""
    return Failed(job.token, replace(_failure_of(error, traceback=False), final="arguments"), retry_in=None)


def _returned(job: Job, task: RegisteredTask, value: Any, ran: int, limit: int) -> Outcome:
    if value is None:
        return Completed(job.token, "null", ran)
    try:
        if isinstance(value, Retry):  # `isinstance` runs code of the value: a lazy proxy may raise here
            return failed_with(job, task, value, ran)
        if isinstance(value, Snooze):
            return Snoozed(job.token, value.delay, ran)
        if isinstance(value, Abort):
            return Stopped(job.token, Reason.ABORTED, Failure("Abort", tidy(value.why) or ""), ran)
        return Completed(job.token, encode_result(value, limit), ran)
    except Exception as error:  # noqa: BLE001 - BadResult, PayloadTooLarge, or the value's own code
        # The work is done and must not be done again because its result cannot be stored.
        failure = replace(_failure_of(error, traceback=False), final="result")
        return Failed(job.token, failure, retry_in=None, ran=ran)


def failed_with(job: Job, task: RegisteredTask, error: BaseException, ran: int = 0) -> Outcome:
    """The outcome of a task that raised. Never raises."""
    try:
        failure, wait = _failure_of(error), retry_in(job, task, error)
        if wait is None:
            failure = replace(failure, final=_final_option(job, task, error))
        return Failed(job.token, failure, wait, ran=ran, max_attempts=_extra_attempts(job, task, error))
    except BaseException as worse:  # noqa: BLE001 - code of the error, or the user's backoff
        return _cut_short(job, task, worse, ran)


def _failure_of(error: BaseException, *, traceback: bool = True) -> Failure:
    try:
        failure = Failure.of(BaseException.with_traceback(error, _own_frames(error.__traceback__)))
    except Exception:  # noqa: BLE001 - the error's own code
        return _bare(error, "(it cannot be shown: its own code failed)")
    return failure if traceback else replace(failure, traceback=None, place=None, function=None)


def _cut_short(job: Job, task: RegisteredTask, error: BaseException, ran: int) -> Outcome:
    """This was raised outside the task, before it began or while its outcome was made. Run no code of the error: it
    might raise again."""
    failure, attempts = _bare(error, "it was raised outside the task"), attempts_to_store(job, task)
    return Failed(job.token, failure, _plain_retry(job, task), ran=ran, max_attempts=attempts)


def _bare(error: BaseException, message: str) -> Failure:
    """A failure with the type of the error, without running any of its code."""
    return Failure(type.__dict__["__name__"].__get__(type(error)), message)


def retry_in(job: Job, task: RegisteredTask, error: BaseException | None) -> int | None:
    """Microseconds until the next attempt; None: there is none."""
    try:
        if isinstance(error, WaitRefused):
            return None  # each attempt would be refused
        if isinstance(error, Retry):
            if error.after is not None and job.attempt < max_attempts_of(job, task):
                return error.after
            error = None
        return _policy(job, task).decide(job.attempt, error, random.Random())
    except Exception:  # noqa: BLE001 - the user's backoff function may fail; the job is retried all the same
        return _plain_retry(job, task)


def _extra_attempts(job: Job, task: RegisteredTask, error: BaseException) -> int | None:
    """How many attempts the task allows for this error, if more than the job itself has; else as
    `attempts_to_store`."""
    own = max_attempts_of(job, task)
    if isinstance(error, Retry) or job.attempt < own:
        return attempts_to_store(job, task)
    allowed = _policy(job, task).attempts_for(error)
    return allowed if allowed > own else attempts_to_store(job, task)


def _final_option(job: Job, task: RegisteredTask, error: BaseException) -> str | None:
    try:
        if isinstance(error, WaitRefused):
            return "waits"
        return None if isinstance(error, Retry) else _policy(job, task).final_option(job.attempt, error)
    except Exception:  # noqa: BLE001 - as above; it is only shown to people
        return None


def _plain_retry(job: Job, task: RegisteredTask) -> int | None:
    return parse_backoff(None).wait(job.attempt) if job.attempt < max_attempts_of(job, task) else None


def _policy(job: Job, task: RegisteredTask) -> RetryPolicy:
    options = task.options
    return RetryPolicy(
        max_attempts=max_attempts_of(job, task),
        backoff=Backoff.from_json(job.backoff) if job.backoff else options.backoff,
        retry_on=options.retry_on,
        give_up_on=options.give_up_on,
        per_error=options.per_error,
    )


def _own_frames(trace: TracebackType | None) -> TracebackType | None:
    """The traceback without Packhorse's own frames."""
    own: TracebackType | None = None
    for frame in reversed(list(_frames(trace))):
        if not frame.tb_frame.f_code.co_filename.startswith(_PACKAGE):
            own = TracebackType(own, frame.tb_frame, frame.tb_lasti, frame.tb_lineno)
    return own or trace


def _frames(trace: TracebackType | None) -> Iterator[TracebackType]:
    while trace is not None:
        yield trace
        trace = trace.tb_next


def _since(began_at: float) -> int:
    return round((time.perf_counter() - began_at) * SECOND)
