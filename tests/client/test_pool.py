"""A pool: jobs that run inside of this very program."""

from __future__ import annotations

import asyncio
import logging
import os
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from packhorse import BadValue, Packhorse, SchemaTooNew, current_job
from packhorse.client.job import JobHandle
from packhorse.core.event import Kind, Subject
from packhorse.foreman import embedded
from packhorse.worker import fetcher, pace
from packhorse.worker.config import WorkerLimits
from packhorse.worker.fetcher import Admission
from packhorse.worker.held_job import unreturned_ids
from tests.children import PATIENCE, ROOT, until
from tests.storage.conftest import ADDRESSES, give_back, storages


@pytest.fixture(params=storages("memory", "sqlite"))
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    url = ADDRESSES[request.param](tmp_path)
    yield url
    give_back(url)


@pytest.fixture
def app(tmp_path: Path) -> Iterator[Packhorse]:
    with Packhorse(f"sqlite:///{tmp_path / 'jobs.db'}") as app:
        yield app


def shop(app: Packhorse) -> list[Any]:
    @app.task
    def double(n: int) -> int:
        return 2 * n

    @app.task
    async def treble(n: int) -> int:
        await asyncio.sleep(0)
        return 3 * n

    return [double, treble]


def test_jobs_run_in_this_process_and_after_a_second_start_too(url: str):
    with Packhorse(url) as app:
        double, treble = shop(app)
        app.register("pid", os.getpid)
        pool = app.pool(concurrency=3)

        pool.start()
        first = [double.enqueue(n) for n in range(20)] + [app.enqueue("pid")]
        pool.drain()
        assert [job.result for job in first] == [*range(0, 40, 2), os.getpid()]
        pool.stop()
        second = treble.enqueue(5)
        assert second.refresh().state == "queued"
        pool.start()

        assert second.wait(timeout=PATIENCE) == 15
        pool.stop()
        assert [worker.id for worker in app.workers() if worker.subject is not Subject.CLIENT] == []


def test_drain_works_until_nothing_is_left_also_of_what_comes_in_meanwhile(url: str):
    with Packhorse(url) as app:

        @app.task
        def countdown(n: int) -> None:
            if n:
                countdown.enqueue(n - 1)

        countdown.enqueue(7)
        later = countdown.enqueue_in("1h", 1)
        app.pool(concurrency=2).drain()

        assert app.count(state="completed") == 8
        assert later.refresh().state == "scheduled"


def test_draining_a_pool_that_does_not_run_leaves_it_stopped_and_one_that_runs_running(app: Packhorse):
    double, _ = shop(app)
    job, pool = double.enqueue(1), app.pool(2)

    pool.drain()
    assert (job.result, pool.is_running) == (2, False)
    with pool:
        pool.drain()
        assert pool.is_running
        assert double.enqueue(4).wait(timeout=PATIENCE) == 8
    assert not pool.is_running


def test_starting_and_stopping_twice_does_nothing(app: Packhorse):
    pool = app.pool(2)
    pool.stop()

    pool.start()
    pool.start()
    until(lambda: len(app.workers()) == 2, "the pool and its worker are known")
    assert repr(pool) == "<Pool of 2>"
    pool.stop()
    pool.stop()

    assert app.workers() == []
    assert repr(pool) == "<Pool of 2, stopped>"
    assert not hasattr(pool, "join")


def test_a_pool_runs_as_many_jobs_as_its_concurrency(app: Packhorse):
    running, most, lock = 0, 0, threading.Lock()
    three = threading.Barrier(3)

    @app.task
    def busy() -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        three.wait(PATIENCE)
        with lock:
            running -= 1

    app.enqueue_many([busy.call() for _ in range(12)])
    app.pool(concurrency=3).drain()

    assert most == 3


