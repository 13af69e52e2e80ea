"""What users' tests are given: jobs that run inline, a clock that turns, assertions."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import packhorse.testing
from packhorse import (
    Abort,
    BadArguments,
    BadValue,
    JobFailed,
    Packhorse,
    PackhorseError,
    Retry,
    Snooze,
    State,
    TaskNotFound,
    WaitTimeout,
    Worker,
    WrongState,
    current_job,
)
from packhorse.testing import JobTester, testing
from tests.children import ROOT

STARTED = datetime(2030, 1, 1, tzinfo=UTC)


@pytest.fixture
def app() -> Packhorse:
    return Packhorse("memory://")


@pytest.fixture
def t(app: Packhorse):
    with testing(app, now=STARTED) as rehearsal:
        yield rehearsal


# --- the block --------------------------------------------------------------------------------------------------------


def test_the_storage_of_the_app_is_another_one_for_the_length_of_the_block(tmp_path: Path):
    app = Packhorse(f"sqlite:///{tmp_path / 'jobs.db'}")
    task = app.task(name="nothing")(lambda: None)

    with testing(app):
        task.enqueue()
        assert app.count() == 1

    assert not (tmp_path / "jobs.db").exists()
    assert app.count() == 0
    app.close()


def test_a_storage_that_was_open_before_is_open_after(app: Packhorse):
    before = app.storage

    with testing(app):
        assert app.storage is not before

    assert app.storage is before


def test_clients_that_were_made_in_the_block_are_closed_with_it(app: Packhorse):
    with testing(app):
        client = app.client("billing")

    assert client not in app._state.closables
    assert list(client.outcomes()) == []


def test_the_clock_shows_the_time_of_the_machine_unless_another_is_given(app: Packhorse):
    with testing(app) as t:
        assert abs(t.now - datetime.now(UTC)) < timedelta(minutes=1)
    with testing(app, now=STARTED) as t:
        assert t.now == STARTED


# --- drain ------------------------------------------------------------------------------------------------------------


def test_jobs_run_inline_in_the_order_in_which_a_worker_takes_them(app: Packhorse, t: JobTester):
    ran = []

    @app.task
    def note(name: str) -> str:
        ran.append(name)
        return name.upper()

    first = note.enqueue("first")
    note.enqueue("second")
    note.using(priority=9).enqueue("urgent")
    note.enqueue_in("10m", "later")
    jobs = t.drain()

    assert ran == ["urgent", "first", "second"]
    assert [job.result for job in jobs] == ["URGENT", "FIRST", "SECOND"]
    assert [event.kind for event in first.events()] == ["added", "reserved", "started", "completed"]


def test_what_a_task_enqueues_runs_too(app: Packhorse, t: JobTester):
    @app.task
    def count_down(n: int) -> None:
        if n:
            count_down.enqueue(n - 1)

    count_down.enqueue(3)
    jobs = t.drain()

    assert [job.args["n"] for job in jobs] == [3, 2, 1, 0]


def test_one_queue_alone_may_be_drained(app: Packhorse, t: JobTester):
    mail, other = app.task(queue="mail", name="mail")(lambda: None), app.task(name="other")(lambda: None)
    mail.enqueue()
    other.enqueue()

    jobs = t.drain("mail")

    assert [job.task for job in jobs] == ["mail"]
    with pytest.raises(BadValue, match="did you mean 'mail'"):
        t.drain("mial")


def test_drain_serves_queues_that_no_task_names(app: Packhorse, t: JobTester):
    task = app.task(name="send")(lambda: 7)
    job = task.using(queue="bulk").enqueue()
    moved = task.enqueue()
    moved.set_queue("slow")

    assert [each.id for each in t.drain("slow")] == [moved.id]
    assert [each.id for each in t.drain()] == [job.id]


def test_a_limit_is_the_most_attempts(app: Packhorse, t: JobTester):
    task = app.task(name="nothing")(lambda: None)
    app.enqueue_many([task.call() for _ in range(5)])

    assert len(t.drain(limit=2)) == 2
    assert app.count(state="queued") == 3


def test_a_task_without_end_is_noticed(app: Packhorse, t: JobTester, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(packhorse.testing, "MOST_RUNS", 20)

    @app.task
    def again() -> None:
        again.enqueue()

    again.enqueue()

    with pytest.raises(PackhorseError, match="still come in after 20 attempts, now of again"):
        t.drain()
    assert app.count(state="held") == 0


def test_a_paused_queue_waits(app: Packhorse, t: JobTester):
    task = app.task(name="nothing")(lambda: None)
    task.enqueue()
    app.pause("nothing")

    assert t.drain(with_retries=True) == []
    app.resume("nothing")
    assert len(t.drain()) == 1


def test_a_job_whose_task_is_known_elsewhere_waits(app: Packhorse, t: JobTester):
    app.task(queue="mail", name="ours")(lambda: None)
    job = app.enqueue("theirs", {}, queue="mail", known=False)

    assert t.drain(with_retries=True) == []
    assert job.state == "scheduled"


# --- retries ----------------------------------------------------------------------------------------------------------


def failing(app: Packhorse, times: int, **options: Any) -> Any:
    def fail() -> str:
        if current_job().attempt <= times:
            raise OSError(f"attempt {current_job().attempt}")
        return "at last"

    return app.task(**options)(fail)


def test_a_retry_waits_for_its_time(app: Packhorse, t: JobTester):
    job = failing(app, 1, backoff="10m").enqueue()

    t.drain()
    assert job.refresh().state == "retrying"
    assert job.error is not None
    assert job.error.summary() == "OSError: attempt 1"

    t.drain()
    assert job.refresh().state == "retrying"

    t.turn("10m")
    t.drain()
    assert job.result == "at last"


def test_retries_that_are_due_immediately_run_in_the_same_drain(app: Packhorse, t: JobTester):
    job = failing(app, 2, backoff=0).enqueue()

    jobs = t.drain()

    assert jobs == [job]
    assert job.refresh().attempts == 3


def test_with_retries_the_clock_is_turned_until_all_have_ended(app: Packhorse, t: JobTester):
    job = failing(app, 9, retries=2, backoff=["1h", "2h"]).enqueue()

    t.drain(with_retries=True)

    assert job.refresh().state == "dead"
    assert job.failures == 3
    assert t.now == STARTED + timedelta(hours=3)


def test_with_retries_delayed_and_snoozed_jobs_come_too(app: Packhorse, t: JobTester):
    @app.task
    def poll(times: int) -> str | Snooze:
        return "there" if current_job()._job.snoozes == times else current_job().snooze("5m")

    job = poll.enqueue_in("1h", 2)
    t.drain(with_retries=True)

    assert job.result == "there"
    assert t.now == STARTED + timedelta(minutes=70)


def test_with_retries_of_one_queue_the_others_wait(app: Packhorse, t: JobTester):
    mail, other = app.task(queue="mail", name="mail")(lambda: None), app.task(name="other")(lambda: None)
    mail.enqueue_in("2h")
    other.enqueue_in("5h")

    jobs = t.drain("mail", with_retries=True)

    assert [job.task for job in jobs] == ["mail"]
    assert t.now == STARTED + timedelta(hours=2)


def test_a_task_that_snoozes_without_end_is_noticed(app: Packhorse, t: JobTester, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(packhorse.testing, "MOST_RUNS", 20)
    app.task(name="poll")(lambda: Snooze("1h")).enqueue()

    with pytest.raises(PackhorseError, match="say how many to run"):
        t.drain(with_retries=True)


# --- one job ----------------------------------------------------------------------------------------------------------


def test_one_job_runs_whatever_it_waits_for_and_whatever_waits_before_it(app: Packhorse, t: JobTester):
    task = app.task(name="echo")(lambda text: text)
    other = task.enqueue("other")
    forced = task.enqueue("forced").force_start()
    job = task.enqueue_in("1d", "wanted")
    app.pause("echo")

    ran = t.run(job)

    assert ran.result == "wanted"
    assert [other.refresh().state, forced.refresh().state] == ["queued", "queued"]
    assert t.now == STARTED


def test_a_pause_ends_when_the_clock_is_turned_past_it(app: Packhorse, t: JobTester):
    job = app.task(name="echo")(lambda: None).enqueue()
    app.pause("echo", duration="1h")
    assert t.drain() == []

    t.turn("2h")

    assert [each.id for each in t.drain()] == [job.id]


def test_one_job_may_be_named_by_its_id(app: Packhorse, t: JobTester):
    job = app.task(name="nothing")(lambda: None).enqueue()

    assert t.run(job.id).state == "completed"


def test_a_job_that_has_ended_does_not_run_again(app: Packhorse, t: JobTester):
    job = app.task(name="nothing")(lambda: None).enqueue()
    t.drain()

    with pytest.raises(WrongState):
        t.run(job)


def test_a_job_whose_time_is_over_does_not_run(app: Packhorse, t: JobTester):
    job = app.task(name="nothing", expires="5m")(lambda: None).enqueue()
    t._clock.turn("10m")

    assert t.run(job).state == "aborted"


def test_one_run_is_one_attempt(app: Packhorse, t: JobTester):
    job = failing(app, 9, backoff=0).enqueue()

    assert t.run(job).failures == 1
    assert t.run(job).failures == 2


# --- what a running job can do ----------------------------------------------------------------------------------------


def test_progress_log_and_logging_are_kept(app: Packhorse, t: JobTester):
    @app.task
    def render() -> None:
        job = current_job()
        job.log("template ok")
        logging.getLogger("shop").info("half way")
        assert not job.progress(50, "page 1")
        assert app.get(job.id).state == "running"

    job = render.enqueue()
    t.drain(raises=True)

    assert job.refresh().progress == (50, "page 1")
    lines = [line.message for line in job.logs()]
    assert lines[-3:] == ["template ok", "info shop: half way", "50 % page 1"]


def test_an_error_is_in_the_log(app: Packhorse, t: JobTester):
    job = failing(app, 1).enqueue()
    t.drain()

    assert [(line.kind, line.message) for line in job.logs()] == [("error", "OSError: attempt 1")]


def test_async_tasks_isolated_ones_and_those_with_time_limits_run_inline(app: Packhorse, t: JobTester):
    @app.task(timeout="30s")
    async def fetch() -> int:
        await asyncio.sleep(0)
        assert current_job().seconds_left is not None
        return os.getpid()

    @app.task(isolate=True, memory_limit="512MiB")
    def crunch() -> int:
        return os.getpid()

    jobs = [fetch.enqueue(), crunch.enqueue()]
    t.drain(raises=True)

    assert [job.result for job in jobs] == [os.getpid()] * 2


def test_an_async_test_may_drain(app: Packhorse, t: JobTester):
    @app.task
    async def fetch() -> str:
        await asyncio.sleep(0)
        return current_job().task

    @app.middleware
    def plain(job: Any, call: Any) -> Any:
        return call()

    async def check() -> str:
        job = await fetch.aenqueue()
        t.drain(raises=True)
        return await job.aresult(timeout=1)

    assert asyncio.run(check()) == "fetch"


def test_middleware_is_around_each_attempt(app: Packhorse, t: JobTester):
    @app.middleware
    def with_user(job: Any, call: Any) -> Any:
        job.local.user = "anna"
        return f"<{call()}>"

    @app.middleware
    async def with_brackets(job: Any, call: Any) -> Any:
        return f"[{await call()}]"

    @app.task
    def who() -> str:
        return current_job().local.user

    job = who.enqueue()
    t.drain(raises=True)

    assert job.result == "<[anna]>"


def test_a_task_may_end_itself(app: Packhorse, t: JobTester):
    stopped = app.task(name="stop")(lambda: Abort("no such order")).enqueue()
    again = app.task(name="again", retries=1)(lambda: Retry(after="1h")).enqueue()

    t.drain(raises=True)

    assert stopped.refresh().state == "aborted"
    assert again.refresh().due_at == STARTED + timedelta(hours=1)


def test_a_job_that_is_aborted_while_it_runs_notices_immediately(app: Packhorse, t: JobTester):
    @app.task
    def work() -> str:
        job = current_job()
        assert not job.checkin("before")
        app.get(job.id).abort(by="anna")
        assert job.should_stop
        return "stopped" if job.checkin() else "not told"

    job = work.enqueue()
    t.drain(raises=True)

    assert job.refresh().state == "aborted"


def test_a_cancelled_coroutine_has_failed(app: Packhorse, t: JobTester):
    @app.task(retries=0)
    async def cancelled() -> None:
        raise asyncio.CancelledError

    job = cancelled.enqueue()
    t.drain()

    assert job.refresh().state == "dead"
    assert job.error is not None
    assert job.error.type == "CancelledError"


# --- result handlers and clients --------------------------------------------------------------------------------------


def test_result_handlers_are_called_before_drain_returns(app: Packhorse, t: JobTester):
    told: list[tuple[str, State]] = []

    class Fibonacci(Worker):
        def run(self, n: int) -> int:
            return n

        def on_result(self, job: Any) -> None:
            told.append(("worker", job.state))

    @app.on_success
    async def good(job: Any) -> None:
        told.append(("app", job.state))

    app.on_failure(lambda job: told.append((job.task, job.state)))
    app.register("fibonacci", Fibonacci())
    app.enqueue("fibonacci", {"n": 1})
    failing(app, 9, retries=1, backoff=0).enqueue()
    t.drain()

    assert sorted(told) == [("app", "completed"), ("fail", "dead"), ("worker", "completed")]


def test_a_handler_that_fails_is_called_four_times_and_harms_nothing(app: Packhorse, t: JobTester):
    calls = []

    @app.on_success
    def bad(job: Any) -> None:
        calls.append(job.id)
        raise RuntimeError("no such table")

    job = app.task(name="nothing")(lambda: None).enqueue()
    t.drain()

    assert job.refresh().state == "completed"
    assert calls == [job.id] * 4
    assert "no such table" in job.logs()[-1].message


def test_subscribers_get_the_outcomes(app: Packhorse, t: JobTester):
    task = app.task(name="echo")(lambda text: text)
    client = app.client("billing")
    task.using(subscriber=client.id).enqueue("paid")
    t.drain()

    results: list[Any] = []
    handled = client.handle(lambda job: results.append(job.result), timeout=0)

    assert (handled, results) == (1, ["paid"])


# --- errors -----------------------------------------------------------------------------------------------------------


def test_an_error_may_be_raised_here_for_debugging(app: Packhorse, t: JobTester):
    job = failing(app, 1).enqueue()

    with pytest.raises(OSError, match="attempt 1") as caught:
        t.drain(raises=True)

    assert caught.traceback[-1].name == "fail"
    assert job.refresh().state == "retrying"


def test_an_error_of_a_handler_may_be_raised_here(app: Packhorse, t: JobTester):
    @app.on_success
    def bad(job: Any) -> None:
        raise RuntimeError("no such table")

    app.task(name="nothing")(lambda: None).enqueue()

    with pytest.raises(RuntimeError, match="no such table"):
        t.drain(raises=True)


def test_arguments_that_do_not_fit_are_reported(app: Packhorse, t: JobTester):
    @app.task
    def double(n: int) -> int:
        return 2 * n

    stranger = Packhorse(storage=app.storage)  # one that does not know the function, and cannot check
    job = app.get(stranger.enqueue("double", {"n": "two"}).id)

    with pytest.raises(JobFailed, match="expected int, got str"):
        t.run(job, raises=True)
    with pytest.raises(BadArguments, match="expected int, got str"):
        double.enqueue("two")  # type: ignore[arg-type]


def test_an_end_of_the_test_itself_is_no_error_of_the_task(app: Packhorse, t: JobTester):
    app.task(name="check")(lambda: pytest.fail("this should not have run")).enqueue()

    with pytest.raises(pytest.fail.Exception, match="should not have run"):
        t.drain()


def test_a_task_that_exits_has_failed(app: Packhorse, t: JobTester):
    job = app.task(name="leave", retries=0)(lambda: sys.exit(3)).enqueue()
    t.drain()

    assert job.refresh().state == "dead"


# --- the clock --------------------------------------------------------------------------------------------------------


def test_turning_the_clock_brings_delayed_jobs_into_line(app: Packhorse, t: JobTester):
    task = app.task(name="nothing")(lambda: None)
    soon, late = task.enqueue_in("10m"), task.enqueue_at(t.now + timedelta(days=2))

    t.turn("1h")

    assert [soon.refresh().state, late.refresh().state] == ["queued", "scheduled"]
    assert soon.queued_at == STARTED + timedelta(minutes=10)
    assert t.now == STARTED + timedelta(hours=1)


def test_turning_the_clock_ends_what_has_waited_for_too_long(app: Packhorse, t: JobTester):
    job = app.task(name="nothing", expires="5m")(lambda: None).enqueue_in("10m")

    t.turn("1h")

    assert job.refresh().state == "aborted"


def test_schedules_tick_at_each_slot_that_the_clock_passes(app: Packhorse, t: JobTester):
    @app.schedule("0 7 * * *")
    def report() -> None: ...

    t.tick()
    t.turn("3d")

    assert [job.created_at.day for job in t.enqueued(report)] == [1, 2, 3]
    assert len(t.drain()) == 3


def test_the_worker_lives_on_while_the_clock_is_turned(app: Packhorse):
    task = app.task(name="nothing")(lambda: None)

    with testing(app) as t:
        job = task.enqueue()
        t.turn("1d")

        assert "a worker is about to take it" in job.why()


def test_a_schedule_that_ticks_too_often_for_one_turn_is_refused(
    app: Packhorse, t: JobTester, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(packhorse.testing, "MOST_MOMENTS", 20)
    app.schedule("@every 1s")(app.task(name="often")(lambda: None))
    t.tick()

    with pytest.raises(PackhorseError, match="more than 20 slots"):
        t.turn("1h")
    t.turn("20s")
    assert len(t.enqueued("often")) == 40


def test_the_clock_is_not_turned_back(t: JobTester):
    with pytest.raises(BadValue, match="cannot be negative"):
        t.turn(-1)


# --- assertions -------------------------------------------------------------------------------------------------------


@pytest.fixture
def send(app: Packhorse):
    @app.task
    def send(user_id: int, day: datetime | None = None, kind: str = "notice") -> None: ...

    return send


def test_what_was_enqueued_is_found_by_task_and_arguments(app: Packhorse, t: JobTester, send: Any):
    first, second = send.enqueue(1), send.enqueue(2, day=STARTED, kind="bill")
    t.drain()
    app.task(name="other")(lambda: None).enqueue()

    assert len(t.enqueued()) == 3
    assert t.enqueued(send) == t.enqueued("send") == [first, second]
    assert t.enqueued(send, kind="notice") == [first]
    assert t.enqueued(send, user_id=2, day=STARTED) == [second]
    assert t.enqueued(send, user_id=2, kind="notice") == []


def test_assertions_hold_or_say_what_there_is(t: JobTester, send: Any):
    send.enqueue(1)
    job = send.enqueue_in("10m", 2)

    assert t.assert_enqueued(send, {"user_id": 2}, delay="10m") == [job]
    t.assert_enqueued("send", count=2)
    t.assert_enqueued(send, count=1, delay=0)
    t.assert_enqueued(send, {"user_id": 9}, count=0)
    t.assert_not_enqueued(send, {"user_id": 9})
    with pytest.raises(AssertionError) as caught:
        t.assert_enqueued(send, {"user_id": 2}, delay="1h")

    assert str(caught.value) == (
        "no job of send(user_id=2) in 1h was enqueued; enqueued were:\n  send(user_id=1)\n  send(user_id=2) in 10m"
    )


def test_a_wrong_number_is_reported(t: JobTester, send: Any):
    send.enqueue(1)

    with pytest.raises(AssertionError, match=re.escape("1 job of send() was enqueued instead of 2; ")):
        t.assert_enqueued(send, count=2)


def test_unexpected_jobs_are_reported(t: JobTester, send: Any):
    send.enqueue(1)

    with pytest.raises(AssertionError, match=re.escape("send() was enqueued, and should not have been")):
        t.assert_not_enqueued(send)


def test_an_empty_list_is_reported(t: JobTester, send: Any):
    with pytest.raises(AssertionError, match=re.escape("no job of send() was enqueued; nothing was")):
        t.assert_enqueued(send)


def test_of_very_many_ten_are_listed(t: JobTester, send: Any):
    for user_id in range(12):
        send.enqueue(user_id)

    with pytest.raises(AssertionError, match="… and 2 more"):
        t.assert_enqueued(send, {"user_id": 99})


def test_the_delay_is_known_also_when_the_job_has_run(t: JobTester, send: Any):
    send.enqueue_at(t.now + timedelta(hours=1), 1)
    t.drain(with_retries=True)

    t.assert_enqueued(send, delay="1h")


def test_misspelt_names_do_not_pass_for_absence(app: Packhorse, t: JobTester, send: Any):
    with pytest.raises(TaskNotFound, match="did you mean 'send'"):
        t.assert_not_enqueued("sned")
    with pytest.raises(BadArguments, match="did you mean 'user_id'"):
        t.assert_not_enqueued(send, {"usr_id": 1})
    with pytest.raises(BadValue, match="another app"):
        t.assert_not_enqueued(Packhorse("memory://").task(name="send")(lambda: None))
    t.assert_not_enqueued("billing.of_somebody_else")


# --- pytest -----------------------------------------------------------------------------------------------------------


def pytest_run(folder: Path, text: str, *words: str) -> str:
    (folder / "test_shop.py").write_text(text)
    ran = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "-p",
            "packhorse.contrib.pytest_plugin",
            *words,
        ],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    return ran.stdout + ran.stderr


def test_the_fixture_is_there_and_the_function_is_not_taken_for_a_test(tmp_path: Path):
    said = pytest_run(
        tmp_path,
        """
