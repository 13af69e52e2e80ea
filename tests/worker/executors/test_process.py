"""Isolated jobs in real children: what they say and come to is kept, and whatever happens to them stays theirs."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from packhorse.core.event import Kind
from packhorse.core.job import ABORTED, COMPLETED, DEAD, QUEUED, Job, Reason
from packhorse.core.outcome import Failure
from tests.children import PATIENCE, until
from tests.worker import jobs
from tests.worker.worker_subprocess import OWNER, WorkerSubprocess, descendants, file, is_alive

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks at /proc")


@pytest.fixture
def worker(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[WorkerSubprocess]:
    """A worker that runs; `@pytest.mark.parametrize("worker", [[options]], indirect=True)` gives it options."""
    running = WorkerSubprocess(tmp_path, *getattr(request, "param", ()))
    yield running.start()
    running.close()


@pytest.fixture
def hasty(tmp_path: Path) -> Iterator[WorkerSubprocess]:
    """A worker with little patience."""
    running = WorkerSubprocess(tmp_path, PACKHORSE_ABORT_GRACE="0.3")
    yield running.start()
    running.close()


def error_of(job: Job) -> str:
    assert job.error is not None
    return Failure.from_json(job.error).summary()


# --- what comes out -------------------------------------------------------------------------------------------------


def test_children_run_jobs_and_are_used_again(worker: WorkerSubprocess):
    one, two = worker.enqueue("isolated_pid"), worker.enqueue("isolated_coroutine", number=6)
    first = worker.ended(one).result
    number = worker.ended(two).result
    again = [worker.ended(worker.enqueue("isolated_pid")).result for _ in range(3)]
    here = worker.ended(worker.enqueue("pid")).result

    assert number == "7"
    assert first != here == str(worker.process.pid)
    assert len({first, *again}) <= 2  # the two first jobs may each have got a child


@pytest.mark.parametrize("worker", [["--max-jobs-per-child", 2]], indirect=True)
def test_a_child_is_replaced_after_so_many_jobs(worker: WorkerSubprocess):
    pids = [worker.ended(worker.enqueue("isolated_pid")).result for _ in range(6)]

    assert pids[0] == pids[1] != pids[2] == pids[3] != pids[4] == pids[5]
    assert len(set(pids)) == 3


def test_what_a_child_says_is_in_the_jobs_log(worker: WorkerSubprocess):
    job = worker.enqueue("speak")
    ended = worker.ended(job)

    lines = worker.log(job)
    lines.remove("70 % most of it")  # its place says when the loop came by
    assert lines == [
        "one",
        "two",
        "odd \\udc80 text",
        "to stderr",
        "info shop: logged",
        "told",
        "100 %",
        "no newline",
    ]
    assert (ended.progress, ended.progress_text) == (70, "most of it")


def test_what_a_child_prints_is_shortened(worker: WorkerSubprocess):
    job = worker.enqueue("print_much", size=3_000_000)
    worker.ended(job)

    (line,) = worker.log(job)
    assert len(line) <= 10_001


def test_an_error_in_a_child_comes_with_its_traceback(worker: WorkerSubprocess):
    job = worker.ended(worker.enqueue("raise_error"))

    assert job.state is DEAD
    assert error_of(job) == "ValueError: in the child"
    failure = Failure.from_json(job.error or "")
    assert failure.place is not None
    assert "jobs.py:" in failure.place
    assert "packhorse/worker" not in (failure.traceback or "")


def test_leaving_politely_is_a_failure_and_the_child_stays(worker: WorkerSubprocess):
    job = worker.ended(worker.enqueue("exit_politely"))

    assert (job.state, job.halts) == (DEAD, 0)
    assert error_of(job) == "SystemExit: 3"


def test_a_coroutine_that_cancels_itself_has_failed(worker: WorkerSubprocess):
    job = worker.ended(worker.enqueue("cancel_itself"))

    assert (job.state, job.failures, job.halts) == (DEAD, 1, 0)
    assert error_of(job) == "CancelledError"


def test_an_isolated_job_may_enqueue_others(worker: WorkerSubprocess):
    result = worker.ended(worker.enqueue("enqueue_another")).result
    assert result is not None

    assert worker.ended(worker.app.get(result.strip('"'))).result == "3"


# --- deaths ---------------------------------------------------------------------------------------------------------


def test_a_child_that_dies_halts_its_job_alone_and_too_often_kills_it(worker: WorkerSubprocess):
    neighbour = worker.enqueue("wait_for", path=str(worker.directory / "go"))
    job = worker.enqueue("segfault")
    ended = worker.ended(job)
    (worker.directory / "go").touch()

    assert (ended.state, ended.reason, ended.halts, ended.failures) == (DEAD, Reason.RUNNER_TIMEOUT, 2, 0)
    assert "was killed by SIGSEGV" in error_of(ended)
    assert [kind for kind in worker.kinds(job) if kind in (Kind.STARTED, Kind.HALTED, Kind.BROKEN)] == [
        Kind.STARTED,
        Kind.HALTED,
        Kind.STARTED,
        Kind.BROKEN,
    ]
    assert worker.ended(neighbour).result == '"done"'
    assert worker.process.poll() is None


def test_the_exit_code_of_a_child_is_told(worker: WorkerSubprocess):
    job = worker.ended(worker.enqueue("exit_hard", code=42))

    assert (job.state, job.halts) == (DEAD, 1)
    assert error_of(job).endswith("ended with exit code 42")


def test_a_job_that_takes_too_much_memory_is_ended(worker: WorkerSubprocess):
    job = worker.ended(worker.enqueue("hog", mebibytes=160))

    assert (job.state, job.failures, job.halts) == (DEAD, 1, 0)
    assert error_of(job).startswith("MemoryLimit: it held ")
    assert error_of(job).endswith("its limit is 96 MiB")


def test_a_plain_function_with_a_time_limit_is_isolated_and_ended(worker: WorkerSubprocess):
    job = worker.ended(worker.enqueue("too_slow"))

    assert (job.state, job.reason) == (ABORTED, Reason.JOB_TIMEOUT)
    assert error_of(job) == "Timeout: it ran for longer than 0.2 s"


# --- aborts ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("task", ["clean_up", "clean_up_coroutine"])
def test_an_aborted_child_may_clean_up(worker: WorkerSubprocess, task: str):
    began, cleaned = worker.directory / "began", worker.directory / "cleaned"
    job = worker.enqueue(task, began=str(began), cleaned=str(cleaned))
    file(began)

    worker.abort(job)
    worker.abort(job)  # a foreman says it again and again; that must not disturb the cleaning up
    ended = worker.ended(job)

    assert (ended.state, ended.reason, ended.failures, ended.halts) == (ABORTED, Reason.ABORTED, 0, 0)
    assert cleaned.exists()


def test_a_child_that_heeds_its_check_in_is_aborted_too(worker: WorkerSubprocess):
    began = worker.directory / "began"
    job = worker.enqueue("stop_when_asked", began=str(began))
    file(began)

    worker.abort(job)
    ended = worker.ended(job)

    assert (ended.state, ended.result) == (ABORTED, None)


def test_a_child_that_is_deaf_is_killed_after_the_grace(hasty: WorkerSubprocess):
    began = hasty.directory / "began"
    job = hasty.enqueue("deaf", began=str(began))
    file(began)

    hasty.abort(job)
    ended = hasty.ended(job)

    assert (ended.state, ended.reason, ended.halts) == (ABORTED, Reason.ABORTED, 0)
    assert Kind.HALTED not in hasty.kinds(job)
    assert hasty.process.poll() is None


def test_a_child_that_was_told_to_stop_gets_no_further_job(worker: WorkerSubprocess):
    began = worker.directory / "began"
    job = worker.enqueue("stop_when_asked", began=str(began))
    file(began)
    (told,) = set(descendants(worker.process.pid)) - {_fork_server(worker)}
    worker.abort(job)
    worker.ended(job)

    pids = {worker.ended(worker.enqueue("isolated_pid")).result for _ in range(3)}

    assert str(told) not in pids
    until(lambda: not is_alive(told), "the child ends")


# --- nobody is left behind ------------------------------------------------------------------------------------------


def _fork_server(worker: WorkerSubprocess) -> int:
    (fork_server,) = [pid for pid in descendants(worker.process.pid) if os.getpgid(pid) == worker.process.pid]
    return fork_server


def _with_grandchild(worker: WorkerSubprocess, then: str) -> tuple[int, int]:
    path = worker.directory / "pids"
    worker.enqueue("have_child", path=str(path), then=then)
    child, grandchild = file(path).read_text().split()
    return int(child), int(grandchild)


def test_what_a_killed_child_had_started_is_killed_too(worker: WorkerSubprocess):
    _, grandchild = _with_grandchild(worker, "die")

    until(lambda: not is_alive(grandchild), "the grandchild ends")


def test_what_an_aborted_child_had_started_is_killed_too(worker: WorkerSubprocess):
    path = worker.directory / "pids"
    job = worker.enqueue("have_child", path=str(path), then="wait")
    _, grandchild = map(int, file(path).read_text().split())

    worker.abort(job)
    worker.ended(job)

    until(lambda: not is_alive(grandchild), "the grandchild ends")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_a_worker_that_is_killed_leaves_nobody_behind(worker: WorkerSubprocess, number: int):
    child, grandchild = _with_grandchild(worker, "wait")
    everybody = {*descendants(worker.process.pid), child, grandchild}

    worker.process.send_signal(number)
    worker.process.wait(PATIENCE)

    until(lambda: not any(is_alive(pid) for pid in everybody), "everybody ends")
    assert len(everybody) >= 3


@pytest.mark.parametrize("order", ["drain", "quit", "hang up"])
def test_a_worker_that_ends_in_order_leaves_nobody_behind(worker: WorkerSubprocess, order: str):
    pid = worker.ended(worker.enqueue("isolated_pid")).result
    everybody = descendants(worker.process.pid)

    if order == "hang up":
        worker.channel.hang_up()
    else:
        worker.send({"do": order})
    code, err = worker.wait()

    assert (code, err) == (0, "")
    assert int(pid or 0) in everybody
    until(lambda: not any(is_alive(pid) for pid in everybody), "everybody ends")


def test_quitting_hands_an_isolated_job_back_uncounted(worker: WorkerSubprocess):
    began = worker.directory / "began"
    job = worker.enqueue("deaf", began=str(began))
    file(began)

    worker.send({"do": "quit"})

    assert worker.wait()[0] == 0
    stored = worker.job(job)
    assert (stored.state, stored.halts, stored.failures, stored.losses) == (QUEUED, 0, 0, 0)


@pytest.mark.parametrize("worker", [["--stop-grace", 0.05]], indirect=True)
def test_a_child_that_outlasts_the_grace_of_a_drain_may_clean_up_and_is_handed_back(worker: WorkerSubprocess):
    began, cleaned = worker.directory / "began", worker.directory / "cleaned"
    job = worker.enqueue("clean_up", began=str(began), cleaned=str(cleaned))
    file(began)

    worker.send({"do": "drain"})

    assert worker.wait()[0] == 0
    assert cleaned.exists()
    stored = worker.job(job)
    assert (stored.state, stored.halts, stored.failures, stored.losses) == (QUEUED, 0, 0, 0)


def test_without_its_fork_server_a_worker_lets_neighbours_finish_and_ends(worker: WorkerSubprocess):
    go = worker.directory / "go"
    neighbour = worker.enqueue("wait_for", path=str(worker.directory / "done"))
    job = worker.enqueue("kill_the_fork_server", wait_for=str(go))
    until(lambda: worker.state(job) is not QUEUED and worker.state(neighbour) is not QUEUED, "both begin")
    until(lambda: len(worker.shared_status.running()) == 2, "both are on the shared status")
    children = descendants(worker.process.pid)

    go.touch()
    until(lambda: any(one["say"] == "stuck" for one in worker.said), "it is stuck")
    until(lambda: not any(is_alive(pid) for pid in children), "the children end")
    (worker.directory / "done").touch()
    code, err = worker.wait()

    assert code == 70
    assert "the fork server of isolated jobs has died; this worker will be replaced" in err
    assert worker.state(neighbour) is COMPLETED
    assert worker.job(job).halts == 1
    assert worker.state(job) is QUEUED
    assert OWNER not in [one.id for one in worker.storage.workers()]


@pytest.mark.parametrize("worker", [["--concurrency", 1]], indirect=True)
def test_an_isolated_job_that_has_not_begun_is_aborted_without_a_child(worker: WorkerSubprocess):
    began = worker.directory / "began"
    quick = worker.app.enqueue_many([jobs.add.call(1, 2) for _ in range(20)])  # so that it takes several together
    until(lambda: all(worker.state(job) is COMPLETED for job in quick), "the quick ones end")
    first, waiting = worker.enqueue("deaf", began=str(began)), worker.enqueue("isolated_pid")
    until(lambda: worker.shared_status.running() == [first.id] and worker.was_taken(waiting), "one begins, one waits")

    worker.abort(waiting)
    ended = worker.ended(waiting)

    assert (ended.state, ended.reason, ended.attempts) == (ABORTED, Reason.ABORTED, 0)
    assert worker.shared_status.running() == [first.id]
