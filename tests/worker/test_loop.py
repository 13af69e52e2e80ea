"""The loop with real executors: everything that is reserved is run, ended, or handed back, and written down once."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from packhorse.client.job import JobHandle
from packhorse.core.clock import HOUR
from packhorse.core.context import JobContext, current_job
from packhorse.core.errors import BadValue, StorageUnavailable
from packhorse.core.event import Kind
from packhorse.core.job import (
    ABORTED,
    COMPLETED,
    DEAD,
    HELD,
    QUEUED,
    RESERVED,
    RETRYING,
    RUNNING,
    SCHEDULED,
    Reason,
    Token,
)
from packhorse.core.outcome import Completed, Failure, Outcome, Retry
from packhorse.storage.contract import Storage
from packhorse.storage.records import CheckIn, LogKind, LogLine, WorkerInfo
from packhorse.worker import fetcher, outage, pace
from packhorse.worker import loop as loop_module
from packhorse.worker.executors.pool import SHORT_INTERVAL, restore_switch_interval
from packhorse.worker.shared_status import SharedStatus
from packhorse.worker.spool import Delivery, Spool
from tests.children import until
from tests.worker.conftest import DEADLINE, WorkerHarness

# --- running --------------------------------------------------------------------------------------------------------


def test_threads_and_coroutines_run_side_by_side(harness: WorkerHarness):
    @harness.app.task
    def add(a: int, b: int) -> int:
        return a + b

    @harness.app.task
    async def multiply(a: int, b: int) -> int:
        await asyncio.sleep(0)
        return a * b

    @harness.app.task(retries=0)
    def fail() -> None:
        raise ValueError("no")

    harness.open()
    sums = harness.app.enqueue_many([add.call(number, 1) for number in range(30)])
    products = harness.app.enqueue_many([multiply.call(number, 2) for number in range(30)])
    failed = harness.app.enqueue_many([fail.call() for _ in range(10)])

    harness.finish(*sums, *products, *failed)

    assert [harness.job(job).result for job in sums] == [str(number + 1) for number in range(30)]
    assert [harness.job(job).result for job in products] == [str(number * 2) for number in range(30)]
    assert {harness.state(job) for job in failed} == {DEAD}
    assert (harness.worker.loop.finisher.done, harness.worker.loop.finisher.failed) == (70, 10)
    assert harness.worker.loop.held_jobs == {}


def test_a_failed_job_is_tried_again_until_it_works(harness: WorkerHarness):
    tries: list[int] = []

    @harness.app.task(retries=3, backoff=0)
    def flaky() -> str:
        tries.append(current_job().attempt)
        if len(tries) < 3:
            raise ConnectionError("not yet")
        return "at last"

    harness.open()
    (job,) = harness.finish(flaky.enqueue())

    assert (job.state, job.result, job.failures) == (COMPLETED, '"at last"', 2)
    assert tries == [1, 2, 3]


def test_whatever_is_mixed_no_more_jobs_run_at_once_than_there_are_slots(harness: WorkerHarness):
    running, most, lock = 0, 0, threading.Lock()

    def come_and_go(by: int) -> None:
        nonlocal running, most
        with lock:
            running += by
            most = max(most, running)

    @harness.app.task
    def plain() -> None:
        come_and_go(1)
        time.sleep(0.001)
        until(lambda: most >= 3, "all slots are taken")
        come_and_go(-1)

    @harness.app.task
    async def coroutine() -> None:
        come_and_go(1)
        await asyncio.sleep(0.001)
        while most < 3:  # noqa: ASYNC110 - threads change it too
            await asyncio.sleep(0.001)
        come_and_go(-1)

    harness.open(concurrency=3)
    harness.fill_buffer()
    calls = [task.call() for _ in range(40) for task in (plain, coroutine)]

    harness.finish(*harness.app.enqueue_many(calls))

    assert most == 3


def test_a_thousand_slow_coroutines_run_at_once(harness: WorkerHarness):
    number, running, everybody = 1_000, 0, asyncio.Event()

    @harness.app.task
    async def slow() -> None:
        nonlocal running
        running += 1
        if running == number:
            everybody.set()
        await everybody.wait()

    harness.open(concurrency=number)
    jobs = harness.app.enqueue_many([slow.call() for _ in range(number)])

    harness.until(lambda: harness.app.count(state="completed") == number)

    assert running == number
    assert len(jobs) == number


def test_a_job_whose_task_is_unknown_here_waits_for_others(harness: WorkerHarness, caplog: pytest.LogCaptureFixture):
    @harness.app.task(queue="mail")
    def known() -> None: ...

    harness.open()
    stranger = harness.app.enqueue("stranger", known=False, queue="mail")
    friend = known.enqueue()

    harness.finish(friend)
    harness.until(lambda: harness.state(stranger) is SCHEDULED)

    job = harness.job(stranger)
    assert (job.attempts, job.failures, job.snoozes) == (0, 0, 0)
    assert "there is no task 'stranger'" in caplog.text


# --- when it asks, and how it sleeps --------------------------------------------------------------------------------


@pytest.fixture
def sound_asleep(monkeypatch: pytest.MonkeyPatch) -> None:
    """An idle worker would not look again before the test has failed."""
    turn = loop_module.WorkerLoop.turn
    monkeypatch.setattr(loop_module.WorkerLoop, "turn", lambda loop, most_sleep: turn(loop, 10 * DEADLINE))
    monkeypatch.setattr("packhorse.worker.pace._IDLE_WAITS", (0.0, 0.01, 0.1, 10 * DEADLINE))


@pytest.mark.usefixtures("sound_asleep")
def test_a_new_job_wakes_an_idle_worker(harness: WorkerHarness):
    @harness.app.task
    def task() -> None: ...

    harness.run()
    harness.until(lambda: harness.worker.loop.fetcher.pace.idle_wait > DEADLINE)
    harness.until(lambda: harness.worker.loop.wakeup.place == "storage")

    job = task.enqueue()

    harness.until(lambda: harness.state(job) is COMPLETED, "nobody has heard of it")


@pytest.mark.usefixtures("sound_asleep")
def test_a_job_that_falls_due_is_not_slept_over(harness: WorkerHarness):
    @harness.app.task
    def task() -> None: ...

    job = task.enqueue_in(0.4)
    harness.run()

    harness.until(lambda: harness.state(job) is COMPLETED, "it was slept over")


def test_an_idle_worker_asks_seldom(harness: WorkerHarness):
    @harness.app.task
    def task() -> None: ...

    harness.run()
    harness.until(lambda: harness.worker.loop.fetcher.pace.idle_wait == 1.0)
    harness.flaky_storage.calls.clear()
    began_at = time.monotonic()
    time.sleep(1.0)
    calls = len(harness.flaky_storage.calls)

    assert calls <= 5 * (time.monotonic() - began_at)


def test_nothing_is_taken_while_the_foremans_heartbeats_do_not_get_through(
    harness: WorkerHarness, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
):
    @harness.app.task
    def task() -> None: ...

    shared_status = SharedStatus.create(tmp_path / "shared status", 4)
    harness.open(shared_status=shared_status, limits={"lease": 15.0})
    age = 12.5
    monkeypatch.setattr(shared_status, "beat_age", lambda: age)
    job = task.enqueue()

    for _ in range(5):
        harness.worker.loop.turn(0.01)
    meanwhile = harness.state(job)
    age = 0.0
    harness.finish(job)

    assert meanwhile is QUEUED
    assert shared_status.running() == []


def test_the_foreman_can_see_that_time_limits_are_watched(
    harness: WorkerHarness, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
):
    shared_status = SharedStatus.create(tmp_path / "shared status", 4)
    looks: list[None] = []
    monkeypatch.setattr(shared_status, "note_look", lambda: looks.append(None))
    harness.open(shared_status=shared_status)

    harness.worker.loop.turn(0.01)
    first = len(looks)
    until(lambda: harness.worker.loop.turn(0.01) or len(looks) > first, "it has looked again")

    assert first == 1


def test_a_short_lease_lets_jobs_begin_too(harness: WorkerHarness, tmp_path: Any, monkeypatch: pytest.MonkeyPatch):
    @harness.app.task
    def task() -> None: ...

    shared_status = SharedStatus.create(tmp_path / "shared status", 4)
    monkeypatch.setattr(shared_status, "beat_age", lambda: 3.9)
    harness.open(shared_status=shared_status, limits={"lease": 5.0})

    (job,) = harness.finish(task.enqueue())

    assert job.state is COMPLETED


def test_what_has_not_begun_is_handed_back_when_the_heartbeats_stop(
    harness: WorkerHarness, gate: threading.Event, tmp_path: Any, monkeypatch: pytest.MonkeyPatch, hurried: None
):
    @harness.app.task
    def task() -> None:
        gate.wait(DEADLINE)

    shared_status = SharedStatus.create(tmp_path / "shared status", 1)
    monkeypatch.setattr(shared_status, "beat_age", lambda: 0.0)
    harness.open(1, shared_status=shared_status)
    harness.fill_buffer()
    running, waiting = task.enqueue(), task.enqueue()
    harness.until(lambda: harness.state(waiting) is RESERVED and shared_status.running() == [running.id])

    monkeypatch.setattr(shared_status, "beat_age", lambda: 60.0)
    harness.until(lambda: harness.state(waiting) is QUEUED)

    assert harness.state(running) is not QUEUED


# --- looking after the held jobs --------------------------------------------------------------------------------------


def test_a_short_job_costs_no_write_of_its_start(harness: WorkerHarness, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(loop_module, "MARK_AFTER", DEADLINE)  # on a slow machine it may not look short

    @harness.app.task
    def short() -> None: ...

    harness.open()
    job = short.enqueue()
    harness.finish(job)

    assert "start" not in harness.flaky_storage.calls
    assert harness.kinds(job) == [Kind.ADDED, Kind.RESERVED, Kind.STARTED, Kind.COMPLETED]


def test_a_long_job_is_marked_as_running(harness: WorkerHarness, gate: threading.Event, hurried: None):
    @harness.app.task
    def long() -> None:
        gate.wait(DEADLINE)

    harness.open()
    job = long.enqueue()

    harness.until(lambda: harness.state(job) is RUNNING)
    gate.set()
    harness.finish(job)

    assert harness.job(job).attempts == 1
    assert harness.kinds(job).count(Kind.STARTED) == 1


def stored_outcomes(harness: WorkerHarness, monkeypatch: pytest.MonkeyPatch) -> list[Outcome]:
    """The outcomes that reach the storage."""
    told: list[Outcome] = []
    finish, both = harness.storage.finish, harness.storage.finish_and_reserve
    monkeypatch.setattr(harness.storage, "finish", lambda outcomes: told.extend(outcomes) or finish(outcomes))
    monkeypatch.setattr(
        harness.storage, "finish_and_reserve", lambda outcomes, *rest: told.extend(outcomes) or both(outcomes, *rest)
    )
    return told


def test_a_job_that_has_said_something_began_before_it_said_it(harness: WorkerHarness, monkeypatch: pytest.MonkeyPatch):
    told = stored_outcomes(harness, monkeypatch)
    harness.app.task(name="mute")(lambda: None)
    harness.app.task(name="loud")(lambda: current_job().log("here"))

    harness.open(1)
    for name in ("mute", "loud"):
        harness.finish(harness.app.enqueue(name))

    assert told[-1].ago > 0


def test_an_outcome_that_had_to_wait_is_told_how_long(harness: WorkerHarness, monkeypatch: pytest.MonkeyPatch):
    told = stored_outcomes(harness, monkeypatch)
    finishing = {"finish", "finish_and_reserve"}
    harness.app.task(name="short")(lambda: None)
    harness.open(1)
    harness.flaky_storage.fails = finishing
    job = harness.app.enqueue("short")

    harness.until(lambda: sum(call in finishing for call in harness.flaky_storage.calls) >= 3)
    harness.flaky_storage.fails = set()
    harness.finish(job)

    assert told[-1].ago > 50_000  # what the pauses between three tries take at least


def test_a_task_that_takes_long_is_marked_before_it_runs(harness: WorkerHarness, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(pace, "LONG_TASK", 0.0)
    monkeypatch.setattr(loop_module, "MARK_AFTER", DEADLINE)  # nor is the first one marked while it runs
    seen = []

    @harness.app.task
    def task() -> None:
        seen.append(harness.storage.get(current_job().id).state)  # type: ignore[union-attr]
        time.sleep(0.001)

    harness.open(1)
    harness.finish(task.enqueue())
    harness.finish(task.enqueue())

    assert seen == [RESERVED, RUNNING]


def test_a_job_that_was_lost_before_is_marked_before_it_runs(harness: WorkerHarness):
    seen = []

    @harness.app.task
    def task() -> None:
        job = harness.storage.get(current_job().id)
        assert job is not None
        seen.append((job.state, job.losses))

    job = task.enqueue()
    harness.storage.join(WorkerInfo("bob"))
    harness.storage.reserve("bob", {"task": 1}, 1)
    harness.storage.rescue_owner("bob", foreman="bob", why="it died")
    harness.open()

    harness.finish(job)

    assert seen == [(RUNNING, 1)]


def test_a_job_that_one_halt_ends_is_marked_before_it_runs(harness: WorkerHarness):
    seen = []

    @harness.app.task(max_halts=1)
    def task() -> None:
        seen.append(harness.storage.get(current_job().id).state)  # type: ignore[union-attr]

    harness.open()

    harness.finish(task.enqueue())

    assert seen == [RUNNING]


def test_of_jobs_that_were_lost_before_only_those_that_begin_are_marked(
    harness: WorkerHarness, gate: threading.Event, tmp_path: Path
):
    @harness.app.task
    def task() -> None:
        gate.wait(DEADLINE)

    harness.storage.join(WorkerInfo("bob"))
    jobs = [task.enqueue() for _ in range(8)]
    harness.storage.reserve("bob", {"task": 1}, 8)
    harness.storage.rescue_owner("bob", foreman="bob", why="it died")
    shared_status = SharedStatus.create(tmp_path / "shared status", 2)
    harness.open(2, shared_status=shared_status)
    harness.fill_buffer()

    harness.until(lambda: harness.app.count(state="held") == 8 and harness.has_begun(jobs[1]))
    states = [harness.state(job) for job in jobs]
    begun = shared_status.running()
    harness.storage.rescue_owner("ann", foreman="ann", why="it died, too", ran=begun)

    assert states == [RUNNING] * 2 + [RESERVED] * 6
    assert sorted(begun) == sorted(job.id for job in jobs[:2])
    assert [(harness.job(job).halts, harness.job(job).attempts) for job in jobs] == [(1, 1)] * 2 + [(0, 0)] * 6


def test_there_are_never_more_jobs_marked_as_running_than_slots(
    harness: WorkerHarness, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(pace, "LONG_TASK", -1.0)
    counts: list[int] = []

    @harness.app.task
    def task() -> None:
        time.sleep(0.002)

    harness.open(2)
    harness.fill_buffer()
    start = harness.storage.start

    def counted(*args: Any) -> Any:
        verdicts = start(*args)
        counts.append(harness.app.count(state="running"))
        return verdicts

    monkeypatch.setattr(harness.storage, "start", counted)
    harness.finish(*[task.enqueue() for _ in range(30)])

    assert counts
    assert max(counts) <= 2


def test_what_a_job_says_is_written_while_it_runs(harness: WorkerHarness, gate: threading.Event, hurried: None):
    @harness.app.task
    def task() -> None:
        job = current_job()
        job.checkin("sending")
        job.progress(40, "rendering")
        job.log("template ok")
        gate.wait(DEADLINE)

    harness.open()
    job = task.enqueue()

    # The loop may come by in the middle of what the job says.
    harness.until(lambda: "template ok" in harness.log(job) and harness.job(job).progress is not None)
    stored = harness.job(job)
    gate.set()
    harness.finish(job)

    assert (stored.checkin, stored.progress, stored.progress_text) == ("sending", 40, "rendering")
    assert sorted(harness.log(job)) == ["40 % rendering", "sending", "template ok"]


@pytest.mark.parametrize("kind", ["thread", "coroutine"])
def test_the_last_words_before_the_end_are_written_too(harness: WorkerHarness, kind: str):
    def say() -> None:
        job = current_job()
        job.log("almost")
        job.progress(100, "all of it")
        job.checkin("done")

    async def asay() -> None:
        say()

    task = harness.app.task(say if kind == "thread" else asay, name="task")
    harness.open()
    job = task.enqueue()
    harness.finish(job)

    stored = harness.job(job)
    assert (stored.checkin, stored.progress, stored.progress_text) == ("done", 100, "all of it")
    assert sorted(harness.log(job)) == ["100 % all of it", "almost", "done"]


def test_an_error_is_the_last_line_of_the_log(harness: WorkerHarness):
    @harness.app.task(retries=0)
    def task() -> None:
        current_job().log("so far so good")
        raise ValueError("no such address")

    harness.open()
    job = task.enqueue()
    harness.finish(job)

    lines = harness.storage.log_lines(job.id)
    assert [(line.kind, line.message) for line in lines] == [
        (LogKind.LOG, "so far so good"),
        (LogKind.ERROR, "ValueError: no such address"),
    ]


def test_a_log_grows_no_longer_than_the_setting_says(storage: Any):
    from packhorse.client.app import Packhorse

    with Packhorse(storage, keep_log_lines=3) as app:
        harness = WorkerHarness(app, storage)

        @app.task
        def task() -> None:
            for number in range(10):
                current_job().log(str(number))

        harness.open()
        job = task.enqueue()
        harness.finish(job)
        harness.close()

        assert harness.log(job)[-2:] == ["8", "9"]
        assert len(harness.log(job)) <= 4


def test_jobs_that_wait_here_behind_a_slow_one_are_handed_back(
    harness: WorkerHarness, gate: threading.Event, monkeypatch: pytest.MonkeyPatch, hurried: None
):
    @harness.app.task
    def task() -> None:
        gate.wait(DEADLINE)

    harness.open(1)
    harness.fill_buffer()
    jobs = [task.enqueue() for _ in range(5)]
    harness.until(lambda: harness.app.count(state="held") == 5 and harness.has_begun(jobs[0]))

    monkeypatch.setattr(loop_module, "BUFFER_LIMIT", 0.05)
    harness.until(lambda: harness.app.count(state="queued") == 4)
    for _ in range(10):
        harness.worker.loop.turn(0.01)
    left = harness.app.count(state="queued")
    harness.storage.join(WorkerInfo("bob"))
    taken = harness.storage.reserve("bob", {"task": 1}, 10)

    assert left == 4  # and not reserved again immediately
    assert {job.id for job in taken} == {job.id for job in jobs[1:]}
    assert all((job.attempts, job.losses) == (0, 0) for job in taken)


def test_what_was_taken_ahead_is_handed_back_when_a_job_turns_out_to_be_long(
    harness: WorkerHarness, gate: threading.Event, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(loop_module, "LONG_AFTER_CHECKS", 3)

    @harness.app.task
    def task() -> None:
        gate.wait(DEADLINE)

    harness.open(1)
    harness.fill_buffer()
    jobs = [task.enqueue() for _ in range(5)]
    harness.until(lambda: harness.app.count(state="held") == 5 and harness.has_begun(jobs[0]))

    harness.until(lambda: harness.app.count(state="queued") == 4)

    assert [harness.job(job).losses for job in jobs] == [0] * 5
    assert harness.state(jobs[0]) in HELD


def test_what_waits_behind_short_jobs_is_not_handed_back(harness: WorkerHarness, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(loop_module, "LONG_AFTER_CHECKS", 3)

    @harness.app.task
    def task() -> None:
        time.sleep(0.001)

    harness.open(2)
    harness.fill_buffer()
    jobs = [task.enqueue() for _ in range(200)]
    harness.finish(*jobs)

    assert not any(Kind.READDED in harness.kinds(job) for job in jobs)


# --- ending jobs ----------------------------------------------------------------------------------------------------


def abort(harness: WorkerHarness, job: JobHandle[Any], reason: Reason = Reason.ABORTED) -> None:
    """As an operator does, and then the foreman hands it on."""
    harness.storage.abort([job.id])
    stored = harness.job(job)
    harness.worker.loop.stop_job(job.id, stored.fence, reason)


def test_an_aborted_job_that_has_not_begun_never_begins(harness: WorkerHarness, gate: threading.Event):
    began = []

    @harness.app.task
    def task(number: int) -> None:
        began.append(number)
        gate.wait(DEADLINE)

    harness.open(1)
    harness.fill_buffer()
    running, waiting = task.enqueue(1), task.enqueue(2)
    harness.until(lambda: harness.state(waiting) is RESERVED and began)

    abort(harness, waiting)
    (ended,) = harness.finish(waiting)
    gate.set()
    harness.finish(running)

    assert (ended.state, ended.reason, ended.attempts) == (ABORTED, Reason.ABORTED, 0)
    assert began == [1]


def test_an_aborted_thread_is_asked_by_its_check_in(harness: WorkerHarness):
    began = threading.Event()

    @harness.app.task
    def task() -> str:
        began.set()
        while not current_job().checkin():
            time.sleep(0.001)
        return "as you wish"

    harness.open()
    job = task.enqueue()
    harness.until(began.is_set)

    abort(harness, job)
    (ended,) = harness.finish(job)

    assert (ended.state, ended.reason, ended.result) == (ABORTED, Reason.ABORTED, None)
    assert harness.worker._stuck_reason is None


def test_an_abort_is_learnt_from_a_check_in_alone(harness: WorkerHarness, hurried: None):
    @harness.app.task
    def task() -> None:
        count = 0
        while not current_job().checkin(f"step {count}"):
            count += 1
            time.sleep(0.001)

    harness.open()
    job = task.enqueue()
    harness.until(lambda: harness.job(job).checkin is not None)

    harness.storage.abort([job.id])

    assert harness.finish(job)[0].state is ABORTED


def test_an_aborted_coroutine_is_cancelled_and_cleans_up(harness: WorkerHarness):
    began, cleaned = threading.Event(), threading.Event()

    @harness.app.task
    async def task() -> None:
        began.set()
        try:
            await asyncio.sleep(60)
        finally:
            cleaned.set()

    harness.open()
    job = task.enqueue()
    harness.until(began.is_set)

    abort(harness, job)
    (ended,) = harness.finish(job)

    assert (ended.state, ended.reason, ended.failures) == (ABORTED, Reason.ABORTED, 0)
    assert cleaned.is_set()


def test_a_coroutine_that_is_told_again_and_again_cleans_up_in_peace(harness: WorkerHarness):
    began = threading.Event()
    cleaned = []

    @harness.app.task
    async def task() -> None:
        began.set()
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.03)
            cleaned.append(True)

    harness.open()
    job = task.enqueue()
    harness.until(began.is_set)

    abort(harness, job)
    for _ in range(3):
        harness.worker.loop.turn(0.005)
        harness.worker.loop.stop_job(job.id, harness.job(job).fence, Reason.ABORTED)
    harness.finish(job)

    assert cleaned == [True]


def test_a_coroutine_that_is_stopped_before_its_first_step_ends_too(harness: WorkerHarness):
    blocked, go_on = threading.Event(), threading.Event()

    @harness.app.task
    async def blocker() -> None:
        blocked.set()
        go_on.wait(DEADLINE)  # holds the loop, so that what comes now comes immediately

    @harness.app.task
    async def task() -> None: ...

    harness.open()
    first = blocker.enqueue()
    harness.until(blocked.is_set)
    job = task.enqueue()
    harness.until(lambda: harness.state(job) is RESERVED)
    held = harness.worker.loop.held_jobs[job.id]
    harness.worker.executors.coroutines.stop(held, hard=False)
    held.stop(Reason.ABORTED, "it was aborted")

    go_on.set()
    ended, _ = harness.finish(job, first)

    assert ended.state is ABORTED
    assert harness.worker._stuck_reason is None


def test_a_stop_for_another_reservation_of_the_job_is_ignored(harness: WorkerHarness, gate: threading.Event):
    @harness.app.task
    def task() -> str:
        gate.wait(DEADLINE)
        return str(current_job().should_stop)

    harness.open()
    job = task.enqueue()
    harness.until(lambda: harness.state(job) is not QUEUED and harness.worker.loop.held_jobs[job.id].began_at)

    harness.worker.loop.stop_job(job.id, harness.job(job).fence + 1, Reason.ABORTED)
    harness.worker.loop.stop_job("nobody", 1, Reason.ABORTED)
    harness.worker.loop.turn(0.01)
    gate.set()

    assert harness.finish(job)[0].result == '"False"'


def test_a_coroutine_that_runs_too_long_is_cancelled_and_tried_again(harness: WorkerHarness):
    tries = []

    @harness.app.task(timeout=DEADLINE, retries=1, backoff=0)
    async def task() -> str:
        tries.append(current_job().attempt)
        if len(tries) == 1:
            await asyncio.sleep(10 * DEADLINE)
        return "quick"

    harness.open()
    handle = task.enqueue()
    harness.until(lambda: tries)
    harness.worker.loop.held_jobs[handle.id].began_at -= DEADLINE  # type: ignore[operator]
    (job,) = harness.finish(handle)

    assert (job.state, job.failures, tries) == (COMPLETED, 1, [1, 2])


def test_the_last_attempt_that_runs_too_long_ends_the_job(harness: WorkerHarness):
    @harness.app.task(timeout=0.05, retries=0)
    async def task() -> None:
        await asyncio.sleep(60)

    harness.open()
    job = task.enqueue()
    (ended,) = harness.finish(job)

    assert (ended.state, ended.reason) == (ABORTED, Reason.JOB_TIMEOUT)
    assert harness.log(job) == ["Timeout: it ran for longer than 0.05 s"]


def test_a_job_that_does_not_check_in_is_ended(harness: WorkerHarness):
    @harness.app.task(idle_timeout=0.1, retries=0)
    async def task() -> None:
        job = current_job()
        for _ in range(5):
            await asyncio.sleep(0.04)
            job.checkin()
        await asyncio.sleep(60)

    harness.open()
    job = task.enqueue()
    (ended,) = harness.finish(job)

    assert (ended.state, ended.reason) == (ABORTED, Reason.JOB_TIMEOUT)
    assert harness.log(job) == ["Timeout: it did not check in for 0.1 s"]


def test_a_thread_that_heeds_its_timeout_is_tried_again(harness: WorkerHarness):
    tries = []

    @harness.app.task(timeout=0.05, isolate=False, retries=1, backoff=60)
    def task() -> str:
        tries.append(True)
        while not current_job().checkin():
            time.sleep(0.001)
        return "stopped"

    harness.open()
    job = task.enqueue()
    harness.until(lambda: harness.state(job) is RETRYING)

    stored = harness.job(job)
    assert (stored.reason, stored.failures) == (Reason.JOB_TIMEOUT, 1)
    assert harness.worker._stuck_reason is None


def test_a_job_that_has_lived_too_long_is_ended_for_good(harness: WorkerHarness):
    began = threading.Event()

    @harness.app.task(retries=3, total_timeout=60)
    async def task() -> None:
        began.set()
        await asyncio.sleep(60)

    harness.open()
    job = task.enqueue()
    harness.until(began.is_set)

    abort(harness, job, Reason.JOB_TIMEOUT)
    (ended,) = harness.finish(job)

    assert ended.state is ABORTED
    assert ended.error is not None
    assert Failure.from_json(ended.error).message == "it was not done within 60 s"


def test_an_abort_that_was_asked_beats_a_failure(harness: WorkerHarness, gate: threading.Event):
    began = threading.Event()

    @harness.app.task(retries=5, backoff=0)
    def task() -> None:
        began.set()
        gate.wait(DEADLINE)
        raise ValueError("and again")

    harness.open()
    job = task.enqueue()
    harness.until(began.is_set)
    harness.storage.abort([job.id])
    gate.set()

    assert harness.finish(job)[0].state is ABORTED


def test_a_task_may_ask_for_another_attempt(harness: WorkerHarness):
    @harness.app.task(retries=1)
    def task() -> Any:
        return Retry("later", after=0) if current_job().attempt == 1 else "now"

    harness.open()

    (job,) = harness.finish(task.enqueue())

    assert (job.state, job.result, job.failures) == (COMPLETED, '"now"', 1)


# --- stubborn jobs --------------------------------------------------------------------------------------------------


def test_a_thread_that_will_not_end_is_given_up_and_its_worker_stuck_reason(
    harness: WorkerHarness, gate: threading.Event
):
    began = threading.Event()

    @harness.app.task
    def stubborn() -> None:
        began.set()
        gate.wait(DEADLINE)

    harness.open(limits={"abort_grace": 0.1})
    job = stubborn.enqueue()
    harness.until(began.is_set)

    abort(harness, job)
    (ended,) = harness.finish(job)

    assert (ended.state, ended.reason) == (ABORTED, Reason.ABORTED)
    assert not gate.is_set()
    assert harness.worker.loop.fetcher.takes_jobs is False
    why = f"job {job.id} (stubborn) did not end within 0.1 s of being asked to"
    assert harness.said == [{"say": "stuck", "why": why}]


@pytest.fixture
def double_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that waits for its last run to end does so until it is forced to start."""
    monkeypatch.setattr(fetcher, "DOUBLE_WAIT", HOUR)


