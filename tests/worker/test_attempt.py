"""One attempt: whatever a task does becomes an outcome, and nothing is ever raised."""

from __future__ import annotations

import asyncio
import sys
import weakref
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pytest

from packhorse.core.clock import MINUTE, SECOND
from packhorse.core.context import CURRENT, current_job
from packhorse.core.errors import BadValue, PackhorseError
from packhorse.core.job import Job, Reason
from packhorse.core.outcome import Abort, Completed, Failed, Outcome, Retry, Snooze, Snoozed, Stopped
from packhorse.worker import attempt
from tests.worker.factories import RESULT_LIMIT, RecordingLink, a_job, chain_of, task_of

Function = Callable[..., Any]


def attempted(
    function: Function, job: Job | None = None, *middleware: Function, limit: int = RESULT_LIMIT, **options: Any
) -> Outcome:
    """What comes of one attempt at a plain task."""
    task = task_of(function, "send", **options)
    return attempt.run(job or a_job(), task, chain_of(task, middleware), RecordingLink(), limit)


def awaited(function: Function, job: Job | None = None, *middleware: Function, **options: Any) -> Outcome:
    """The same for an async task."""
    task = task_of(function, "send", **options)
    chain = chain_of(task, middleware)
    return asyncio.run(attempt.arun(job or a_job(), task, chain, RecordingLink(), RESULT_LIMIT))


def as_coroutine(function: Function) -> Callable[[], Coroutine[Any, Any, Any]]:
    async def run() -> Any:
        return function()

    return run


@pytest.fixture(params=["plain", "async"])
def ending(request: pytest.FixtureRequest) -> Callable[..., Outcome]:
    """Attempts a function without arguments, once as a plain task and once as a coroutine."""
    if request.param == "plain":
        return attempted

    def ending(function: Function, job: Job | None = None, **options: Any) -> Outcome:
        return awaited(as_coroutine(function), job, **options)

    return ending


def raising(error: BaseException) -> Function:
    def task() -> None:
        raise error

    return task


def failed(outcome: Outcome) -> Failed:
    assert isinstance(outcome, Failed), outcome
    return outcome


# --- what a task returns --------------------------------------------------------------------------------------------


def test_a_returned_value_is_the_result(ending: Callable[..., Outcome]):
    outcome = ending(lambda: {"sent": [1, 2]})

    assert outcome == Completed(a_job().token, '{"sent":[1,2]}', outcome.ran)


def test_nothing_returned_is_null(ending: Callable[..., Outcome]):
    outcome = ending(lambda: None)

    assert isinstance(outcome, Completed)
    assert outcome.result == "null"


def test_arguments_come_in_by_their_types():
    def send(to: set[int], text: str = "hi") -> list[Any]:
        return [sorted(to), text]

    outcome = attempted(send, a_job(args='{"to":[2,1]}'))

    assert isinstance(outcome, Completed)
    assert outcome.result == '[[1,2],"hi"]'


def test_how_long_it_ran_is_told(ending: Callable[..., Outcome]):
    outcome = ending(lambda: sum(range(100_000)))

    assert 0 < outcome.ran < MINUTE


def test_a_snooze_waits_as_long_as_it_says(ending: Callable[..., Outcome]):
    outcome = ending(lambda: Snooze("10m"))

    assert outcome == Snoozed(a_job().token, 10 * MINUTE, outcome.ran)


def test_current_job_snoozes_too():
    outcome = attempted(lambda: current_job().snooze(5))

    assert isinstance(outcome, Snoozed)
    assert outcome.delay == 5 * SECOND


def test_an_abort_ends_the_job_with_its_reason(ending: Callable[..., Outcome]):
    outcome = ending(lambda: Abort("the order was cancelled"))

    assert isinstance(outcome, Stopped)
    assert outcome.reason is Reason.ABORTED
    assert outcome.failure is not None
    assert outcome.failure.summary() == "Abort: the order was cancelled"


# --- results that cannot be kept ------------------------------------------------------------------------------------


def test_a_result_that_is_not_json_kills_the_job_without_a_retry(ending: Callable[..., Outcome]):
    outcome = failed(ending(lambda: object()))

    assert outcome.retry_in is None
    assert outcome.failure.type == "BadResult"
    assert "the result: <object object> cannot become JSON" in outcome.failure.message
    assert "return its id" in outcome.failure.message