def test_stopping_lets_the_running_job_finish_and_leaves_the_next_in_line(app: Packhorse):
    begun, may_end = threading.Event(), threading.Event()

    @app.task
    def slow() -> str:
        begun.set()
        may_end.wait(PATIENCE)
        return "done"

    first, second = slow.enqueue(), slow.enqueue()
    pool = app.pool(1).start()
    assert begun.wait(PATIENCE)
    stopping = threading.Thread(target=pool.stop)
    stopping.start()
    until(lambda: not pool.is_running, "it was told")
    may_end.set()
    stopping.join(PATIENCE)

    assert (first.result, second.refresh().state) == ("done", "queued")


def test_a_running_job_can_be_aborted_and_is_beaten_for(app: Packhorse):
    @app.task
    def patient() -> str:
        while not current_job().checkin():
            time.sleep(0.01)
        return "stopped"

    with app.pool(1):
        job = patient.enqueue()
        until(lambda: job.refresh().state == "running", "it runs")
        job.abort(by="ann")
        until(lambda: job.refresh().is_finished, "it ends")

    assert job.state == "aborted"


def test_schedules_tick_and_delays_end(app: Packhorse):
    ran = threading.Event()

    @app.schedule("@every 1s")
    @app.task
    def tick() -> None:
        ran.set()

    double, _ = shop(app)
    with app.pool(2):
        later = double.enqueue_in(0.2, 4)
        assert ran.wait(PATIENCE)
        assert later.wait(timeout=PATIENCE) == 8


def test_only_the_named_queues_are_served(app: Packhorse):
    double, treble = shop(app)
    jobs = [double.enqueue(1), treble.enqueue(1)]

    app.pool(2, queues=["treb*"]).drain()

    assert [job.refresh().state for job in jobs] == ["queued", "completed"]


def test_a_pool_leaves_the_programs_logging_alone(app: Packhorse):
    levels: list[int] = []

    @app.task
    def look() -> None:
        levels.append(logging.getLogger().level)

    before = logging.getLogger().level
    look.enqueue()
    app.pool(1).drain()

    assert levels == [before]


def test_stopping_a_pool_waits_for_the_call_that_is_under_way(app: Packhorse, monkeypatch: pytest.MonkeyPatch):
    shop(app)
    begun, may_answer, answered = threading.Event(), threading.Event(), threading.Event()
    outlook = type(app.storage).poll

    def slow_outlook(*args: Any, **options: Any) -> Any:
        begun.set()
        may_answer.wait(PATIENCE)
        answered.set()
        return outlook(*args, **options)

    monkeypatch.setattr(embedded, "_EXIT_TIMEOUT", PATIENCE)
    monkeypatch.setattr(type(app.storage), "poll", slow_outlook)
    pool = app.pool(1).start()
    assert begun.wait(PATIENCE)
    stopping = threading.Thread(target=pool.stop)
    stopping.start()
    until(lambda: not pool.is_running, "it was told")
    stopping.join(1.0)

    assert stopping.is_alive()
    may_answer.set()
    stopping.join(PATIENCE)
    assert (answered.is_set(), stopping.is_alive()) == (True, False)


def test_an_operator_stops_a_pool_from_elsewhere(app: Packhorse):
    shop(app)
    pool = app.pool(1).start()
    until(lambda: len(app.workers()) == 2, "it is known")
    words = ["stop", "--all", "--url", app.settings.url]
    subprocess.run([sys.executable, "-m", "packhorse", *words], cwd=ROOT, check=True, capture_output=True)

    until(lambda: not pool.is_running, "it stops")
    pool.stop()


def order(app: Packhorse, *words: str) -> tuple[int, str]:
    """Give an order as an operator does, from another program: how it ended, and what it said."""
    command = [sys.executable, "-m", "packhorse", *words, "--yes", "--url", app.settings.url]
    ended = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    return ended.returncode, ended.stdout + ended.stderr


def name_of(app: Packhorse, subject: Subject) -> str:
    """How an operator names the only one of these: by the end of its id, which may start with a dash."""
    return next(each.id[1:].lstrip("-") for each in app.workers() if each.subject is subject)