def given_up(harness: WorkerHarness, gate: threading.Event) -> tuple[JobHandle[None], list[str]]:
    """A job whose first run, on worker ann, would not end when aborted; and a line for each time that it began."""
    runs: list[str] = []

    @harness.app.task
    def stubborn() -> None:
        runs.append("began")
        if len(runs) == 1:
            gate.wait(DEADLINE)

    harness.open(limits={"abort_grace": 0.1})
    job = stubborn.enqueue()
    harness.until(lambda: runs)
    abort(harness, job)
    harness.finish(job)
    return job, runs


def test_a_job_that_was_given_up_runs_again_when_the_worker_of_its_last_run_is_gone(
    harness: WorkerHarness, gate: threading.Event, double_wait: None
):
    job, runs = given_up(harness, gate)
    ended = harness.job(job)

    harness.open(owner="ben")
    job.retry(by="olga")
    harness.until(lambda: harness.state(job) is SCHEDULED)
    waiting, why, runs_before = harness.job(job), job.why(), len(runs)
    harness.storage.leave("ann")
    job.force_start()
    (again,) = harness.finish(job)

    assert ended.error is not None
    assert Failure.goes_on_in(ended.error) == "ann"
    assert (runs_before, waiting.attempts, waiting.last_owner) == (1, 1, "ben")
    assert "it does not start again while that run continues in worker ann" in why
    assert (again.state, len(runs)) == (COMPLETED, 2)