async def _is_only_called() -> None: ...


def _yields_only() -> Iterator[int]:
    yield 1


async def _yields_later() -> AsyncIterator[int]:
    yield 1


@pytest.mark.parametrize(
    ("call", "what"),
    [(_is_only_called, "a coroutine"), (_yields_only, "a generator"), (_yields_later, "a generator")],
)
def test_what_has_not_run_is_not_said_to_have_run(ending: Callable[..., Outcome], call: Callable[[], Any], what: str):
    outcome = failed(ending(lambda: call()))

    assert outcome.retry_in is None
    assert outcome.failure.type == "BadResult"
    assert f"returned {what} instead of doing its work: the code in it has not run" in outcome.failure.message
    assert "run to its end" not in outcome.failure.message


def test_a_result_that_is_too_large_kills_the_job_without_a_retry():
    outcome = failed(attempted(lambda: "x" * 2_000, limit=1_024))

    assert outcome.retry_in is None
    assert outcome.failure.type == "PayloadTooLarge"
    assert "2,002 bytes" in outcome.failure.message


def test_a_result_whose_own_code_raises_kills_the_job_without_a_retry(ending: Callable[..., Outcome]):
    class Angry(list[int]):
        def __iter__(self) -> Any:
            raise RuntimeError("no")

        def __len__(self) -> int:
            raise RuntimeError("no")

        def __repr__(self) -> str:
            raise RuntimeError("no")

    outcome = failed(ending(lambda: {Angry: Angry()}))

    assert outcome.retry_in is None


class Lazy:
    """As the proxies of web frameworks are: outside of a request nothing can be asked of it, not even its class."""

    def __init__(self, error: BaseException) -> None:
        object.__setattr__(self, "_error", error)

    @property
    def __class__(self) -> Any:  # type: ignore[override]
        raise object.__getattribute__(self, "_error")


def test_a_result_that_does_not_even_tell_its_class_kills_the_job_without_a_retry(ending: Callable[..., Outcome]):
    outcome = failed(ending(lambda: Lazy(RuntimeError("outside of a request"))))

    assert outcome.retry_in is None
    assert outcome.failure.summary() == "RuntimeError: outside of a request"


def test_a_result_that_leaves_is_a_failure_of_the_task(ending: Callable[..., Outcome]):
    assert failed(ending(lambda: Lazy(SystemExit(3)))).failure.type == "SystemExit"


def test_the_reason_of_an_abort_is_text_that_every_storage_takes(ending: Callable[..., Outcome]):
    outcome = ending(lambda: Abort("nul \0 and surrogate \udc80"))

    assert isinstance(outcome, Stopped)
    assert outcome.failure is not None
    assert outcome.failure.message == "nul \\0 and surrogate \\udc80"


# --- another attempt ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["returned", "raised"])
def test_a_retry_waits_as_long_as_it_says(ending: Callable[..., Outcome], way: str):
    answer = Retry("the shop is closed", after="5m")
    outcome = failed(ending(raising(answer) if way == "raised" else lambda: answer))

    assert outcome.retry_in == 5 * MINUTE
    assert outcome.failure.summary() == "Retry: the shop is closed"


@pytest.mark.parametrize("way", ["returned", "raised"])
def test_a_retry_that_says_nothing_waits_as_the_backoff_says(ending: Callable[..., Outcome], way: str):
    answer = Retry()
    outcome = failed(ending(raising(answer) if way == "raised" else lambda: answer, backoff="7s"))

    assert outcome.retry_in == 7 * SECOND


def test_a_retry_at_once_is_at_once(ending: Callable[..., Outcome]):
    assert failed(ending(lambda: Retry(after=0))).retry_in == 0


def test_a_retry_is_of_no_use_on_the_last_attempt(ending: Callable[..., Outcome]):
    last = a_job(failures=3, max_attempts=4)

    assert failed(ending(lambda: Retry(after=1), last)).retry_in is None
    assert failed(ending(raising(Retry()), last)).retry_in is None


def test_a_retry_is_not_an_error_that_was_given_up(ending: Callable[..., Outcome]):
    outcome = failed(ending(raising(Retry()), give_up_on=Exception, backoff=3))

    assert outcome.retry_in == 3 * SECOND


# --- errors ---------------------------------------------------------------------------------------------------------