def test_a_pool_answers_who_has_it_take_no_more_jobs(app: Packhorse):
    double, _ = shop(app)
    with app.pool(1):
        until(lambda: len(app.workers()) == 2, "it is known")

        code, told = order(app, "quiet", "--all", "--wait", "30s")

        assert (code, "takes no more jobs" in told) == (0, True), told
        waiting = double.enqueue(1)
        time.sleep(0.3)
        assert waiting.refresh().state == "queued"


def test_a_pool_tells_where_its_jobs_stand(app: Packhorse):
    has_begun, may_end = threading.Event(), threading.Event()

    @app.task
    def stand_here() -> None:
        has_begun.set()
        may_end.wait(PATIENCE)

    with app.pool(1):
        job = stand_here.enqueue()
        assert has_begun.wait(PATIENCE)
        code, told = order(app, "stacks", "--all", "--wait", "30s")
        may_end.set()

    assert code == 0, told
    assert job.id in told
    assert "<locals>.stand_here" in told


@pytest.mark.parametrize("words", [["restart"], ["scale", "3"]])
def test_an_order_that_means_nothing_to_a_pool_is_refused(app: Packhorse, words: list[str]):
    shop(app)
    with app.pool(1):
        until(lambda: len(app.workers()) == 2, "it is known")
        everyone = order(app, *words, "--all")
        alone = order(app, *words, name_of(app, Subject.FOREMAN if words[0] == "scale" else Subject.WORKER))

    assert (everyone[0], alone[0]) == (2, 2), (everyone, alone)
    assert f"is a pool in a program, which an order cannot {words[0]}" in everyone[1]
    assert f"is a pool in a program, which an order cannot {words[0]}" in alone[1]


def test_closing_the_app_stops_its_pools(app: Packhorse):
    pool = app.pool(1).start()

    app.close()

    assert not pool.is_running


PROGRAM = """
import time
from packhorse import Packhorse
app = Packhorse("sqlite:///jobs.db")

@app.task
def slow() -> str:
    time.sleep(1.5)
    return "done"

job = slow.enqueue()
app.pool(2).start()
while job.refresh().state != "running":
    time.sleep(0.01)
"""


def test_a_program_that_ends_waits_for_the_jobs_of_its_pool(tmp_path: Path):
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=tmp_path,
        env=environment,
        check=False,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )

    assert (ran.returncode, ran.stderr) == (0, "")
    with Packhorse(f"sqlite:///{tmp_path / 'jobs.db'}") as app:
        (job,) = app.jobs()
        assert (job.result, job.attempts, app.workers()) == ("done", 1, [])


def test_what_a_job_came_to_while_the_storage_was_away_is_delivered_by_the_next_pool(tmp_path: Path):
    begun, may_end, runs = threading.Event(), threading.Event(), []
    url = f"sqlite:///{tmp_path / 'jobs.db'}?patience=100ms"
    with Packhorse(url, stop_grace=1, abort_grace=0.5) as app:

        @app.task
        def once() -> str:
            runs.append(1)
            begun.set()
            may_end.wait(PATIENCE)
            return "done"

        job, pool = once.enqueue(), app.pool(1).start()
        assert begun.wait(PATIENCE)
        until(lambda: job.refresh().state == "running", "the storage knows that it runs")
        held = sqlite3.connect(tmp_path / "jobs.db", isolation_level=None)
        held.execute("BEGIN IMMEDIATE")  # from here on every write fails
        may_end.set()
        pool.stop()
        held.execute("ROLLBACK")
        held.close()
        pool.drain()

        assert (job.result, len(runs), job.halts) == ("done", 1, 0)


def test_what_a_killed_program_had_in_hand_is_run_by_the_next_pool(tmp_path: Path):
    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAM.replace("time.sleep(1.5)", "time.sleep(600)") + "time.sleep(600)\n"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    with Packhorse(f"sqlite:///{tmp_path / 'jobs.db'}") as app:
        app.register("slow", lambda: "done")
        until(lambda: app.count(state="running") == 1, "the job runs")
        program.kill()
        program.wait(PATIENCE)
        app.pool(1).drain()

        (job,) = app.jobs()
        assert (job.result, job.halts) == ("done", 1)


# --- jobs that do not end ---------------------------------------------------------------------------------------------


