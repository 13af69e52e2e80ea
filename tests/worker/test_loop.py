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
from tests.worker.conftest import DEADLINE, Works

# --- running --------------------------------------------------------------------------------------------------------


def test_threads_and_coroutines_run_side_by_side(works: Works):
    @works.app.task
    def add(a: int, b: int) -> int:
        return a + b

    @works.app.task
    async def multiply(a: int, b: int) -> int:
        await asyncio.sleep(0)
        return a * b

    @works.app.task(retries=0)
    def fail() -> None:
        raise ValueError("no")

    works.open()
    sums = works.app.enqueue_many([add.call(number, 1) for number in range(30)])
    products = works.app.enqueue_many([multiply.call(number, 2) for number in range(30)])
    failed = works.app.enqueue_many([fail.call() for _ in range(10)])

    works.finish(*sums, *products, *failed)

    assert [works.job(job).result for job in sums] == [str(number + 1) for number in range(30)]
    assert [works.job(job).result for job in products] == [str(number * 2) for number in range(30)]
    assert {works.state(job) for job in failed} == {DEAD}
    assert (works.worker.loop.finisher.done, works.worker.loop.finisher.failed) == (70, 10)
    assert works.worker.loop.held_jobs == {}


def test_a_failed_job_is_tried_again_until_it_works(works: Works):
    tries: list[int] = []

    @works.app.task(retries=3, backoff=0)
    def flaky() -> str:
        tries.append(current_job().attempt)
        if len(tries) < 3:
            raise ConnectionError("not yet")
        return "at last"

    works.open()
    (job,) = works.finish(flaky.enqueue())

    assert (job.state, job.result, job.failures) == (COMPLETED, '"at last"', 2)
    assert tries == [1, 2, 3]


def test_whatever_is_mixed_no_more_jobs_run_at_once_than_there_are_slots(works: Works):
    running, most, lock = 0, 0, threading.Lock()

    def come_and_go(by: int) -> None:
        nonlocal running, most
        with lock:
            running += by
            most = max(most, running)

    @works.app.task
    def plain() -> None:
        come_and_go(1)
        time.sleep(0.001)
        until(lambda: most >= 3, "all slots are taken")
        come_and_go(-1)

    @works.app.task
    async def coroutine() -> None:
        come_and_go(1)
        await asyncio.sleep(0.001)
        while most < 3:  # noqa: ASYNC110 - threads change it too
            await asyncio.sleep(0.001)
        come_and_go(-1)

    works.open(concurrency=3)
    works.fill_buffer()
    calls = [task.call() for _ in range(40) for task in (plain, coroutine)]

    works.finish(*works.app.enqueue_many(calls))

    assert most == 3


def test_a_thousand_slow_coroutines_run_at_once(works: Works):
    number, running, everybody = 1_000, 0, asyncio.Event()

    @works.app.task
    async def slow() -> None:
        nonlocal running
        running += 1
        if running == number:
            everybody.set()
        await everybody.wait()

    works.open(concurrency=number)
    jobs = works.app.enqueue_many([slow.call() for _ in range(number)])

    works.until(lambda: works.app.count(state="completed") == number)

    assert running == number
    assert len(jobs) == number


def test_a_job_whose_task_is_unknown_here_waits_for_others(works: Works, caplog: pytest.LogCaptureFixture):
    @works.app.task(queue="mail")
    def known() -> None: ...

    works.open()
    stranger = works.app.enqueue("stranger", known=False, queue="mail")
    friend = known.enqueue()

    works.finish(friend)
    works.until(lambda: works.state(stranger) is SCHEDULED)

    job = works.job(stranger)
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
def test_a_new_job_wakes_an_idle_worker(works: Works):
    @works.app.task
    def task() -> None: ...

    works.run()
    works.until(lambda: works.worker.loop.fetcher.pace.idle_wait > DEADLINE)
    works.until(lambda: works.worker.loop.wakeup.place == "storage")

    job = task.enqueue()

    works.until(lambda: works.state(job) is COMPLETED, "nobody has heard of it")


@pytest.mark.usefixtures("sound_asleep")
def test_a_job_that_falls_due_is_not_slept_over(works: Works):
    @works.app.task
    def task() -> None: ...

    job = task.enqueue_in(0.4)
    works.run()

    works.until(lambda: works.state(job) is COMPLETED, "it was slept over")


def test_an_idle_worker_asks_seldom(works: Works):
    @works.app.task
    def task() -> None: ...

    works.run()
    works.until(lambda: works.worker.loop.fetcher.pace.idle_wait == 1.0)
    works.shaky.calls.clear()
    began_at = time.monotonic()
    time.sleep(1.0)
    calls = len(works.shaky.calls)

    assert calls <= 5 * (time.monotonic() - began_at)


def test_nothing_is_taken_while_the_foremans_heartbeats_do_not_get_through(
    works: Works, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
):
    @works.app.task
    def task() -> None: ...

    shared_status = SharedStatus.create(tmp_path / "shared status", 4)
    works.open(shared_status=shared_status, limits={"lease": 15.0})
    age = 12.5
    monkeypatch.setattr(shared_status, "beat_age", lambda: age)
    job = task.enqueue()

    for _ in range(5):
        works.worker.loop.turn(0.01)
    meanwhile = works.state(job)
    age = 0.0
    works.finish(job)

    assert meanwhile is QUEUED
    assert shared_status.running() == []


def test_the_foreman_can_see_that_time_limits_are_watched(works: Works, tmp_path: Any, monkeypatch: pytest.MonkeyPatch):
    shared_status = SharedStatus.create(tmp_path / "shared status", 4)
    looks: list[None] = []
    monkeypatch.setattr(shared_status, "note_look", lambda: looks.append(None))
    works.open(shared_status=shared_status)

    works.worker.loop.turn(0.01)
    first = len(looks)
    until(lambda: works.worker.loop.turn(0.01) or len(looks) > first, "it has looked again")

    assert first == 1


def test_a_short_lease_lets_jobs_begin_too(works: Works, tmp_path: Any, monkeypatch: pytest.MonkeyPatch):
    @works.app.task
    def task() -> None: ...

    shared_status = SharedStatus.create(tmp_path / "shared status", 4)
    monkeypatch.setattr(shared_status, "beat_age", lambda: 3.9)
    works.open(shared_status=shared_status, limits={"lease": 5.0})

    (job,) = works.finish(task.enqueue())

    assert job.state is COMPLETED


def test_what_has_not_begun_is_handed_back_when_the_heartbeats_stop(
    works: Works, gate: threading.Event, tmp_path: Any, monkeypatch: pytest.MonkeyPatch, hurried: None
):
    @works.app.task
    def task() -> None:
        gate.wait(DEADLINE)

    shared_status = SharedStatus.create(tmp_path / "shared status", 1)
    monkeypatch.setattr(shared_status, "beat_age", lambda: 0.0)
    works.open(1, shared_status=shared_status)
    works.fill_buffer()
    running, waiting = task.enqueue(), task.enqueue()
    works.until(lambda: works.state(waiting) is RESERVED and shared_status.running() == [running.id])

    monkeypatch.setattr(shared_status, "beat_age", lambda: 60.0)
    works.until(lambda: works.state(waiting) is QUEUED)

    assert works.state(running) is not QUEUED