def test_an_error_is_a_failed_attempt(ending: Callable[..., Outcome]):
    outcome = failed(ending(raising(ValueError("no such address")), backoff="10s"))

    assert outcome.reason is Reason.FAILED
    assert outcome.retry_in == 10 * SECOND
    assert outcome.failure.summary() == "ValueError: no such address"


def test_the_last_attempt_is_the_last(ending: Callable[..., Outcome]):
    outcome = ending(raising(ValueError()), a_job(failures=1, max_attempts=2))

    assert failed(outcome).retry_in is None


def test_a_jobs_own_backoff_goes_before_its_tasks(ending: Callable[..., Outcome]):
    job = a_job(backoff='{"type":"fixed","delay_ms":2000}')

    assert failed(ending(raising(ValueError()), job, backoff="10s")).retry_in == 2 * SECOND


def test_a_stored_backoff_that_cannot_be_read_costs_no_retry(ending: Callable[..., Outcome]):
    outcome = failed(ending(raising(ValueError()), a_job(backoff="{")))

    assert outcome.retry_in is not None


def test_some_errors_are_given_up_at_once(ending: Callable[..., Outcome]):
    outcome = failed(ending(raising(KeyError("k")), give_up_on=LookupError))

    assert outcome.retry_in is None
    assert outcome.failure.final == "give_up_on"


def test_what_made_a_failure_the_last_one_is_told_only_if_tries_were_left(ending: Callable[..., Outcome]):
    def final(job: Job, error: BaseException | None = None, **options: Any) -> str | None:
        return failed(ending(raising(error or KeyError("k")), job, **options)).failure.final

    first, last = a_job(max_attempts=4), a_job(max_attempts=4, failures=3)

    assert final(first, retry_on=OSError) == "retry_on"
    assert final(first, per_error={KeyError: {"retries": 0}}) == "per_error"
    assert final(first) is None
    assert final(last, give_up_on=KeyError) is None
    assert final(last, Retry()) is None


def test_only_named_errors_are_retried_when_some_are_named(ending: Callable[..., Outcome]):
    options = {"retry_on": ConnectionError, "backoff": 1}

    assert failed(ending(raising(ConnectionResetError()), **options)).retry_in == SECOND
    assert failed(ending(raising(ValueError()), **options)).retry_in is None


def test_a_backoff_function_that_raises_costs_no_retry(ending: Callable[..., Outcome]):
    def never(failures: int) -> float:
        raise ZeroDivisionError

    first, last = a_job(), a_job(failures=3)

    assert failed(ending(raising(ValueError()), first, backoff=never)).retry_in is not None
    assert failed(ending(raising(ValueError()), last, backoff=never)).retry_in is None


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt("now"), GeneratorExit()], ids=repr)
def test_what_would_end_a_program_is_a_failure_of_the_task(error: BaseException):
    outcome = failed(attempted(raising(error)))

    assert outcome.failure.type == type(error).__name__


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt("now")], ids=repr)
def test_what_would_end_the_loop_is_a_failure_of_the_task(error: BaseException):
    outcome = failed(awaited(as_coroutine(raising(error))))

    assert outcome.failure.type == type(error).__name__


def test_an_error_that_is_no_exception_of_pythons_is_a_failure_too(ending: Callable[..., Outcome]):
    class Cancelled(BaseException): ...

    assert failed(ending(raising(Cancelled()))).failure.type.endswith("Cancelled")