class Stubborn:
    """A task that does not end at its time limit until it may; how often it started, and how often concurrently."""

    def __init__(self, app: Packhorse) -> None:
        self.may_end = threading.Event()
        self.began = self.running = self.most = 0
        self._lock = threading.Lock()
        self.task = app.register("stubborn", self.run, timeout="200ms", retries=2, backoff=0)

    def run(self) -> str:
        with self._lock:
            self.began += 1
            self.running += 1
            self.most = max(self.most, self.running)
        if self.began == 1:
            self.may_end.wait(PATIENCE)
        with self._lock:
            self.running -= 1
        return "done"


def was_refused(app: Packhorse, job: JobHandle[Any], where: str = "worker") -> bool:
    """Has a worker taken it, and released it because its last run continues?"""
    why = [(event.data or {}).get("why", "") for event in app.events(job=job.id) if event.kind is Kind.READDED]
    return any(f"its last run was given up and still continues in {where}" in each for each in why)


def test_a_job_that_does_not_end_does_not_run_beside_itself(url: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(fetcher, "DOUBLE_WAIT", 100_000)
    with Packhorse(url, abort_grace=0.1) as app:
        stubborn, (double, _) = Stubborn(app), shop(app)
        with app.pool(2):
            job = app.enqueue("stubborn")
            until(lambda: was_refused(app, job), "another worker gets it, and does not start it")
            assert double.enqueue(4).wait(timeout=PATIENCE) == 8
            assert sorted(worker.concurrency for worker in app.workers() if worker.subject is Subject.WORKER) == [0, 2]
            assert job.refresh().error is not None
            assert job.error.message == (
                "it ran for longer than 0.2 s, and did not end when asked: it runs in its program until it returns"
            )
            stubborn.may_end.set()

            assert job.wait(timeout=PATIENCE) == "done"
            assert (stubborn.began, stubborn.most) == (2, 1)
            of_workers = lambda: [each for each in app.workers() if each.subject is Subject.WORKER]  # noqa: E731
            until(lambda: len(of_workers()) == 1, "its first worker is gone")


def test_a_pool_with_a_job_that_does_not_end_stops_immediately(app: Packhorse):
    stubborn = Stubborn(app)
    pool = app.pool(1).start()
    job = app.enqueue("stubborn")
    until(lambda: job.refresh().failures == 1, "it is given up")

    began_at = time.monotonic()
    pool.stop()

    assert time.monotonic() - began_at < app.settings.stop_grace / 1_000_000
    assert [each for each in app.workers() if each.subject is not Subject.CLIENT] == []
    assert stubborn.running == 1
    stubborn.may_end.set()


@pytest.mark.parametrize("is_async", [False, True])
def test_a_job_that_runs_on_after_the_stop_does_not_begin_beside_itself_after_the_next_start(
    is_async: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(fetcher, "DOUBLE_WAIT", 100_000)
    begun, may_end, runs = threading.Event(), threading.Event(), []
    with Packhorse(f"sqlite:///{tmp_path / 'jobs.db'}", stop_grace=0.1, abort_grace=0.1) as app:

        def busy() -> str:
            runs.append(may_end.is_set())
            begun.set()
            may_end.wait(PATIENCE)
            return "done"

        async def blocking() -> str:
            return busy()

        app.register("busy", blocking if is_async else busy)
        job, pool = app.enqueue("busy"), app.pool(1).start()
        assert begun.wait(PATIENCE)
        pool.stop()
        assert [record.levelname for record in caplog.records if f"in this program: {job.id};" in record.message] == [
            "WARNING"
        ]
        with app.pool(1):  # another pool of this program
            until(lambda: was_refused(app, job, "this program"), "it is released")
            may_end.set()

            assert job.wait(timeout=PATIENCE) == "done"
        assert runs == [False, True]
        assert (job.failures, job.halts) == (0, 0)


def test_a_job_whose_time_was_over_waits_for_its_last_run_also_after_a_stop(
    app: Packhorse, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(fetcher, "DOUBLE_WAIT", 100_000)
    stubborn, pool = Stubborn(app), app.pool(1)
    with pool:
        job = app.enqueue("stubborn")
        until(lambda: job.refresh().failures == 1, "it is given up")
    with pool:
        until(lambda: was_refused(app, job, "this program"), "it is released")
        stubborn.may_end.set()

        assert job.wait(timeout=PATIENCE) == "done"
    assert (stubborn.began, stubborn.most) == (2, 1)


def test_a_coroutine_that_swallows_its_cancellation_ends_with_its_loop_and_begins_again(tmp_path: Path):
    begun, runs = threading.Event(), []
    with Packhorse(f"sqlite:///{tmp_path / 'jobs.db'}", stop_grace=0.1, abort_grace=0.1) as app:

        @app.task
        async def deaf() -> str:
            runs.append(1)
            begun.set()
            while len(runs) == 1:
                with suppress(asyncio.CancelledError):
                    await asyncio.sleep(PATIENCE)
            return "done"

        job, pool = deaf.enqueue(), app.pool(1).start()
        assert begun.wait(PATIENCE)
        pool.stop()
        with pool:
            assert job.wait(timeout=PATIENCE) == "done"


def test_a_job_that_runs_on_while_the_storage_is_away_is_not_forgotten(tmp_path: Path):
    begun, may_end = threading.Event(), threading.Event()
    url = f"sqlite:///{tmp_path / 'jobs.db'}?patience=100ms"
    with Packhorse(url, stop_grace=0.1, abort_grace=0.1) as app:

        @app.task
        def busy() -> None:
            begun.set()
            may_end.wait(PATIENCE)

        job, pool = busy.enqueue(), app.pool(1).start()
        assert begun.wait(PATIENCE)
        until(lambda: job.refresh().state == "running", "the storage knows that it runs")
        held = sqlite3.connect(tmp_path / "jobs.db", isolation_level=None)
        held.execute("BEGIN IMMEDIATE")  # from here on every write fails
        pool.stop()
        held.execute("ROLLBACK")
        held.close()

        assert job.id in unreturned_ids()
        may_end.set()
        until(lambda: job.id not in unreturned_ids(), "it has returned")


def test_a_job_beside_one_that_does_not_end_runs_once(app: Packhorse, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(embedded, "WorkerLimits", partial(WorkerLimits, other_jobs=0.1))
    stubborn, may_end, runs = Stubborn(app), threading.Event(), []

    @app.task
    def beside() -> str:
        runs.append(1)
        may_end.wait(PATIENCE)
        return "done"

    double, _ = shop(app)
    with app.pool(2) as pool:
        other, job = beside.enqueue(), app.enqueue("stubborn")
        until(lambda: job.refresh().failures == 1, "it is given up")
        assert double.enqueue(4).wait(timeout=PATIENCE) == 8  # by the next worker
        draining = threading.Thread(target=pool.drain)
        draining.start()
        until(lambda: other.refresh().state == "running", "it runs on")
        may_end.set()
        draining.join(PATIENCE)

        assert (other.result, len(runs)) == ("done", 1)
        stubborn.may_end.set()


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{"isolate": True}, {"memory_limit": "64MiB"}])
def test_a_task_that_wants_a_process_of_its_own_is_refused(app: Packhorse, options: Any):
    app.register("alone", lambda: None, **options)

    with pytest.raises(BadValue, match=r"the task alone has .* a pool cannot give it a process of its own"):
        app.pool().start()


@pytest.mark.parametrize("concurrency", [0, -1, "many", 2.5])
def test_a_wrong_number_is_refused(app: Packhorse, concurrency: Any):
    with pytest.raises(Exception, match="concurrency"):
        app.pool(concurrency)


@pytest.mark.parametrize(
    ("queues", "why"),
    [
        ([], "queues names no queue"),
        (["mail", 3], "queue name must be text, not 3"),
        ([""], "queue name must be text, not ''"),
        (["a b"], "queue name 'a b' contains ' '"),
        (["a b*"], "contains ' '"),
        ("mail", "queues must be a list of names"),
    ],
)
def test_queues_that_cannot_be_are_refused(app: Packhorse, queues: Any, why: str):
    with pytest.raises(BadValue, match=why):
        app.pool(queues=queues)


def test_drain_raises_for_a_storage_that_cannot_be_used(app: Packhorse):
    app.count()
    app.storage._db.write("spoil", lambda tx: tx.execute("UPDATE packhorse_meta SET value = 9999"))  # type: ignore[attr-defined]
    app.storage.close()

    with pytest.raises(SchemaTooNew):
        app.pool(1).drain()


class Broken(Exception):
    """A mistake in the worker itself."""


@pytest.fixture
def broken(app: Packhorse, monkeypatch: pytest.MonkeyPatch) -> JobHandle[Any]:
    """A job that its worker stumbles over."""

    def stumble(self: Admission, jobs: Any) -> Any:
        raise Broken("of the worker's own")

    job = shop(app)[0].enqueue(1)
    monkeypatch.setattr(Admission, "admit", stumble)
    return job


def test_a_pool_that_an_error_has_ended_is_not_taken_for_an_empty_one(
    app: Packhorse, broken: JobHandle[Any], caplog: pytest.LogCaptureFixture
):
    with pytest.raises(Broken, match="of the worker's own"):
        app.pool(1).drain()

    assert [record.levelname for record in caplog.records if record.exc_info and "pool" in record.message] == ["ERROR"]
    assert [each for each in app.workers() if each.subject is not Subject.CLIENT] == []


def test_stopping_a_pool_that_an_error_has_ended_raises_it_once(app: Packhorse, broken: JobHandle[Any]):
    pool = app.pool(1).start()
    until(lambda: not pool.is_running, "it has ended by itself")

    with pytest.raises(Broken):
        pool.stop()
    pool.stop()


def test_the_error_that_has_ended_a_pool_hides_no_other(app: Packhorse, broken: JobHandle[Any]):
    def fail() -> None:
        with app.pool(1) as pool:
            until(lambda: not pool.is_running, "it has ended by itself")
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    app.pool(1).start()
    app.close()


def test_a_pool_serves_a_queue_that_no_task_names(app: Packhorse) -> None:
    task = app.task(name="answer")(lambda: 7)
    with app.pool(concurrency=1):
        job = task.using(queue="bulk").enqueue()
        until(lambda: job.refresh().is_finished, "it is done")


def test_a_pool_tells_handlers_of_jobs_that_ended_in_no_worker_also_while_it_did_not_run(url: str):
    with Packhorse(url) as app:
        double, _ = shop(app)
        told: list[str] = []
        app.on_failure(lambda job: told.append(job.id))

        with app.pool(concurrency=1):
            first = double.using(delay=3600).enqueue(1)
            until(lambda: any("results_told_to" in (event.data or {}) for event in app.events()), "it looks for ends")
            first.abort()
            until(lambda: told == [first.id], "the handler was called")
        second = double.using(delay=3600).enqueue(2)
        second.abort()
        with app.pool(concurrency=1):
            until(lambda: len(told) > 1, "the handler was called for what ended meanwhile")

    assert told == [first.id, second.id]


def test_a_pool_that_is_never_idle_serves_such_a_queue_too(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetcher, "LOOK_ALONE", 0.1)
    monkeypatch.setattr(pace, "LOOK_AHEAD", 0.0)  # it takes one job at a time, and always finds one
    with Packhorse(url) as app:
        seen: list[str] = []

        @app.task
        def again() -> None:
            """There is always another job waiting."""
            if not seen and time.monotonic() < ends_at:
                again.enqueue()

        @app.task
        def look() -> None:
            seen.append("bulk")

        ends_at = time.monotonic() + PATIENCE
        app.enqueue_many([again.call() for _ in range(20)])
        with app.pool(concurrency=1):
            until(lambda: app.count(task="again", state="completed") > 0, "it is busy")
            job = look.using(queue="bulk", priority=10).enqueue()
            assert job.wait(timeout=PATIENCE) is None
            assert time.monotonic() < ends_at