# --- looking after the held jobs --------------------------------------------------------------------------------------


def test_a_short_job_costs_no_write_of_its_start(works: Works, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(loop_module, "MARK_AFTER", DEADLINE)  # on a slow machine it may not look short

    @works.app.task
    def short() -> None: ...

    works.open()
    job = short.enqueue()
    works.finish(job)

    assert "start" not in works.shaky.calls
    assert works.kinds(job) == [Kind.ADDED, Kind.RESERVED, Kind.STARTED, Kind.COMPLETED]


def test_a_long_job_is_marked_as_running(works: Works, gate: threading.Event, hurried: None):
    @works.app.task
    def long() -> None:
        gate.wait(DEADLINE)

    works.open()
    job = long.enqueue()

    works.until(lambda: works.state(job) is RUNNING)
    gate.set()
    works.finish(job)

    assert works.job(job).attempts == 1
    assert works.kinds(job).count(Kind.STARTED) == 1


def told_outcomes(works: Works, monkeypatch: pytest.MonkeyPatch) -> list[Outcome]:
    """What the storage is told, in the end."""
    told: list[Outcome] = []
    finish, both = works.storage.finish, works.storage.finish_and_reserve
    monkeypatch.setattr(works.storage, "finish", lambda outcomes: told.extend(outcomes) or finish(outcomes))
    monkeypatch.setattr(
        works.storage, "finish_and_reserve", lambda outcomes, *rest: told.extend(outcomes) or both(outcomes, *rest)
    )
    return told


def test_a_job_that_has_said_something_began_before_it_said_it(works: Works, monkeypatch: pytest.MonkeyPatch):
    told = told_outcomes(works, monkeypatch)
    works.app.task(name="mute")(lambda: None)
    works.app.task(name="loud")(lambda: current_job().log("here"))

    works.open(1)
    for name in ("mute", "loud"):
        works.finish(works.app.enqueue(name))

    assert told[-1].ago > 0


def test_an_outcome_that_had_to_wait_is_told_how_long(works: Works, monkeypatch: pytest.MonkeyPatch):
    told = told_outcomes(works, monkeypatch)
    finishing = {"finish", "finish_and_reserve"}
    works.app.task(name="short")(lambda: None)
    works.open(1)
    works.shaky.fails = finishing
    job = works.app.enqueue("short")

    works.until(lambda: sum(call in finishing for call in works.shaky.calls) >= 3)
    works.shaky.fails = set()
    works.finish(job)

    assert told[-1].ago > 50_000  # what the pauses between three tries take at least


def test_a_task_that_takes_long_is_marked_before_it_runs(works: Works, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(pace, "LONG_TASK", 0.0)
    monkeypatch.setattr(loop_module, "MARK_AFTER", DEADLINE)  # nor is the first one marked while it runs
    seen = []

    @works.app.task
    def task() -> None:
        seen.append(works.storage.get(current_job().id).state)  # type: ignore[union-attr]
        time.sleep(0.001)

    works.open(1)
    works.finish(task.enqueue())
    works.finish(task.enqueue())

    assert seen == [RESERVED, RUNNING]


def test_a_job_that_was_lost_before_is_marked_before_it_runs(works: Works):
    seen = []

    @works.app.task
    def task() -> None:
        job = works.storage.get(current_job().id)
        assert job is not None
        seen.append((job.state, job.losses))

    job = task.enqueue()
    works.storage.join(WorkerInfo("bob"))
    works.storage.reserve("bob", {"task": 1}, 1)
    works.storage.rescue_owner("bob", foreman="bob", why="it died")
    works.open()

    works.finish(job)

    assert seen == [(RUNNING, 1)]


def test_a_job_that_one_halt_ends_is_marked_before_it_runs(works: Works):
    seen = []

    @works.app.task(max_halts=1)
    def task() -> None:
        seen.append(works.storage.get(current_job().id).state)  # type: ignore[union-attr]

    works.open()

    works.finish(task.enqueue())

    assert seen == [RUNNING]


def test_of_jobs_that_were_lost_before_only_those_that_begin_are_marked(
    works: Works, gate: threading.Event, tmp_path: Path
):
    @works.app.task
    def task() -> None:
        gate.wait(DEADLINE)

    works.storage.join(WorkerInfo("bob"))
    jobs = [task.enqueue() for _ in range(8)]
    works.storage.reserve("bob", {"task": 1}, 8)
    works.storage.rescue_owner("bob", foreman="bob", why="it died")
    shared_status = SharedStatus.create(tmp_path / "shared status", 2)
    works.open(2, shared_status=shared_status)
    works.fill_buffer()

    works.until(lambda: works.app.count(state="held") == 8 and works.has_begun(jobs[1]))
    states = [works.state(job) for job in jobs]
    begun = shared_status.running()
    works.storage.rescue_owner("ann", foreman="ann", why="it died, too", ran=begun)

    assert states == [RUNNING] * 2 + [RESERVED] * 6
    assert sorted(begun) == sorted(job.id for job in jobs[:2])
    assert [(works.job(job).halts, works.job(job).attempts) for job in jobs] == [(1, 1)] * 2 + [(0, 0)] * 6


def test_there_are_never_more_jobs_marked_as_running_than_slots(works: Works, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(pace, "LONG_TASK", -1.0)
    counts: list[int] = []

    @works.app.task
    def task() -> None:
        time.sleep(0.002)

    works.open(2)
    works.fill_buffer()
    start = works.storage.start

    def counted(*args: Any) -> Any:
        verdicts = start(*args)
        counts.append(works.app.count(state="running"))
        return verdicts

    monkeypatch.setattr(works.storage, "start", counted)
    works.finish(*[task.enqueue() for _ in range(30)])

    assert counts
    assert max(counts) <= 2


def test_what_a_job_says_is_written_while_it_runs(works: Works, gate: threading.Event, hurried: None):
    @works.app.task
    def task() -> None:
        job = current_job()
        job.checkin("sending")
        job.progress(40, "rendering")
        job.log("template ok")
        gate.wait(DEADLINE)

    works.open()
    job = task.enqueue()

    # The loop may come by in the middle of what the job says.
    works.until(lambda: "template ok" in works.log(job) and works.job(job).progress is not None)
    stored = works.job(job)
    gate.set()
    works.finish(job)

    assert (stored.checkin, stored.progress, stored.progress_text) == ("sending", 40, "rendering")
    assert sorted(works.log(job)) == ["40 % rendering", "sending", "template ok"]


@pytest.mark.parametrize("kind", ["thread", "coroutine"])
def test_the_last_words_before_the_end_are_written_too(works: Works, kind: str):
    def say() -> None:
        job = current_job()
        job.log("almost")
        job.progress(100, "all of it")
        job.checkin("done")

    async def asay() -> None:
        say()

    task = works.app.task(say if kind == "thread" else asay, name="task")
    works.open()
    job = task.enqueue()
    works.finish(job)

    stored = works.job(job)
    assert (stored.checkin, stored.progress, stored.progress_text) == ("done", 100, "all of it")
    assert sorted(works.log(job)) == ["100 % all of it", "almost", "done"]


def test_an_error_is_the_last_line_of_the_log(works: Works):
    @works.app.task(retries=0)
    def task() -> None:
        current_job().log("so far so good")
        raise ValueError("no such address")

    works.open()
    job = task.enqueue()
    works.finish(job)

    lines = works.storage.log_lines(job.id)
    assert [(line.kind, line.message) for line in lines] == [
        (LogKind.LOG, "so far so good"),
        (LogKind.ERROR, "ValueError: no such address"),
    ]


def test_a_log_grows_no_longer_than_the_setting_says(storage: Any):
    from packhorse.client.app import Packhorse

    with Packhorse(storage, keep_log_lines=3) as app:
        works = Works(app, storage)

        @app.task
        def task() -> None:
            for number in range(10):
                current_job().log(str(number))

        works.open()
        job = task.enqueue()
        works.finish(job)
        works.close()

        assert works.log(job)[-2:] == ["8", "9"]
        assert len(works.log(job)) <= 4


def test_jobs_that_wait_here_behind_a_slow_one_are_handed_back(
    works: Works, gate: threading.Event, monkeypatch: pytest.MonkeyPatch, hurried: None
):
    @works.app.task
    def task() -> None:
        gate.wait(DEADLINE)

    works.open(1)
    works.fill_buffer()
    jobs = [task.enqueue() for _ in range(5)]
    works.until(lambda: works.app.count(state="held") == 5 and works.has_begun(jobs[0]))

    monkeypatch.setattr(loop_module, "BUFFER_LIMIT", 0.05)
    works.until(lambda: works.app.count(state="queued") == 4)
    for _ in range(10):
        works.worker.loop.turn(0.01)
    left = works.app.count(state="queued")
    works.storage.join(WorkerInfo("bob"))
    taken = works.storage.reserve("bob", {"task": 1}, 10)

    assert left == 4  # and not reserved again at once
    assert {job.id for job in taken} == {job.id for job in jobs[1:]}
    assert all((job.attempts, job.losses) == (0, 0) for job in taken)


def test_what_was_taken_ahead_is_handed_back_when_a_job_turns_out_to_be_long(
    works: Works, gate: threading.Event, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(loop_module, "LONG_AFTER_CHECKS", 3)

    @works.app.task
    def task() -> None:
        gate.wait(DEADLINE)

    works.open(1)
    works.fill_buffer()
    jobs = [task.enqueue() for _ in range(5)]
    works.until(lambda: works.app.count(state="held") == 5 and works.has_begun(jobs[0]))

    works.until(lambda: works.app.count(state="queued") == 4)

    assert [works.job(job).losses for job in jobs] == [0] * 5
    assert works.state(jobs[0]) in HELD


def test_what_waits_behind_short_jobs_is_not_handed_back(works: Works, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(loop_module, "LONG_AFTER_CHECKS", 3)

    @works.app.task
    def task() -> None:
        time.sleep(0.001)

    works.open(2)
    works.fill_buffer()
    jobs = [task.enqueue() for _ in range(200)]
    works.finish(*jobs)

    assert not any(Kind.READDED in works.kinds(job) for job in jobs)


# --- ending jobs ----------------------------------------------------------------------------------------------------


def abort(works: Works, job: JobHandle[Any], reason: Reason = Reason.ABORTED) -> None:
    """As an operator does, and then the foreman hands it on."""
    works.storage.abort([job.id])
    stored = works.job(job)
    works.worker.loop.stop_job(job.id, stored.fence, reason)


def test_an_aborted_job_that_has_not_begun_never_begins(works: Works, gate: threading.Event):
    began = []

    @works.app.task
    def task(number: int) -> None:
        began.append(number)
        gate.wait(DEADLINE)

    works.open(1)
    works.fill_buffer()
    running, waiting = task.enqueue(1), task.enqueue(2)
    works.until(lambda: works.state(waiting) is RESERVED and began)

    abort(works, waiting)
    (ended,) = works.finish(waiting)
    gate.set()
    works.finish(running)

    assert (ended.state, ended.reason, ended.attempts) == (ABORTED, Reason.ABORTED, 0)
    assert began == [1]


def test_an_aborted_thread_is_asked_by_its_check_in(works: Works):
    began = threading.Event()

    @works.app.task
    def task() -> str:
        began.set()
        while not current_job().checkin():
            time.sleep(0.001)
        return "as you wish"

    works.open()
    job = task.enqueue()
    works.until(began.is_set)

    abort(works, job)
    (ended,) = works.finish(job)

    assert (ended.state, ended.reason, ended.result) == (ABORTED, Reason.ABORTED, None)
    assert works.worker._stuck_reason is None


def test_an_abort_is_learnt_from_a_check_in_alone(works: Works, hurried: None):
    @works.app.task
    def task() -> None:
        count = 0
        while not current_job().checkin(f"step {count}"):
            count += 1
            time.sleep(0.001)

    works.open()
    job = task.enqueue()
    works.until(lambda: works.job(job).checkin is not None)

    works.storage.abort([job.id])

    assert works.finish(job)[0].state is ABORTED


def test_an_aborted_coroutine_is_cancelled_and_cleans_up(works: Works):
    began, cleaned = threading.Event(), threading.Event()

    @works.app.task
    async def task() -> None:
        began.set()
        try:
            await asyncio.sleep(60)
        finally:
            cleaned.set()

    works.open()
    job = task.enqueue()
    works.until(began.is_set)

    abort(works, job)
    (ended,) = works.finish(job)

    assert (ended.state, ended.reason, ended.failures) == (ABORTED, Reason.ABORTED, 0)
    assert cleaned.is_set()


def test_a_coroutine_that_is_told_again_and_again_cleans_up_in_peace(works: Works):
    began = threading.Event()
    cleaned = []

    @works.app.task
    async def task() -> None:
        began.set()
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.03)
            cleaned.append(True)

    works.open()
    job = task.enqueue()
    works.until(began.is_set)

    abort(works, job)
    for _ in range(3):
        works.worker.loop.turn(0.005)
        works.worker.loop.stop_job(job.id, works.job(job).fence, Reason.ABORTED)
    works.finish(job)

    assert cleaned == [True]


def test_a_coroutine_that_is_stopped_before_its_first_step_ends_too(works: Works):
    blocked, go_on = threading.Event(), threading.Event()

    @works.app.task
    async def blocker() -> None:
        blocked.set()
        go_on.wait(DEADLINE)  # holds the loop, so that what comes now comes at once

    @works.app.task
    async def task() -> None: ...

    works.open()
    first = blocker.enqueue()
    works.until(blocked.is_set)
    job = task.enqueue()
    works.until(lambda: works.state(job) is RESERVED)
    held = works.worker.loop.held_jobs[job.id]
    works.worker.executors.coroutines.stop(held, hard=False)
    held.stop(Reason.ABORTED, "it was aborted")

    go_on.set()
    ended, _ = works.finish(job, first)

    assert ended.state is ABORTED
    assert works.worker._stuck_reason is None


def test_a_stop_for_another_reservation_of_the_job_is_ignored(works: Works, gate: threading.Event):
    @works.app.task
    def task() -> str:
        gate.wait(DEADLINE)
        return str(current_job().should_stop)

    works.open()
    job = task.enqueue()
    works.until(lambda: works.state(job) is not QUEUED and works.worker.loop.held_jobs[job.id].began_at)

    works.worker.loop.stop_job(job.id, works.job(job).fence + 1, Reason.ABORTED)
    works.worker.loop.stop_job("nobody", 1, Reason.ABORTED)
    works.worker.loop.turn(0.01)
    gate.set()

    assert works.finish(job)[0].result == '"False"'


def test_a_coroutine_that_runs_too_long_is_cancelled_and_tried_again(works: Works):
    tries = []

    @works.app.task(timeout=DEADLINE, retries=1, backoff=0)
    async def task() -> str:
        tries.append(current_job().attempt)
        if len(tries) == 1:
            await asyncio.sleep(10 * DEADLINE)
        return "quick"

    works.open()
    handle = task.enqueue()
    works.until(lambda: tries)
    works.worker.loop.held_jobs[handle.id].began_at -= DEADLINE  # type: ignore[operator]
    (job,) = works.finish(handle)

    assert (job.state, job.failures, tries) == (COMPLETED, 1, [1, 2])


def test_the_last_attempt_that_runs_too_long_ends_the_job(works: Works):
    @works.app.task(timeout=0.05, retries=0)
    async def task() -> None:
        await asyncio.sleep(60)

    works.open()
    job = task.enqueue()
    (ended,) = works.finish(job)

    assert (ended.state, ended.reason) == (ABORTED, Reason.JOB_TIMEOUT)
    assert works.log(job) == ["Timeout: it ran for longer than 0.05 s"]


def test_a_job_that_does_not_check_in_is_ended(works: Works):
    @works.app.task(idle_timeout=0.1, retries=0)
    async def task() -> None:
        job = current_job()
        for _ in range(5):
            await asyncio.sleep(0.04)
            job.checkin()
        await asyncio.sleep(60)

    works.open()
    job = task.enqueue()
    (ended,) = works.finish(job)

    assert (ended.state, ended.reason) == (ABORTED, Reason.JOB_TIMEOUT)
    assert works.log(job) == ["Timeout: it did not check in for 0.1 s"]


def test_a_thread_that_heeds_its_timeout_is_tried_again(works: Works):
    tries = []

    @works.app.task(timeout=0.05, isolate=False, retries=1, backoff=60)
    def task() -> str:
        tries.append(True)
        while not current_job().checkin():
            time.sleep(0.001)
        return "stopped"

    works.open()
    job = task.enqueue()
    works.until(lambda: works.state(job) is RETRYING)

    stored = works.job(job)
    assert (stored.reason, stored.failures) == (Reason.JOB_TIMEOUT, 1)
    assert works.worker._stuck_reason is None


def test_a_job_that_has_lived_too_long_is_ended_for_good(works: Works):
    began = threading.Event()

    @works.app.task(retries=3, total_timeout=60)
    async def task() -> None:
        began.set()
        await asyncio.sleep(60)

    works.open()
    job = task.enqueue()
    works.until(began.is_set)

    abort(works, job, Reason.JOB_TIMEOUT)
    (ended,) = works.finish(job)

    assert ended.state is ABORTED
    assert ended.error is not None
    assert Failure.from_json(ended.error).message == "it was not done within 60 s"


def test_an_abort_that_was_asked_beats_a_failure(works: Works, gate: threading.Event):
    began = threading.Event()

    @works.app.task(retries=5, backoff=0)
    def task() -> None:
        began.set()
        gate.wait(DEADLINE)
        raise ValueError("and again")

    works.open()
    job = task.enqueue()
    works.until(began.is_set)
    works.storage.abort([job.id])
    gate.set()

    assert works.finish(job)[0].state is ABORTED


def test_a_task_may_ask_for_another_attempt(works: Works):
    @works.app.task(retries=1)
    def task() -> Any:
        return Retry("later", after=0) if current_job().attempt == 1 else "now"

    works.open()

    (job,) = works.finish(task.enqueue())

    assert (job.state, job.result, job.failures) == (COMPLETED, '"now"', 1)


# --- stubborn jobs --------------------------------------------------------------------------------------------------


def test_a_thread_that_will_not_end_is_given_up_and_its_worker_stuck_reason(works: Works, gate: threading.Event):
    began = threading.Event()

    @works.app.task
    def stubborn() -> None:
        began.set()
        gate.wait(DEADLINE)

    works.open(limits={"abort_grace": 0.1})
    job = stubborn.enqueue()
    works.until(began.is_set)

    abort(works, job)
    (ended,) = works.finish(job)

    assert (ended.state, ended.reason) == (ABORTED, Reason.ABORTED)
    assert not gate.is_set()
    assert works.worker.loop.fetcher.takes_jobs is False
    why = f"job {job.id} (stubborn) did not end within 0.1 s of being asked to"
    assert works.said == [{"say": "stuck", "why": why}]


@pytest.fixture
def double_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever waits for its last run to end does so until it is forced to start."""
    monkeypatch.setattr(fetcher, "DOUBLE_WAIT", HOUR)


def given_up(works: Works, gate: threading.Event) -> tuple[JobHandle[None], list[str]]:
    """A job whose first run, on worker ann, would not end when aborted; and a line for each time that it began."""
    runs: list[str] = []

    @works.app.task
    def stubborn() -> None:
        runs.append("began")
        if len(runs) == 1:
            gate.wait(DEADLINE)

    works.open(limits={"abort_grace": 0.1})
    job = stubborn.enqueue()
    works.until(lambda: runs)
    abort(works, job)
    works.finish(job)
    return job, runs


def test_a_job_that_was_given_up_runs_again_when_the_worker_of_its_last_run_is_gone(
    works: Works, gate: threading.Event, double_wait: None
):
    job, runs = given_up(works, gate)
    ended = works.job(job)

    works.open(owner="ben")
    job.retry(by="olga")
    works.until(lambda: works.state(job) is SCHEDULED)
    waiting, why, runs_before = works.job(job), job.why(), len(runs)
    works.storage.leave("ann")
    job.force_start()
    (again,) = works.finish(job)

    assert ended.error is not None
    assert Failure.goes_on_in(ended.error) == "ann"
    assert (runs_before, waiting.attempts, waiting.last_owner) == (1, 1, "ben")
    assert "it does not begin again while that goes on in worker ann" in why
    assert (again.state, len(runs)) == (COMPLETED, 2)


def test_while_the_storage_does_not_say_who_is_there_such_a_job_is_handed_back(
    works: Works, gate: threading.Event, double_wait: None
):
    job, runs = given_up(works, gate)
    works.storage.leave("ann")

    works.open(owner="ben")
    works.shaky.fails.add("workers")
    job.retry()
    works.until(lambda: works.state(job) is SCHEDULED)
    runs_before = len(runs)
    works.shaky.fails.clear()
    job.force_start()
    (again,) = works.finish(job)

    assert runs_before == 1
    assert again.state is COMPLETED


def test_what_a_given_up_job_comes_to_later_is_dropped(works: Works, gate: threading.Event):
    began, over = threading.Event(), threading.Event()

    @works.app.task
    def stubborn() -> str:
        began.set()
        gate.wait(DEADLINE)
        over.set()
        return "late"

    works.open(limits={"abort_grace": 0.1})
    job = stubborn.enqueue()
    works.until(began.is_set)
    abort(works, job)
    works.finish(job)

    gate.set()
    works.until(lambda: over.is_set() and works.worker.executors.threads._idle == 1)

    assert len(works.worker.loop.outcomes) == 0
    assert works.job(job).result is None


# --- the storage is away --------------------------------------------------------------------------------------------


def test_outcomes_are_kept_while_the_storage_is_away(
    works: Works, gate: threading.Event, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(outage, "LONGEST_PAUSE", 0.05)

    @works.app.task
    def task(number: int) -> int:
        gate.wait(DEADLINE)
        current_job().log(f"line {number}")
        current_job().progress(number)
        return number

    works.open(3)
    jobs = [task.enqueue(number) for number in range(3)]
    works.until(lambda: len(works.worker.loop.held_jobs) == 3)

    works.shaky.is_away = True
    gate.set()
    works.until(lambda: len(works.worker.loop.outcomes) == 3)
    for _ in range(20):
        works.worker.loop.turn(0.01)
    held = len(works.worker.loop.outcomes)
    works.shaky.is_away = False
    works.finish(*jobs)

    assert held == 3
    assert [works.job(job).result for job in jobs] == ["0", "1", "2"]
    assert [works.job(job).progress for job in jobs] == [0, 1, 2]
    assert all(f"line {number}" in works.log(job) for number, job in enumerate(jobs))
    assert caplog.text.count("the storage does not answer") == 1  # a minute later it would be told again


def test_outcomes_that_are_too_many_at_once_get_through_a_few_at_a_time(
    works: Works, gate: threading.Event, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(outage, "LONGEST_PAUSE", 0.01)
    monkeypatch.setattr(outage, "BATCH", 8)

    @works.app.task
    def task(number: int) -> int:
        gate.wait(DEADLINE)
        return number

    works.open(8)
    jobs = works.app.enqueue_many([task.call(number) for number in range(8)])
    works.until(lambda: len(works.worker.loop.held_jobs) == 8)
    finish = works.storage.finish

    def hurried(outcomes: list[Outcome]) -> Any:
        if len(outcomes) > 2:
            raise StorageUnavailable("that takes too long")
        return finish(outcomes)

    monkeypatch.setattr(works.storage, "finish", hurried)
    monkeypatch.setattr(works.storage, "finish_and_reserve", partial(Storage.finish_and_reserve, works.storage))
    gate.set()
    until(lambda: len(works.worker.loop.outcomes) == 8, "all have ended, and the loop has not turned")

    assert {job.state for job in works.finish(*jobs)} == {COMPLETED}


def test_an_outcome_that_the_storage_cannot_take_harms_no_other(
    works: Works, gate: threading.Event, monkeypatch: pytest.MonkeyPatch
):
    @works.app.task
    def task(number: int) -> int:
        gate.wait(DEADLINE)
        return number

    works.open(4)
    jobs = works.app.enqueue_many([task.call(number) for number in range(4)])
    works.until(lambda: len(works.worker.loop.held_jobs) == 4)
    finish = works.storage.finish

    def choosy(outcomes: list[Outcome]) -> Any:
        if any(type(outcome) is Completed and outcome.result == "2" for outcome in outcomes):
            raise BadValue("a value is too long for the server")
        return finish(outcomes)

    monkeypatch.setattr(works.storage, "finish", choosy)
    monkeypatch.setattr(works.storage, "finish_and_reserve", partial(Storage.finish_and_reserve, works.storage))
    gate.set()
    ended = works.finish(*jobs)

    assert [job.state for job in ended] == [COMPLETED, COMPLETED, DEAD, COMPLETED]
    assert Failure.from_json(ended[2].error or "").summary() == "BadValue: a value is too long for the server"
    assert (works.worker.loop.finisher.done, works.worker.loop.finisher.failed) == (4, 1)


def test_a_job_of_which_the_storage_takes_nothing_holds_up_no_other(
    works: Works, gate: threading.Event, monkeypatch: pytest.MonkeyPatch
):
    @works.app.task
    def task(number: int) -> int:
        gate.wait(DEADLINE)
        return number

    works.open(3)
    jobs = works.app.enqueue_many([task.call(number) for number in range(3)])
    works.until(lambda: len(works.worker.loop.held_jobs) == 3)
    finish = works.storage.finish

    def choosy(outcomes: list[Outcome]) -> Any:
        if any(outcome.token.job_id == jobs[1].id for outcome in outcomes):
            raise BadValue("nothing of that one")
        return finish(outcomes)

    monkeypatch.setattr(works.storage, "finish", choosy)
    monkeypatch.setattr(works.storage, "finish_and_reserve", partial(Storage.finish_and_reserve, works.storage))
    gate.set()
    works.finish(jobs[0], jobs[2])
    later = task.enqueue(7)
    works.finish(later)

    assert works.state(jobs[1]) in HELD
    assert works.worker.loop.held_jobs == {}
    assert works.worker.loop.finisher.done == 3


def test_jobs_that_cannot_run_here_are_handed_back_in_parts_where_the_storage_takes_no_more_at_once(
    works: Works, monkeypatch: pytest.MonkeyPatch
):
    works.open(4)
    jobs = [works.app.enqueue("unheard", {}) for _ in range(5)]
    taken = works.storage.reserve("ann", {"unheard": 1}, 5)
    finish = works.storage.finish

    def choosy(outcomes: list[Outcome]) -> Any:
        if len(outcomes) > 2 or any(outcome.token.job_id == jobs[3].id for outcome in outcomes):
            raise BadValue("so much at once does not get through")
        return finish(outcomes)

    monkeypatch.setattr(works.storage, "finish", choosy)
    works.worker.loop.fetcher._admission.refuse(taken, "its task is not known here")
    works.worker.loop.turn(0.01)

    assert [works.state(job) is QUEUED for job in jobs] == [True, True, True, False, True]


def test_a_worker_that_cannot_tell_of_a_thousand_jobs_takes_no_more(works: Works):
    works.open(2)
    assert not works.worker.loop.outcomes.is_full

    works.worker.loop.outcomes.lost = 1_000

    assert works.worker.loop.outcomes.is_full


def test_words_that_the_storage_cannot_take_end_neither_their_job_nor_its_worker(
    works: Works, hurried: None, gate: threading.Event, monkeypatch: pytest.MonkeyPatch
):
    @works.app.task(retries=0)
    def talk() -> str:
        for number in range(30):
            current_job().log(str(number))
        current_job().progress(50, "too long")
        gate.wait(DEADLINE)
        current_job().log("too long")
        return "done"

    @works.app.task(retries=0)
    def neighbour() -> str:
        gate.wait(DEADLINE)
        return "done"

    append_log, check_in = works.storage.append_log, works.storage.check_in

    def append_little(token: Token, lines: list[LogLine], **more: Any) -> Any:
        if len(lines) > 4 or any(line.message == "too long" for line in lines):
            raise BadValue("so much at once does not get through")
        return append_log(token, lines, **more)

    def check_little_in(checkins: list[CheckIn]) -> Any:
        if any(checkin.progress_text == "too long" for checkin in checkins):
            raise BadValue("so much at once does not get through")
        return check_in(checkins)

    monkeypatch.setattr(works.storage, "append_log", append_little)
    monkeypatch.setattr(works.storage, "check_in", check_little_in)
    works.open(2)
    jobs = [talk.enqueue(), neighbour.enqueue()]
    works.until(lambda: works.job(jobs[0]).progress == 50)  # written down while it runs
    gate.set()
    ended = works.finish(*jobs)

    assert [job.state for job in ended] == [COMPLETED, COMPLETED]
    said = [line for line in works.storage.log_lines(jobs[0].id) if line.kind is LogKind.LOG]
    assert [line.message for line in said[:30]] == [str(number) for number in range(30)]
    assert [line.message for line in said[30:]] == [
        "a line of 8 characters was refused: so much at once does not get through"
    ]


def test_limits_hold_while_the_storage_is_away(works: Works, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(outage, "LONGEST_PAUSE", 0.05)
    began, ended = threading.Event(), threading.Event()

    @works.app.task(timeout=DEADLINE, retries=0)
    async def task() -> None:
        began.set()
        try:
            while True:
                current_job().log("on and on")
                await asyncio.sleep(0.01)
        finally:
            ended.set()

    works.open()
    job = task.enqueue()
    works.until(began.is_set)
    works.shaky.is_away = True
    works.worker.loop.held_jobs[job.id].began_at -= DEADLINE  # type: ignore[operator]

    works.until(ended.is_set)
    works.shaky.is_away = False

    assert works.finish(job)[0].reason is Reason.JOB_TIMEOUT


def test_an_idle_worker_survives_an_outage(works: Works, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(outage, "LONGEST_PAUSE", 0.02)

    @works.app.task
    def task() -> None: ...

    works.open()
    works.until(lambda: works.worker.loop.fetcher.pace.idle_wait == 1.0)

    works.shaky.is_away = True
    for name in ("next_due", "wait_and_reserve"):
        works.shaky.is_away, works.shaky.fails = False, {name}
        seen = len(works.shaky.calls)
        works.until(lambda seen=seen, name=name: name in works.shaky.calls[seen:])
    works.shaky.fails = set()

    assert works.finish(task.enqueue())[0].state is COMPLETED


def test_a_job_whose_start_cannot_be_written_is_handed_back(works: Works, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(pace, "LONG_TASK", -1.0)
    monkeypatch.setattr(outage, "LONGEST_PAUSE", 0.02)
    ran = []

    @works.app.task
    def task() -> None:
        ran.append(works.state(job))

    works.open()
    works.shaky.fails = {"start"}
    job = task.enqueue()
    works.until(lambda: works.kinds(job).count(Kind.READDED) >= 1)
    meanwhile = list(ran)
    works.shaky.fails = set()
    works.finish(job)

    assert meanwhile == []
    assert ran == [RUNNING]


def test_an_outcome_whose_answer_was_lost_counts_once(works: Works, gate: threading.Event):
    @works.app.task
    def task() -> str:
        gate.wait(DEADLINE)
        return "once"

    works.open(1)
    job = task.enqueue()
    works.until(lambda: works.worker.loop.held_jobs)
    works.shaky.loses_answers = {"finish", "finish_and_reserve"}
    gate.set()
    works.finish(job)
    works.until(lambda: not works.worker.loop.held_jobs)

    assert works.kinds(job).count(Kind.COMPLETED) == 1
    assert works.worker.loop.finisher.done == 1


def test_jobs_that_were_reserved_and_never_heard_of_are_found(works: Works):
    @works.app.task
    def task() -> None: ...

    works.open()
    jobs = [task.enqueue() for _ in range(3)]
    works.shaky.loses_answers = {"reserve"}

    ended = works.finish(*jobs)

    assert [job.state for job in ended] == [COMPLETED] * 3
    assert all(works.kinds(job).count(Kind.RESERVED) == 1 for job in jobs)


def test_a_worker_with_a_thousand_kept_outcomes_takes_no_more(works: Works, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("packhorse.worker.finisher.MAX_KEPT", 2)

    @works.app.task
    def task() -> None: ...

    works.open(2)
    task.enqueue()
    task.enqueue()
    works.until(lambda: works.worker.loop.held_jobs)
    works.shaky.fails = {"finish", "finish_and_reserve"}
    later = task.enqueue()
    works.until(lambda: works.worker.loop.outcomes.is_full)
    for _ in range(20):
        works.worker.loop.turn(0.005)

    assert works.state(later) is QUEUED


# --- late outcomes --------------------------------------------------------------------------------------------------


def test_an_outcome_of_a_job_that_has_changed_hands_is_dropped_and_said(
    works: Works, gate: threading.Event, caplog: pytest.LogCaptureFixture
):
    @works.app.task
    def task() -> str:
        gate.wait(DEADLINE)
        return "late"

    works.open()
    job = task.enqueue()
    works.until(lambda: works.worker.loop.held_jobs)
    works.storage.rescue_owner("ann", foreman="ann", why="it seemed dead")
    works.storage.join(WorkerInfo("ann"))
    works.worker.loop.fetcher.takes_jobs = False

    gate.set()
    works.until(lambda: not works.worker.loop.held_jobs)

    assert works.state(job) is QUEUED
    assert f"job {job.id} belongs to another worker by now" in caplog.text
    assert works.worker.loop.finisher.done == 0


def test_a_job_that_changes_hands_before_it_begins_does_not_begin(works: Works, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(pace, "LONG_TASK", -1.0)
    ran = []

    @works.app.task
    def task() -> None:
        ran.append(current_job().fence)

    works.open()
    start = works.storage.start

    def rescued_meanwhile(tokens: Any, agos: Any = ()) -> Any:
        works.storage.rescue_owner("ann", foreman="ann", why="it seemed dead")
        works.storage.join(WorkerInfo("ann"))
        monkeypatch.setattr(works.storage, "start", start)
        return start(tokens, agos)

    monkeypatch.setattr(works.storage, "start", rescued_meanwhile)
    (job,) = works.finish(task.enqueue())

    assert ran == [job.fence]


def test_everything_that_a_worker_says_of_a_job_carries_the_jobs_token(works: Works):
    @works.app.task
    def task() -> str:
        job = current_job()
        return f"{job.owner} {job.fence}"

    works.open()
    (job,) = works.finish(task.enqueue())

    assert job.result == f'"ann {job.fence}"'


def test_warnings_of_the_desk_go_to_the_programs_log_only(works: Works, caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO)

    @works.app.task
    def task() -> None:
        logging.getLogger("packhorse.worker").warning("ours")

    works.open()
    job = task.enqueue()
    works.finish(job)

    assert works.log(job) == []


# --- order ----------------------------------------------------------------------------------------------------------


def test_on_one_slot_jobs_begin_in_line_whoever_runs_them(works: Works):
    began: list[int] = []

    @works.app.task(queue="line")
    def plain(number: int) -> None:
        began.append(number)

    @works.app.task(queue="line")
    async def coroutine(number: int) -> None:
        began.append(number)

    works.open(1)
    works.fill_buffer()
    jobs = [(coroutine if number % 3 == 0 else plain).enqueue(number=number) for number in range(30)]
    works.finish(*jobs)

    assert began == list(range(30))


# --- idleness -------------------------------------------------------------------------------------------------------


def test_an_idle_worker_asks_the_storage_at_most_five_times_a_second(works: Works):
    works.app.task(lambda: None, name="task")
    works.run()
    works.until(lambda: works.shaky.calls.count("wait_and_reserve") >= 4)  # it has slowed down to its idle pace
    already = len(works.shaky.calls)
    began_at = time.monotonic()

    works.until(lambda: works.shaky.calls[already:].count("wait_and_reserve") >= 3)

    assert len(works.shaky.calls[already:]) <= 5 * (time.monotonic() - began_at) + 1


def test_what_a_sleeping_worker_gets_although_it_takes_no_more_jobs_is_handed_back(
    works: Works, monkeypatch: pytest.MonkeyPatch
):
    ran = []

    @works.app.task
    def task() -> None:
        ran.append(current_job().fence)

    def told_to_be_quiet_meanwhile(seconds: float, queues: Sequence[str]) -> bool:
        works.worker.quiet()
        jobs.append(task.enqueue())
        return True

    jobs: list[JobHandle[None]] = []
    works.open()
    monkeypatch.setattr(works.storage, "wait", told_to_be_quiet_meanwhile)
    works.until(lambda: jobs)
    works.until(lambda: works.job(jobs[0]).fence == 2)  # reserved, and released

    assert (works.state(jobs[0]), works.job(jobs[0]).attempts) == (QUEUED, 0)
    assert (ran, works.worker.loop.held_jobs) == ([], {})


def test_a_job_that_came_to_a_sleeping_worker_with_an_answer_that_was_lost_is_found_and_run(
    works: Works, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(outage, "LONGEST_PAUSE", 0.02)

    @works.app.task
    def task() -> None: ...

    works.open()
    works.until(lambda: works.worker.loop.fetcher.pace.idle_wait == 1.0)
    monkeypatch.setattr(works.storage, "wait", lambda seconds, queues: True)
    job = task.enqueue()
    works.shaky.loses_answers = {"wait_and_reserve"}

    (ended,) = works.finish(job)

    assert (ended.state, ended.fence, ended.attempts) == (COMPLETED, 1, 1)
    assert not works.shaky.loses_answers


def test_a_question_that_the_storage_answers_long_after_it_was_given_up_loses_no_job(
    works: Works, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(outage, "LONGEST_PAUSE", 0.02)
    monkeypatch.setattr(fetcher, "LATE_CHECKS", (0.2,))

    @works.app.task
    def task() -> None: ...

    works.open()
    works.until(lambda: works.worker.loop.fetcher.pace.idle_wait == 1.0)
    works.shaky.fails = {"wait_and_reserve"}
    works.until(lambda: "find" in works.shaky.calls)  # it looks for what it may hold
    monkeypatch.setattr(works.storage, "reserve", lambda *asked: [])
    job = task.enqueue()

    assert type(works.storage).reserve(works.storage, "ann", {"task": 1}, 5)  # only now
    works.shaky.fails = set()
    (ended,) = works.finish(job)

    assert (ended.state, ended.fence, ended.attempts) == (COMPLETED, 1, 1)


def test_what_a_lost_answer_has_brought_is_looked_for_again_and_again(works: Works, monkeypatch: pytest.MonkeyPatch):
    """The storage may be done with the question long after it was given up: a commit waits for a replica."""
    monkeypatch.setattr(outage, "LONGEST_PAUSE", 0.02)
    monkeypatch.setattr(fetcher, "LATE_CHECKS", (0.0, HOUR))

    @works.app.task
    def task() -> None: ...

    works.open()
    works.shaky.fails = {"reserve", "wait_and_reserve"}
    works.until(lambda: works.worker.loop.fetcher._answer_was_lost)
    works.shaky.fails = set()
    works.until(lambda: works.shaky.calls.count("find") == 2)
    monkeypatch.setattr(works.storage, "reserve", lambda *asked: [])
    job = task.enqueue()
    assert type(works.storage).reserve(works.storage, "ann", {"task": 1}, 5)  # only now

    (last,) = works.worker.loop.fetcher._late_checks
    works.worker.loop.fetcher._late_checks = [last - 2 * HOUR]  # that hour is over
    (ended,) = works.finish(job)

    assert (ended.state, ended.fence, ended.attempts) == (COMPLETED, 1, 1)


def test_an_async_task_below_plain_middleware_that_completes_all_the_same_has_completed(works: Works):
    began, runs = threading.Event(), []

    @works.app.middleware
    def plain(job: JobContext, call: Any) -> Any:
        return call()

    @works.app.task
    async def charge() -> str:
        runs.append(1)
        began.set()
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(DEADLINE)
        return "charged"

    works.open()
    job = charge.enqueue()
    works.until(began.is_set)
    abort(works, job)
    (stored,) = works.finish(job)

    assert (stored.state, stored.result, runs) == (COMPLETED, '"charged"', [1])


def test_jobs_wait_for_no_slot_that_a_blocked_loop_was_given(
    works: Works, gate: threading.Event, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(loop_module, "BUFFER_LIMIT", 0.2)
    blocked = threading.Event()

    @works.app.task
    async def blocker() -> None:
        blocked.set()
        gate.wait(DEADLINE)

    @works.app.task
    async def coroutine() -> None: ...

    @works.app.task
    def plain() -> None: ...

    works.open(2)
    first = blocker.enqueue()
    works.until(blocked.is_set)
    second = coroutine.enqueue()
    works.until(lambda: len(works.worker.loop.held_jobs) == 2)
    job = plain.enqueue()
    works.finish(job)  # the coroutine was handed back after a while, and its slot with it
    was_blocked = works.state(first) is not COMPLETED
    gate.set()
    works.finish(first, second)

    assert was_blocked


def test_a_job_stays_on_the_board_until_its_outcome_is_stored(works: Works, tmp_path: Path):
    shared_status = SharedStatus.create(tmp_path / "shared status", 4)
    works.app.task(lambda: None, name="task")
    works.open(shared_status=shared_status)
    job = works.app.enqueue("task")
    works.until(lambda: works.worker.loop.held_jobs)
    works.shaky.is_away = True
    works.until(lambda: len(works.worker.loop.outcomes) == 1)
    before = shared_status.running()

    works.shaky.is_away = False
    works.finish(job)

    assert before == [job.id]
    assert shared_status.running() == []


def test_no_thread_to_be_had_loses_no_slot(works: Works, monkeypatch: pytest.MonkeyPatch):
    start, failures = threading.Thread.start, [RuntimeError("can't start new thread")]

    def start_or_fail(thread: threading.Thread) -> None:
        if thread.name == "packhorse-slot-1" and failures:
            raise failures.pop()
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_or_fail)
    works.app.task(lambda: None, name="task")
    works.open(2)

    works.finish(*[works.app.enqueue("task") for _ in range(6)])

    # A thread gives its slot back a moment after it has handed in what came of its job.
    works.until(lambda: len(works.worker.loop._slots._free) == 2, "a slot is lost")


# --- short jobs -----------------------------------------------------------------------------------------------------


def test_short_jobs_run_on_one_thread(works: Works, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(loop_module, "STALL", DEADLINE)  # on a slow machine the thread may pause for longer
    monkeypatch.setattr(pace, "SHORT_TASK", DEADLINE)
    threads = set()

    @works.app.task
    def short() -> None:
        threads.add(threading.get_ident())

    works.open(4)
    works.finish(short.enqueue())
    works.until(lambda: works.worker.executors.threads._idle == 1)  # else it would take of the next ones beside another
    threads.clear()
    works.fill_buffer()
    jobs = [short.enqueue() for _ in range(20)]
    works.worker.loop.fetcher.next_ask = 0.0  # it takes them all at once: a second batch may have a thread of its own
    works.finish(*jobs)

    assert len(threads) == 1


def test_the_interpreters_lock_changes_hands_sooner_only_while_jobs_are_short(works: Works):
    short_intervals: list[float] = []
    other_intervals: list[float] = []
    restore_switch_interval()  # as other tests may have left it
    usual = sys.getswitchinterval()

    @works.app.task
    def short() -> None:
        short_intervals.append(sys.getswitchinterval())

    @works.app.task
    async def other() -> None:
        other_intervals.append(sys.getswitchinterval())

    works.open(4)
    deadline = time.monotonic() + DEADLINE
    while pytest.approx(SHORT_INTERVAL) not in short_intervals and time.monotonic() < deadline:
        # Several, for one that comes alone has the lock for itself until it has begun; and again, because on a slow
        # moment it is not known at once that they are short.
        works.finish(*[short.enqueue() for _ in range(10)])
    works.finish(other.enqueue())

    assert short_intervals[0] == other_intervals[0] == pytest.approx(usual)
    assert pytest.approx(SHORT_INTERVAL) in short_intervals


def test_a_short_job_that_takes_long_for_once_holds_up_nobody(works: Works, gate: threading.Event):
    @works.app.task
    def short(blocks: bool = False) -> None:
        if blocks:
            gate.wait(DEADLINE)

    works.open(4)
    works.finish(short.enqueue())
    works.fill_buffer()
    first, *rest = [short.enqueue(blocks=True), *[short.enqueue() for _ in range(10)]]
    works.finish(*rest)
    was_running = works.state(first) is not COMPLETED
    gate.set()
    works.finish(first)

    assert was_running


def test_during_an_outage_each_outcome_is_kept_on_disk_once(works: Works, tmp_path: Path):
    gates = [threading.Event() for _ in range(3)]

    @works.app.task
    def task(number: int) -> None:
        gates[number].wait(DEADLINE)

    path = tmp_path / "storage" / "ann.outcomes"
    works.open(3, spool=str(path))
    jobs = works.app.enqueue_many([task.call(number) for number in range(3)])
    works.until(lambda: all(works.has_begun(job) for job in jobs))
    works.shaky.is_away = True
    for number, gate in enumerate(gates, 1):
        gate.set()
        works.until(lambda number=number: len(works.worker._spooler._kept) == number)

    text = path.read_text()
    assert [text.count(job.id) for job in jobs] == [1, 1, 1]
    assert Spool(path.parent).deliver(works.storage) == Delivery(0, 0), "the worker lives"

    works.shaky.is_away = False
    works.until(lambda: not path.exists())
    assert {works.state(job) for job in jobs} == {COMPLETED}


def test_what_a_worker_leaves_on_disk_at_its_end_is_there_for_others(
    works: Works, gate: threading.Event, tmp_path: Path
):
    @works.app.task
    def task() -> None:
        gate.wait(DEADLINE)

    path = tmp_path / "storage" / "ann.outcomes"
    works.run(1, limits={"abort_grace": 0.0}, spool=str(path))
    job = task.enqueue()
    works.until(lambda: works.has_begun(job))
    works.shaky.is_away = True
    gate.set()
    works.until(lambda: len(works.worker.loop.outcomes) == 1)
    works.worker.quit()

    assert works.ended() == 0
    assert Spool(path.parent).deliver(works.storage) == Delivery(1, 0)
    assert works.state(job) is COMPLETED


def test_an_outcome_is_kept_on_disk_while_the_storage_does_not_answer(
    works: Works, gate: threading.Event, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    answers = threading.Event()
    finish, both = works.storage.finish, works.storage.finish_and_reserve
    monkeypatch.setattr(works.storage, "finish", lambda *args: answers.wait(DEADLINE) and finish(*args))
    monkeypatch.setattr(works.storage, "finish_and_reserve", lambda *args: answers.wait(DEADLINE) and both(*args))

    @works.app.task
    def task() -> None:
        gate.wait(DEADLINE)

    path = tmp_path / "storage" / "ann.outcomes"
    works.run(1, spool=str(path))
    job = task.enqueue()
    works.until(lambda: works.has_begun(job))
    gate.set()
    until(lambda: path.exists() and path.read_text().count(job.id) == 1, "it is on the disk")
    answers.set()
    until(lambda: not path.exists(), "it is delivered, and the file is gone")

    assert works.state(job) is COMPLETED


@pytest.mark.parametrize("call", ["check_in", "append_log"])
def test_an_outcome_is_kept_on_disk_while_another_call_is_not_answered(
    works: Works, gate: threading.Event, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
):
    asked, answers = threading.Event(), threading.Event()
    answer = getattr(works.storage, call)

    def late(*args: Any, **options: Any) -> Any:
        asked.set()
        return answers.wait(DEADLINE) and answer(*args, **options)

    monkeypatch.setattr(works.storage, call, late)

    @works.app.task
    def task() -> None:
        current_job().progress(50)
        gate.wait(DEADLINE)

    path = tmp_path / "storage" / "ann.outcomes"
    works.run(1, spool=str(path))
    job = task.enqueue()
    assert asked.wait(DEADLINE)
    gate.set()
    until(lambda: path.exists() and path.read_text().count(job.id) == 1, "it is on the disk")
    answers.set()
    until(lambda: not path.exists(), "it is delivered, and the file is gone")

    assert works.state(job) is COMPLETED