def test_an_error_that_cannot_be_shown_is_a_failure_all_the_same(ending: Callable[..., Outcome]):
    class Broken(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no")

    outcome = failed(ending(raising(Broken()), backoff=1))

    assert outcome.failure.type.endswith("Broken")
    assert outcome.retry_in == SECOND


class Unshowable(Exception):
    def with_traceback(self, trace: Any) -> Any:
        raise RuntimeError("no")


class Classless(Exception):
    @property
    def __class__(self) -> Any:  # type: ignore[override]
        raise RuntimeError("no")


class Traceless(Exception):
    @property
    def __traceback__(self) -> Any:  # type: ignore[override]
        raise RuntimeError("no")


class Leaving(Exception):
    def __str__(self) -> str:
        raise SystemExit(3)


class Speechless(Retry):
    def __init__(self) -> None:
        pass  # and so it has no `after`


@pytest.mark.parametrize("kind", [Unshowable, Classless, Traceless, Leaving, Speechless])
def test_whatever_the_code_of_an_error_does_the_attempt_has_failed_and_is_made_again(
    ending: Callable[..., Outcome], kind: type[Exception]
):
    ended = []
    for job in (a_job(), a_job(failures=1, max_attempts=2)):
        with suppress(BaseException):  # pytest cannot show such an error either
            ended.append(failed(ending(raising(kind()), job, backoff=1)))

    assert [outcome.retry_in is None for outcome in ended] == [False, True]
    assert all(outcome.failure.type for outcome in ended)


def test_an_error_that_cannot_be_shown_at_all_is_known_by_its_name():
    assert attempt.failed_with(a_job(), task_of(lambda: None, "send"), Traceless()).failure.type == "Traceless"  # type: ignore[union-attr]


def test_a_backoff_function_that_leaves_costs_neither_the_worker_nor_the_retry(ending: Callable[..., Outcome]):
    def leave(failures: int) -> float:
        raise SystemExit

    assert failed(ending(raising(ValueError()), backoff=leave)).retry_in is not None


def test_what_closes_a_generator_is_a_failure_of_a_coroutine_too():
    assert failed(awaited(as_coroutine(raising(GeneratorExit())))).failure.type == "GeneratorExit"


async def closing(coroutine: Coroutine[Any, Any, Any]) -> None:
    coroutine.close()


@pytest.mark.parametrize("loop_runs", [False, True])
def test_a_coroutine_that_nobody_awaits_any_more_is_closed_and_nothing_else_is_called(loop_runs: bool):
    asked: list[object] = []

    async def wait() -> None:
        await asyncio.Event().wait()

    def backoff(*about: object) -> int:
        asked.append(about)
        return 1

    task = task_of(wait, "send", backoff=backoff)
    coroutine = attempt.arun(a_job(), task, chain_of(task), RecordingLink(), RESULT_LIMIT)
    loop = asyncio.new_event_loop()
    left = loop.create_task(coroutine)
    left._log_destroy_pending = False  # type: ignore[attr-defined]  # that it is left behind is what is wanted here
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()

    if loop_runs:
        asyncio.run(closing(coroutine))
    else:
        coroutine.close()

    assert coroutine.cr_frame is None  # it is closed
    assert asked == []


def test_a_cancellation_goes_up_to_the_executor():
    async def stopped() -> None:
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        awaited(stopped)


# --- bad arguments --------------------------------------------------------------------------------------------------


def send_notice(user_id: int, email: str = "") -> str:
    return f"{user_id} {email}"


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ('{"user_id":"seven"}', "'user_id'"),
        ("{}", "needs the argument 'user_id'"),
        ('{"user_id":7,"mail":"a"}', "has no argument 'mail'"),
        ("{", "cannot be read"),
    ],
)
def test_arguments_that_do_not_fit_kill_the_job_without_a_call(args: str, said: str):
    outcome = failed(attempted(send_notice, a_job(args=args)))

    assert outcome.retry_in is None
    assert outcome.failure.type == "BadArguments"
    assert said in outcome.failure.message
    assert outcome.failure.traceback is None


def test_arguments_that_do_not_fit_a_coroutine_kill_its_job_too():
    async def send(to: int) -> None: ...

    assert failed(awaited(send, a_job(args='{"to":"x"}'))).retry_in is None


@dataclass
class Angry:
    n: int

    def __post_init__(self) -> None:
        raise LookupError("not today")


def take_angry(it: Angry) -> None: ...


def test_a_type_of_an_argument_that_raises_kills_the_job_without_a_call():
    outcome = failed(attempted(take_angry, a_job(args='{"it":{"n":1}}')))

    assert outcome.retry_in is None
    assert outcome.failure.summary() == "LookupError: not today"


@dataclass
class LeavingArgument:
    n: int

    def __post_init__(self) -> None:
        raise SystemExit(3)


def take_leaving(it: LeavingArgument) -> None: ...


async def take_leaving_async(it: LeavingArgument) -> None: ...


def test_a_type_of_an_argument_that_leaves_is_a_failure_too():
    job = a_job(args='{"it":{"n":1}}')

    assert failed(attempted(take_leaving, job)).failure.type == "SystemExit"
    assert failed(awaited(take_leaving_async, job)).failure.type == "SystemExit"


# --- the context ----------------------------------------------------------------------------------------------------