def test_while_the_storage_does_not_say_who_is_there_such_a_job_is_handed_back(
    harness: WorkerHarness, gate: threading.Event, double_wait: None
):
    job, runs = given_up(harness, gate)
    harness.storage.leave("ann")

    harness.open(owner="ben")
    harness.flaky_storage.fails.add("workers")
    job.retry()
    harness.until(lambda: harness.state(job) is SCHEDULED)
    runs_before = len(runs)
    harness.flaky_storage.fails.clear()
    job.force_start()
    (again,) = harness.finish(job)

    assert runs_before == 1
    assert again.state is COMPLETED


def test_what_a_given_up_job_comes_to_later_is_dropped(harness: WorkerHarness, gate: threading.Event):
    began, over = threading.Event(), threading.Event()

    @harness.app.task
    def stubborn() -> str:
        began.set()
        gate.wait(DEADLINE)
        over.set()
        return "late"

    harness.open(limits={"abort_grace": 0.1})
    job = stubborn.enqueue()
    harness.until(began.is_set)
    abort(harness, job)
    harness.finish(job)

    gate.set()
    harness.until(lambda: over.is_set() and harness.worker.executors.threads._idle == 1)

    assert len(harness.worker.loop.outcomes) == 0
    assert harness.job(job).result is None


# --- the storage is away --------------------------------------------------------------------------------------------