from packhorse import Packhorse
from packhorse.testing import testing

app = Packhorse("sqlite:///jobs.db")

@app.task
def double(n: int) -> int:
    return 2 * n

def test_it_doubles(packhorse_testing):
    t = packhorse_testing(app)
    job = double.enqueue(3)
    t.drain()
    assert job.result == 6

def test_it_ends_with_the_test():
    assert app._state._storage is None
""",
    )

    assert "2 passed" in said
    assert not (tmp_path / "jobs.db").exists()


def test_the_plugin_brings_nothing_heavy_along(tmp_path: Path):
    said = pytest_run(
        tmp_path,
        """
import sys

def test_nothing():
    heavy = ["packhorse.testing", "packhorse.worker", "packhorse.chores", "cronsim", "click"]
    assert [name for name in heavy if name in sys.modules] == []
""",
    )

    assert "1 passed" in said


def test_the_plugin_is_announced_to_pytest():
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]

    assert project["entry-points"]["pytest11"] == {"packhorse": "packhorse.contrib.pytest_plugin"}


def test_a_job_in_the_users_own_transaction_exists_immediately():
    app = Packhorse("sqlite:///nowhere.db")
    task = app.task(len)
    with testing(app) as t:
        task.using(connection=object()).enqueue("ann")
        app.enqueue_many([task.call("bob")], connection=object())

        t.assert_enqueued(task, count=2)
        assert [job.result for job in t.drain()] == [3, 3]


@pytest.mark.parametrize("is_async", [False, True])
def test_waiting_for_a_job_that_has_not_run_says_to_drain(app: Packhorse, t: JobTester, is_async: bool):
    @app.task
    def send() -> None: ...

    job = send.enqueue()

    with pytest.raises(WaitTimeout, match=r"no worker runs\) - run the job first: drain\(\)"):
        asyncio.run(job.aresult(timeout=0)) if is_async else job.wait(timeout=0)


def test_a_stored_traceback_begins_with_the_task(app: Packhorse, t: JobTester):
    @app.task(retries=0)
    def fail() -> None:
        raise ValueError("no paper")

    job = fail.enqueue()
    t.drain()

    traceback = job.refresh().error.traceback
    assert "During handling" not in traceback
    assert "event loop" not in traceback