def test_the_job_is_known_while_it_runs_and_not_after(ending: Callable[..., Outcome]):
    outcome = ending(lambda: [current_job().id, current_job().attempt])

    assert isinstance(outcome, Completed)
    assert outcome.result == '["job-1",1]'
    assert CURRENT.get() is None
    with pytest.raises(PackhorseError, match="no job runs here"):
        current_job()


@pytest.mark.parametrize("error", [ValueError(), SystemExit()], ids=repr)
def test_the_job_is_forgotten_after_an_error_too(error: BaseException):
    attempted(raising(error))

    assert CURRENT.get() is None


def test_each_attempt_has_a_fresh_place_for_middleware():
    seen = []

    def counting(job: Any, call: Function) -> Any:
        seen.append(hasattr(job.local, "count"))
        job.local.count = 1
        return call()

    attempted(lambda: None, None, counting)
    attempted(lambda: None, None, counting)

    assert seen == [False, False]


def test_the_context_knows_how_much_time_is_left():
    outcome = attempted(lambda: current_job().seconds_left, timeout=60)

    assert isinstance(outcome, Completed)
    assert 59 < float(outcome.result or 0) <= 60


def test_a_jobs_own_time_limit_goes_before_its_tasks():
    task = task_of(lambda: None, "send", timeout=60, idle_timeout=30)

    assert attempt.timeout_of(a_job(), task) == 60 * SECOND
    assert attempt.timeout_of(a_job(timeout=5 * SECOND), task) == 5 * SECOND
    assert attempt.idle_timeout_of(a_job(), task) == 30 * SECOND
    assert attempt.idle_timeout_of(a_job(idle_timeout=SECOND), task) == SECOND


# --- tracebacks -----------------------------------------------------------------------------------------------------


def deep() -> None:
    raise ValueError("deep down")


def test_a_traceback_begins_in_the_task(ending: Callable[..., Outcome]):
    failure = failed(ending(deep)).failure

    assert failure.traceback is not None
    assert "packhorse/worker" not in failure.traceback
    assert "packhorse/middleware" not in failure.traceback
    assert failure.traceback.rstrip().endswith("ValueError: deep down")
    assert failure.place == f"{__file__}:{deep.__code__.co_firstlineno + 1}"


def test_our_frames_between_middleware_and_task_are_left_out():
    def outer(job: Any, call: Function) -> Any:
        return call()

    failure = failed(attempted(deep, None, outer)).failure

    assert failure.traceback is not None
    assert "in outer" in failure.traceback
    assert "in deep" in failure.traceback
    assert "packhorse/worker/middleware.py" not in failure.traceback


def test_an_error_that_we_raise_is_shown_where_the_task_made_it():
    def task() -> None:
        current_job().progress(200)

    failure = failed(attempted(task)).failure

    assert failure.type == BadValue.__name__
    assert failure.place == f"{__file__}:{task.__code__.co_firstlineno + 1}"


def test_an_error_that_is_ours_alone_keeps_its_frames():
    def lazy(job: Any, call: Function) -> Any:
        return None

    failure = failed(attempted(lambda: None, None, lazy)).failure

    assert "did not call the job" in failure.message
    assert failure.traceback is not None
    assert "packhorse/worker/middleware.py" in failure.traceback


def test_a_module_that_is_called_like_ours_is_not_ours(tmp_path: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(attempt, "_PACKAGE", f"{tmp_path}/packhorse/")
    place = f"{tmp_path}/packhorse_app.py"
    scope: dict[str, Any] = {}
    exec(compile("def task():\n    raise ValueError\n", place, "exec"), scope)

    assert failed(attempted(scope["task"])).failure.place == f"{place}:2"


def test_no_attempt_keeps_a_frame_alive():
    class Heavy: ...

    freed = []

    def task() -> None:
        heavy = Heavy()
        weakref.finalize(heavy, freed.append, True)
        raise ValueError

    attempted(task)

    assert sys.exc_info() == (None, None, None)
    assert freed == [True]


def test_an_error_may_have_tries_and_a_backoff_of_its_own(ending: Callable[..., Outcome]):
    rules = {ConnectionError: {"retries": 9, "backoff": "1m"}}
    job = a_job(max_attempts=1)

    assert failed(ending(raising(ConnectionError("gone")), job, per_error=rules)).retry_in == MINUTE
    assert failed(ending(raising(ValueError("no")), job, per_error=rules)).retry_in is None