def test_outcomes_are_kept_while_the_storage_is_away(
    harness: WorkerHarness, gate: threading.Event, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(outage, "LONGEST_PAUSE", 0.05)

    @harness.app.task
    def task(number: int) -> int:
        gate.wait(DEADLINE)
        current_job().log(f"line {number}")
        current_job().progress(number)
        return number

    harness.open(3)
    jobs = [task.enqueue(number) for number in range(3)]
    harness.until(lambda: len(harness.worker.loop.held_jobs) == 3)

    harness.flaky_storage.is_away = True
    gate.set()
    harness.until(lambda: len(harness.worker.loop.outcomes) == 3)
    for _ in range(20):
        harness.worker.loop.turn(0.01)
    held = len(harness.worker.loop.outcomes)
    harness.flaky_storage.is_away = False
    harness.finish(*jobs)

    assert held == 3
    assert [harness.job(job).result for job in jobs] == ["0", "1", "2"]
    assert [harness.job(job).progress for job in jobs] == [0, 1, 2]
    assert all(f"line {number}" in harness.log(job) for number, job in enumerate(jobs))
    assert caplog.text.count("the storage does not answer") == 1  # a minute later it would be told again


def test_outcomes_that_are_too_many_at_once_get_through_a_few_at_a_time(
    harness: WorkerHarness, gate: threading.Event, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(outage, "LONGEST_PAUSE", 0.01)
    monkeypatch.setattr(outage, "BATCH", 8)

    @harness.app.task
    def task(number: int) -> int:
        gate.wait(DEADLINE)
        return number

    harness.open(8)
    jobs = harness.app.enqueue_many([task.call(number) for number in range(8)])
    harness.until(lambda: len(harness.worker.loop.held_jobs) == 8)
    finish = harness.storage.finish

    def hurried(outcomes: list[Outcome]) -> Any:
        if len(outcomes) > 2:
            raise StorageUnavailable("that takes too long")
        return finish(outcomes)

    monkeypatch.setattr(harness.storage, "finish", hurried)
    monkeypatch.setattr(harness.storage, "finish_and_reserve", partial(Storage.finish_and_reserve, harness.storage))
    gate.set()
    until(lambda: len(harness.worker.loop.outcomes) == 8, "all have ended, and the loop has not turned")

    assert {job.state for job in harness.finish(*jobs)} == {COMPLETED}


def test_an_outcome_that_the_storage_cannot_take_harms_no_other(
    harness: WorkerHarness, gate: threading.Event, monkeypatch: pytest.MonkeyPatch
):
    @harness.app.task
    def task(number: int) -> int:
        gate.wait(DEADLINE)
        return number

    harness.open(4)
    jobs = harness.app.enqueue_many([task.call(number) for number in range(4)])
    harness.until(lambda: len(harness.worker.loop.held_jobs) == 4)
    finish = harness.storage.finish

    def picky(outcomes: list[Outcome]) -> Any:
        if any(type(outcome) is Completed and outcome.result == "2" for outcome in outcomes):
            raise BadValue("a value is too long for the server")
        return finish(outcomes)

    monkeypatch.setattr(harness.storage, "finish", picky)
    monkeypatch.setattr(harness.storage, "finish_and_reserve", partial(Storage.finish_and_reserve, harness.storage))
    gate.set()
    ended = harness.finish(*jobs)

    assert [job.state for job in ended] == [COMPLETED, COMPLETED, DEAD, COMPLETED]
    assert Failure.from_json(ended[2].error or "").summary() == "BadValue: a value is too long for the server"
    assert (harness.worker.loop.finisher.done, harness.worker.loop.finisher.failed) == (4, 1)


def test_a_job_of_which_the_storage_takes_nothing_holds_up_no_other(
    harness: WorkerHarness, gate: threading.Event, monkeypatch: pytest.MonkeyPatch
):
    @harness.app.task
    def task(number: int) -> int:
        gate.wait(DEADLINE)
        return number

    harness.open(3)
    jobs = harness.app.enqueue_many([task.call(number) for number in range(3)])
    harness.until(lambda: len(harness.worker.loop.held_jobs) == 3)
    finish = harness.storage.finish

    def picky(outcomes: list[Outcome]) -> Any:
        if any(outcome.token.job_id == jobs[1].id for outcome in outcomes):
            raise BadValue("nothing of that one")
        return finish(outcomes)

    monkeypatch.setattr(harness.storage, "finish", picky)
    monkeypatch.setattr(harness.storage, "finish_and_reserve", partial(Storage.finish_and_reserve, harness.storage))
    gate.set()
    harness.finish(jobs[0], jobs[2])
    later = task.enqueue(7)
    harness.finish(later)

    assert harness.state(jobs[1]) in HELD
    assert harness.worker.loop.held_jobs == {}
    assert harness.worker.loop.finisher.done == 3


def test_jobs_that_cannot_run_here_are_handed_back_in_parts_where_the_storage_takes_no_more_at_once(
    harness: WorkerHarness, monkeypatch: pytest.MonkeyPatch
):
    harness.open(4)
    jobs = [harness.app.enqueue("unheard", {}) for _ in range(5)]
    taken = harness.storage.reserve("ann", {"unheard": 1}, 5)
    finish = harness.storage.finish

    def picky(outcomes: list[Outcome]) -> Any:
        if len(outcomes) > 2 or any(outcome.token.job_id == jobs[3].id for outcome in outcomes):
            raise BadValue("so much does not get through")
        return finish(outcomes)

    monkeypatch.setattr(harness.storage, "finish", picky)
    harness.worker.loop.fetcher._admission.refuse(taken, "its task is not known here")
    harness.worker.loop.turn(0.01)

    assert [harness.state(job) is QUEUED for job in jobs] == [True, True, True, False, True]


def test_a_worker_that_cannot_tell_of_a_thousand_jobs_takes_no_more(harness: WorkerHarness):
    harness.open(2)
    assert not harness.worker.loop.outcomes.is_full

    harness.worker.loop.outcomes.lost = 1_000

    assert harness.worker.loop.outcomes.is_full


def test_words_that_the_storage_cannot_take_end_neither_their_job_nor_its_worker(
    harness: WorkerHarness, hurried: None, gate: threading.Event, monkeypatch: pytest.MonkeyPatch
):
    @harness.app.task(retries=0)
    def talk() -> str:
        for number in range(30):
            current_job().log(str(number))
        current_job().progress(50, "too long")
        gate.wait(DEADLINE)
        current_job().log("too long")
        return "done"

    @harness.app.task(retries=0)
    def neighbour() -> str:
        gate.wait(DEADLINE)
        return "done"

    append_log, check_in = harness.storage.append_log, harness.storage.check_in

    def append_little(token: Token, lines: list[LogLine], **more: Any) -> Any:
        if len(lines) > 4 or any(line.message == "too long" for line in lines):
            raise BadValue("so much does not get through")
        return append_log(token, lines, **more)

    def check_little_in(checkins: list[CheckIn]) -> Any:
        if any(checkin.progress_text == "too long" for checkin in checkins):
            raise BadValue("so much does not get through")
        return check_in(checkins)

    monkeypatch.setattr(harness.storage, "append_log", append_little)
    monkeypatch.setattr(harness.storage, "check_in", check_little_in)
    harness.open(2)
    jobs = [talk.enqueue(), neighbour.enqueue()]
    harness.until(lambda: harness.job(jobs[0]).progress == 50)  # written down while it runs
    gate.set()
    ended = harness.finish(*jobs)

    assert [job.state for job in ended] == [COMPLETED, COMPLETED]
    said = [line for line in harness.storage.log_lines(jobs[0].id) if line.kind is LogKind.LOG]
    assert [line.message for line in said[:30]] == [str(number) for number in range(30)]
    assert [line.message for line in said[30:]] == ["a line of 8 characters was refused: so much does not get through"]


def test_limits_hold_while_the_storage_is_away(harness: WorkerHarness, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(outage, "LONGEST_PAUSE", 0.05)
    began, ended = threading.Event(), threading.Event()

    @harness.app.task(timeout=DEADLINE, retries=0)
    async def task() -> None:
        began.set()
        try:
            while True:
                current_job().log("on and on")
                await asyncio.sleep(0.01)
        finally:
            ended.set()

    harness.open()
    job = task.enqueue()
    harness.until(began.is_set)
    harness.flaky_storage.is_away = True
    harness.worker.loop.held_jobs[job.id].began_at -= DEADLINE  # type: ignore[operator]

    harness.until(ended.is_set)
    harness.flaky_storage.is_away = False

    assert harness.finish(job)[0].reason is Reason.JOB_TIMEOUT


def test_an_idle_worker_survives_an_outage(harness: WorkerHarness, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(outage, "LONGEST_PAUSE", 0.02)

    @harness.app.task
    def task() -> None: ...

    harness.open()
    harness.until(lambda: harness.worker.loop.fetcher.pace.idle_wait == 1.0)

    harness.flaky_storage.is_away = True
    for name in ("next_due", "wait_and_reserve"):
        harness.flaky_storage.is_away, harness.flaky_storage.fails = False, {name}
        seen = len(harness.flaky_storage.calls)
        harness.until(lambda seen=seen, name=name: name in harness.flaky_storage.calls[seen:])
    harness.flaky_storage.fails = set()

    assert harness.finish(task.enqueue())[0].state is COMPLETED


def test_a_job_whose_start_cannot_be_written_is_handed_back(harness: WorkerHarness, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(pace, "LONG_TASK", -1.0)
    monkeypatch.setattr(outage, "LONGEST_PAUSE", 0.02)
    ran = []

    @harness.app.task
    def task() -> None:
        ran.append(harness.state(job))

    harness.open()
    harness.flaky_storage.fails = {"start"}
    job = task.enqueue()
    harness.until(lambda: harness.kinds(job).count(Kind.READDED) >= 1)
    meanwhile = list(ran)
    harness.flaky_storage.fails = set()
    harness.finish(job)

    assert meanwhile == []
    assert ran == [RUNNING]


def test_an_outcome_whose_answer_was_lost_counts_once(harness: WorkerHarness, gate: threading.Event):
    @harness.app.task
    def task() -> str:
        gate.wait(DEADLINE)
        return "once"

    harness.open(1)
    job = task.enqueue()
    harness.until(lambda: harness.worker.loop.held_jobs)
    harness.flaky_storage.loses_answers = {"finish", "finish_and_reserve"}
    gate.set()
    harness.finish(job)
    harness.until(lambda: not harness.worker.loop.held_jobs)

    assert harness.kinds(job).count(Kind.COMPLETED) == 1
    assert harness.worker.loop.finisher.done == 1


def test_jobs_that_were_reserved_and_never_heard_of_are_found(harness: WorkerHarness):
    @harness.app.task
    def task() -> None: ...

    harness.open()
    jobs = [task.enqueue() for _ in range(3)]
    harness.flaky_storage.loses_answers = {"reserve"}

    ended = harness.finish(*jobs)

    assert [job.state for job in ended] == [COMPLETED] * 3
    assert all(harness.kinds(job).count(Kind.RESERVED) == 1 for job in jobs)


def test_a_worker_with_a_thousand_kept_outcomes_takes_no_more(harness: WorkerHarness, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("packhorse.worker.finisher.MAX_KEPT", 2)

    @harness.app.task
    def task() -> None: ...

    harness.open(2)
    task.enqueue()
    task.enqueue()
    harness.until(lambda: harness.worker.loop.held_jobs)
    harness.flaky_storage.fails = {"finish", "finish_and_reserve"}
    later = task.enqueue()
    harness.until(lambda: harness.worker.loop.outcomes.is_full)
    for _ in range(20):
        harness.worker.loop.turn(0.005)

    assert harness.state(later) is QUEUED


# --- late outcomes --------------------------------------------------------------------------------------------------


def test_an_outcome_of_a_job_that_has_changed_hands_is_dropped_and_said(
    harness: WorkerHarness, gate: threading.Event, caplog: pytest.LogCaptureFixture
):
    @harness.app.task
    def task() -> str:
        gate.wait(DEADLINE)
        return "late"

    harness.open()
    job = task.enqueue()
    harness.until(lambda: harness.worker.loop.held_jobs)
    harness.storage.rescue_owner("ann", foreman="ann", why="it seemed dead")
    harness.storage.join(WorkerInfo("ann"))
    harness.worker.loop.fetcher.takes_jobs = False

    gate.set()
    harness.until(lambda: not harness.worker.loop.held_jobs)

    assert harness.state(job) is QUEUED
    assert f"job {job.id} belongs to another worker by now" in caplog.text
    assert harness.worker.loop.finisher.done == 0


def test_a_job_that_changes_hands_before_it_begins_does_not_begin(
    harness: WorkerHarness, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(pace, "LONG_TASK", -1.0)
    ran = []

    @harness.app.task
    def task() -> None:
        ran.append(current_job().fence)

    harness.open()
    start = harness.storage.start

    def rescued_meanwhile(tokens: Any, agos: Any = ()) -> Any:
        harness.storage.rescue_owner("ann", foreman="ann", why="it seemed dead")
        harness.storage.join(WorkerInfo("ann"))
        monkeypatch.setattr(harness.storage, "start", start)
        return start(tokens, agos)

    monkeypatch.setattr(harness.storage, "start", rescued_meanwhile)
    (job,) = harness.finish(task.enqueue())

    assert ran == [job.fence]


def test_everything_that_a_worker_says_of_a_job_carries_the_jobs_token(harness: WorkerHarness):
    @harness.app.task
    def task() -> str:
        job = current_job()
        return f"{job.owner} {job.fence}"

    harness.open()
    (job,) = harness.finish(task.enqueue())

    assert job.result == f'"ann {job.fence}"'


def test_warnings_of_the_loop_go_to_the_programs_log_only(harness: WorkerHarness, caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO)

    @harness.app.task
    def task() -> None:
        logging.getLogger("packhorse.worker").warning("ours")

    harness.open()
    job = task.enqueue()
    harness.finish(job)

    assert harness.log(job) == []


# --- order ----------------------------------------------------------------------------------------------------------


def test_on_one_slot_jobs_begin_in_line_whoever_runs_them(harness: WorkerHarness):
    began: list[int] = []

    @harness.app.task(queue="line")
    def plain(number: int) -> None:
        began.append(number)

    @harness.app.task(queue="line")
    async def coroutine(number: int) -> None:
        began.append(number)

    harness.open(1)
    harness.fill_buffer()
    jobs = [(coroutine if number % 3 == 0 else plain).enqueue(number=number) for number in range(30)]
    harness.finish(*jobs)

    assert began == list(range(30))


# --- idleness -------------------------------------------------------------------------------------------------------


def test_an_idle_worker_asks_the_storage_at_most_five_times_a_second(harness: WorkerHarness):
    harness.app.task(lambda: None, name="task")
    harness.run()
    harness.until(
        lambda: harness.flaky_storage.calls.count("wait_and_reserve") >= 4
    )  # it has slowed down to its idle pace
    already = len(harness.flaky_storage.calls)
    began_at = time.monotonic()

    harness.until(lambda: harness.flaky_storage.calls[already:].count("wait_and_reserve") >= 3)

    assert len(harness.flaky_storage.calls[already:]) <= 5 * (time.monotonic() - began_at) + 1


def test_what_a_sleeping_worker_gets_although_it_takes_no_more_jobs_is_handed_back(
    harness: WorkerHarness, monkeypatch: pytest.MonkeyPatch
):
    ran = []

    @harness.app.task
    def task() -> None:
        ran.append(current_job().fence)

    def told_to_be_quiet_meanwhile(seconds: float, queues: Sequence[str]) -> bool:
        harness.worker.quiet()
        jobs.append(task.enqueue())
        return True

    jobs: list[JobHandle[None]] = []
    harness.open()
    monkeypatch.setattr(harness.storage, "wait", told_to_be_quiet_meanwhile)
    harness.until(lambda: jobs)
    harness.until(lambda: harness.job(jobs[0]).fence == 2)  # reserved, and released

    assert (harness.state(jobs[0]), harness.job(jobs[0]).attempts) == (QUEUED, 0)
    assert (ran, harness.worker.loop.held_jobs) == ([], {})


def test_a_job_that_came_to_a_sleeping_worker_with_an_answer_that_was_lost_is_found_and_run(
    harness: WorkerHarness, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(outage, "LONGEST_PAUSE", 0.02)

    @harness.app.task
    def task() -> None: ...

    harness.open()
    harness.until(lambda: harness.worker.loop.fetcher.pace.idle_wait == 1.0)
    monkeypatch.setattr(harness.storage, "wait", lambda seconds, queues: True)
    job = task.enqueue()
    harness.flaky_storage.loses_answers = {"wait_and_reserve"}

    (ended,) = harness.finish(job)

    assert (ended.state, ended.fence, ended.attempts) == (COMPLETED, 1, 1)
    assert not harness.flaky_storage.loses_answers


def test_a_question_that_the_storage_answers_long_after_it_was_given_up_loses_no_job(
    harness: WorkerHarness, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(outage, "LONGEST_PAUSE", 0.02)
    monkeypatch.setattr(fetcher, "LATE_CHECKS", (0.2,))

    @harness.app.task
    def task() -> None: ...

    harness.open()
    harness.until(lambda: harness.worker.loop.fetcher.pace.idle_wait == 1.0)
    harness.flaky_storage.fails = {"wait_and_reserve"}
    harness.until(lambda: "find" in harness.flaky_storage.calls)  # it looks for what it may hold
    monkeypatch.setattr(harness.storage, "reserve", lambda *asked: [])
    job = task.enqueue()

    assert type(harness.storage).reserve(harness.storage, "ann", {"task": 1}, 5)  # only now
    harness.flaky_storage.fails = set()
    (ended,) = harness.finish(job)

    assert (ended.state, ended.fence, ended.attempts) == (COMPLETED, 1, 1)


def test_what_a_lost_answer_has_brought_is_looked_for_again_and_again(
    harness: WorkerHarness, monkeypatch: pytest.MonkeyPatch
):
    """The storage may be done with the question long after it was given up: a commit waits for a replica."""
    monkeypatch.setattr(outage, "LONGEST_PAUSE", 0.02)
    monkeypatch.setattr(fetcher, "LATE_CHECKS", (0.0, HOUR))

    @harness.app.task
    def task() -> None: ...

    harness.open()
    harness.flaky_storage.fails = {"reserve", "wait_and_reserve"}
    harness.until(lambda: harness.worker.loop.fetcher._answer_was_lost)
    harness.flaky_storage.fails = set()
    harness.until(lambda: harness.flaky_storage.calls.count("find") == 2)
    monkeypatch.setattr(harness.storage, "reserve", lambda *asked: [])
    job = task.enqueue()
    assert type(harness.storage).reserve(harness.storage, "ann", {"task": 1}, 5)  # only now

    (last,) = harness.worker.loop.fetcher._late_checks
    harness.worker.loop.fetcher._late_checks = [last - 2 * HOUR]  # that hour is over
    (ended,) = harness.finish(job)

    assert (ended.state, ended.fence, ended.attempts) == (COMPLETED, 1, 1)


def test_an_async_task_below_plain_middleware_that_completes_all_the_same_has_completed(harness: WorkerHarness):
    began, runs = threading.Event(), []

    @harness.app.middleware
    def plain(job: JobContext, call: Any) -> Any:
        return call()

    @harness.app.task
    async def charge() -> str:
        runs.append(1)
        began.set()
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(DEADLINE)
        return "charged"

    harness.open()
    job = charge.enqueue()
    harness.until(began.is_set)
    abort(harness, job)
    (stored,) = harness.finish(job)

    assert (stored.state, stored.result, runs) == (COMPLETED, '"charged"', [1])


def test_jobs_wait_for_no_slot_that_a_blocked_loop_was_given(
    harness: WorkerHarness, gate: threading.Event, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(loop_module, "BUFFER_LIMIT", 0.2)
    blocked = threading.Event()

    @harness.app.task
    async def blocker() -> None:
        blocked.set()
        gate.wait(DEADLINE)

    @harness.app.task
    async def coroutine() -> None: ...

    @harness.app.task
    def plain() -> None: ...

    harness.open(2)
    first = blocker.enqueue()
    harness.until(blocked.is_set)
    second = coroutine.enqueue()
    harness.until(lambda: len(harness.worker.loop.held_jobs) == 2)
    job = plain.enqueue()
    harness.finish(job)  # the coroutine was handed back after a while, and its slot with it
    was_blocked = harness.state(first) is not COMPLETED
    gate.set()
    harness.finish(first, second)

    assert was_blocked


def test_a_job_stays_on_the_board_until_its_outcome_is_stored(harness: WorkerHarness, tmp_path: Path):
    shared_status = SharedStatus.create(tmp_path / "shared status", 4)
    harness.app.task(lambda: None, name="task")
    harness.open(shared_status=shared_status)
    job = harness.app.enqueue("task")
    harness.until(lambda: harness.worker.loop.held_jobs)
    harness.flaky_storage.is_away = True
    harness.until(lambda: len(harness.worker.loop.outcomes) == 1)
    before = shared_status.running()

    harness.flaky_storage.is_away = False
    harness.finish(job)

    assert before == [job.id]
    assert shared_status.running() == []


def test_no_thread_to_be_had_loses_no_slot(harness: WorkerHarness, monkeypatch: pytest.MonkeyPatch):
    start, failures = threading.Thread.start, [RuntimeError("can't start new thread")]

    def start_or_fail(thread: threading.Thread) -> None:
        if thread.name == "packhorse-slot-1" and failures:
            raise failures.pop()
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_or_fail)
    harness.app.task(lambda: None, name="task")
    harness.open(2)

    harness.finish(*[harness.app.enqueue("task") for _ in range(6)])

    # A thread gives its slot back a moment after it has handed in what came of its job.
    harness.until(lambda: len(harness.worker.loop._slots._free) == 2, "a slot is lost")


# --- short jobs -----------------------------------------------------------------------------------------------------


def test_short_jobs_run_on_one_thread(harness: WorkerHarness, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(loop_module, "STALL", DEADLINE)  # on a slow machine the thread may pause for longer
    monkeypatch.setattr(pace, "SHORT_TASK", DEADLINE)
    threads = set()

    @harness.app.task
    def short() -> None:
        threads.add(threading.get_ident())

    harness.open(4)
    harness.finish(short.enqueue())
    harness.until(
        lambda: harness.worker.executors.threads._idle == 1
    )  # else it would take of the next ones beside another
    threads.clear()
    harness.fill_buffer()
    jobs = [short.enqueue() for _ in range(20)]
    harness.worker.loop.fetcher.next_ask = (
        0.0  # it takes them all together: a second batch may have a thread of its own
    )
    harness.finish(*jobs)

    assert len(threads) == 1


def test_the_interpreters_lock_changes_hands_sooner_only_while_jobs_are_short(harness: WorkerHarness):
    short_intervals: list[float] = []
    other_intervals: list[float] = []
    restore_switch_interval()  # as other tests may have left it
    usual = sys.getswitchinterval()

    @harness.app.task
    def short() -> None:
        short_intervals.append(sys.getswitchinterval())

    @harness.app.task
    async def other() -> None:
        other_intervals.append(sys.getswitchinterval())

    harness.open(4)
    deadline = time.monotonic() + DEADLINE
    while pytest.approx(SHORT_INTERVAL) not in short_intervals and time.monotonic() < deadline:
        # Several, for one that comes alone has the lock for itself until it has begun; and again, because on a slow
        # moment it is not known immediately that they are short.
        harness.finish(*[short.enqueue() for _ in range(10)])
    harness.finish(other.enqueue())

    assert short_intervals[0] == other_intervals[0] == pytest.approx(usual)
    assert pytest.approx(SHORT_INTERVAL) in short_intervals


def test_a_short_job_that_takes_long_for_once_holds_up_nobody(harness: WorkerHarness, gate: threading.Event):
    @harness.app.task
    def short(blocks: bool = False) -> None:
        if blocks:
            gate.wait(DEADLINE)

    harness.open(4)
    harness.finish(short.enqueue())
    harness.fill_buffer()
    first, *rest = [short.enqueue(blocks=True), *[short.enqueue() for _ in range(10)]]
    harness.finish(*rest)
    was_running = harness.state(first) is not COMPLETED
    gate.set()
    harness.finish(first)

    assert was_running


def test_during_an_outage_each_outcome_is_kept_on_disk_once(harness: WorkerHarness, tmp_path: Path):
    gates = [threading.Event() for _ in range(3)]

    @harness.app.task
    def task(number: int) -> None:
        gates[number].wait(DEADLINE)

    path = tmp_path / "storage" / "ann.outcomes"
    harness.open(3, spool=str(path))
    jobs = harness.app.enqueue_many([task.call(number) for number in range(3)])
    harness.until(lambda: all(harness.has_begun(job) for job in jobs))
    harness.flaky_storage.is_away = True
    for number, gate in enumerate(gates, 1):
        gate.set()
        harness.until(lambda number=number: len(harness.worker._spooler._kept) == number)

    text = path.read_text()
    assert [text.count(job.id) for job in jobs] == [1, 1, 1]
    assert Spool(path.parent).deliver(harness.storage) == Delivery(0, 0), "the worker lives"

    harness.flaky_storage.is_away = False
    harness.until(lambda: not path.exists())
    assert {harness.state(job) for job in jobs} == {COMPLETED}


def test_what_a_worker_leaves_on_disk_at_its_end_is_there_for_others(
    harness: WorkerHarness, gate: threading.Event, tmp_path: Path
):
    @harness.app.task
    def task() -> None:
        gate.wait(DEADLINE)

    path = tmp_path / "storage" / "ann.outcomes"
    harness.run(1, limits={"abort_grace": 0.0}, spool=str(path))
    job = task.enqueue()
    harness.until(lambda: harness.has_begun(job))
    harness.flaky_storage.is_away = True
    gate.set()
    harness.until(lambda: len(harness.worker.loop.outcomes) == 1)
    harness.worker.quit()

    assert harness.ended() == 0
    assert Spool(path.parent).deliver(harness.storage) == Delivery(1, 0)
    assert harness.state(job) is COMPLETED


def test_an_outcome_is_kept_on_disk_while_the_storage_does_not_answer(
    harness: WorkerHarness, gate: threading.Event, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    answers = threading.Event()
    finish, both = harness.storage.finish, harness.storage.finish_and_reserve
    monkeypatch.setattr(harness.storage, "finish", lambda *args: answers.wait(DEADLINE) and finish(*args))
    monkeypatch.setattr(harness.storage, "finish_and_reserve", lambda *args: answers.wait(DEADLINE) and both(*args))

    @harness.app.task
    def task() -> None:
        gate.wait(DEADLINE)

    path = tmp_path / "storage" / "ann.outcomes"
    harness.run(1, spool=str(path))
    job = task.enqueue()
    harness.until(lambda: harness.has_begun(job))
    gate.set()
    until(lambda: path.exists() and path.read_text().count(job.id) == 1, "it is on the disk")
    answers.set()
    until(lambda: not path.exists(), "it is delivered, and the file is gone")

    assert harness.state(job) is COMPLETED


@pytest.mark.parametrize("call", ["check_in", "append_log"])
def test_an_outcome_is_kept_on_disk_while_another_call_is_not_answered(
    harness: WorkerHarness, gate: threading.Event, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
):
    asked, answers = threading.Event(), threading.Event()
    answer = getattr(harness.storage, call)

    def late(*args: Any, **options: Any) -> Any:
        asked.set()
        return answers.wait(DEADLINE) and answer(*args, **options)

    monkeypatch.setattr(harness.storage, call, late)

    @harness.app.task
    def task() -> None:
        current_job().progress(50)
        gate.wait(DEADLINE)

    path = tmp_path / "storage" / "ann.outcomes"
    harness.run(1, spool=str(path))
    job = task.enqueue()
    assert asked.wait(DEADLINE)
    gate.set()
    until(lambda: path.exists() and path.read_text().count(job.id) == 1, "it is on the disk")
    answers.set()
    until(lambda: not path.exists(), "it is delivered, and the file is gone")

    assert harness.state(job) is COMPLETED
