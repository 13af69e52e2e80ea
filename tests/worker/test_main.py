"""`python -m packhorse.worker` from its start to its exit code, on a SQLite file."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FrameType
from typing import Any, cast

import pytest

from packhorse import Packhorse
from packhorse.core.event import Kind
from packhorse.core.job import COMPLETED, QUEUED
from packhorse.storage.records import WorkerInfo
from packhorse.worker.__main__ import _take_signals
from packhorse.worker.ipc import Channel
from packhorse.worker.process import WorkerProcess
from tests.children import PATIENCE, ROOT, until
from tests.worker import jobs
from tests.worker.worker_subprocess import OWNER, WorkerSubprocess, is_alive


@pytest.fixture
def worker(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[WorkerSubprocess]:
    """A worker that is yet to start; its parameters are options."""
    running = WorkerSubprocess(tmp_path, *getattr(request, "param", ()))
    yield running
    running.close()


def typed(directory: Path, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    """The command, to its end."""
    ours, theirs = Channel.pair()
    try:
        return subprocess.run(
            [sys.executable, "-m", "packhorse.worker", *words, "--channel", str(theirs.fileno())],
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            pass_fds=[theirs.fileno()],
            cwd=directory,
            env={**os.environ, "PYTHONPATH": str(ROOT), **env},
            check=False,
        )
    finally:
        ours.close()
        theirs.close()


def test_a_second_worker_under_an_id_that_is_at_work_is_refused(tmp_path: Path):
    (tmp_path / "app.py").write_text("from packhorse import Packhorse\napp = Packhorse('sqlite:///jobs.db')\n")
    with Packhorse(f"sqlite:///{tmp_path / 'jobs.db'}") as app:
        app.storage.join(WorkerInfo("dave"))

        refused = typed(tmp_path, "app.py", "--id", "dave")

        assert [worker.id for worker in app.storage.workers()] == ["dave"]
    assert refused.returncode != 0
    assert "dave" in refused.stderr
    assert "Traceback" not in refused.stderr


# --- ending by itself -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("worker", [["--burst", "--concurrency", 4]], indirect=True)
def test_a_burst_drains_the_storage_and_exits_with_0(worker: WorkerSubprocess):
    sums = worker.app.enqueue_many([jobs.add.call(number, 1) for number in range(500)])
    sleeps = worker.app.enqueue_many([jobs.sleep.call(0.01) for _ in range(20)])
    pids = worker.app.enqueue_many([jobs.isolated_pid.call() for _ in range(10)])

    code, err = worker.start().wait()

    assert (code, err) == (0, "")
    assert worker.app.count(state="completed") == 530
    assert [worker.job(job).result for job in sums] == [str(number + 1) for number in range(500)]
    assert {worker.job(job).result for job in sleeps} == {'"slept"'}
    assert 1 <= len({worker.job(job).result for job in pids}) <= 4
    assert worker.storage.workers() == []
    assert worker.shared_status.running() == []
    for job in (sums[0], sleeps[0], pids[0]):
        told = worker.kinds(job)
        passed_on = {Kind.RESERVED, Kind.READDED}  # one that waited long, where the machine is slow, was handed back
        assert [kind for kind in told if kind not in passed_on] == [Kind.ADDED, Kind.STARTED, Kind.COMPLETED]
        assert told.count(Kind.RESERVED) == told.count(Kind.READDED) + 1


@pytest.mark.parametrize("worker", [["--max-jobs", 10, "--concurrency", 2]], indirect=True)
def test_after_so_many_jobs_it_exits_with_0(worker: WorkerSubprocess):
    worker.app.enqueue_many([jobs.add.call(1, number) for number in range(2_000)])

    code, err = worker.start().wait()

    assert (code, err) == (0, "")
    done = worker.app.count(state="completed")
    assert 10 <= done < 2_000
    assert worker.app.count(state="queued") == 2_000 - done
    assert worker.said[-1]["say"] == "leaving"


# --- signals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("worker", [["--concurrency", 1]], indirect=True)
def test_a_signal_lets_the_running_finish_and_hands_back_the_rest(worker: WorkerSubprocess, number: int):
    go = worker.directory / "go"
    worker.app.enqueue_many([jobs.add.call(1, 2) for _ in range(20)])  # quick ones, so that it takes several together
    worker.start()
    until(lambda: worker.app.count(state="completed") == 20, "the quick ones end")
    running = worker.enqueue("stubborn", path=str(go))
    waiting = worker.enqueue("stubborn", path=str(go))
    until(lambda: worker.shared_status.running() == [running.id] and worker.was_taken(waiting), "one begins, one waits")

    worker.process.send_signal(number)
    until(lambda: worker.state(waiting) is QUEUED, "the waiting one is handed back")
    still_alive = worker.process.poll() is None
    go.touch()
    code, err = worker.wait()

    assert still_alive
    assert (code, err) == (0, "")
    assert worker.state(running) is COMPLETED
    assert (worker.job(waiting).attempts, worker.job(waiting).losses) == (0, 0)


def test_a_second_signal_hands_everything_back_at_once(worker: WorkerSubprocess):
    worker.start()
    job = worker.enqueue("stubborn", path=str(worker.directory / "never"))
    until(lambda: worker.shared_status.running() == [job.id], "it begins")

    worker.process.send_signal(signal.SIGTERM)
    worker.process.send_signal(signal.SIGINT)  # two of the same kind may arrive as one
    code, err = worker.wait()

    assert (code, err) == (0, "")
    stored = worker.job(job)
    assert (stored.state, stored.halts, stored.failures, stored.losses) == (QUEUED, 0, 0, 0)
    assert worker.storage.workers() == []


def test_a_stubborn_job_is_aborted_and_its_worker_exits_with_70(
    worker: WorkerSubprocess, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(worker.env, "PACKHORSE_ABORT_GRACE", "0.5")
    worker.start()
    job = worker.enqueue("stubborn", path=str(worker.directory / "never"))
    until(lambda: worker.shared_status.running() == [job.id], "it begins")

    worker.abort(job)
    code, err = worker.wait()

    assert code == 70
    assert f"job {job.id} (stubborn) did not end within 0.5 s" in err
    assert "Traceback" not in err
    assert [one["say"] for one in worker.said if one["say"] != "report"] == ["online", "stuck", "leaving"]
    assert worker.kinds(job)[-1] is Kind.ABORTED
    assert Kind.HALTED not in worker.kinds(job)


def test_a_worker_dies_with_its_foreman(tmp_path: Path):
    script = """
import subprocess, sys
words = ["-m", "packhorse.worker", "tests.worker.jobs:app", "--channel", "0", *sys.argv[1:]]
child = subprocess.Popen([sys.executable, *words], stdin=subprocess.PIPE)
print(child.pid, flush=True)
sys.stdin.read()
"""
    foreman = subprocess.Popen(
        [sys.executable, "-c", script, "--url", f"sqlite:///{tmp_path / 'jobs.db'}"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    assert foreman.stdout is not None
    pid = int(foreman.stdout.readline())

    foreman.kill()
    foreman.communicate(timeout=PATIENCE)

    until(lambda: not is_alive(pid), "the worker ends")


# --- the lease ------------------------------------------------------------------------------------------------------


def test_a_worker_whose_lease_is_in_danger_takes_no_jobs(worker: WorkerSubprocess, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(worker.env, "PACKHORSE_LEASE", "15s")
    worker.shared_status._memory[:8] = bytes(8)  # the last heartbeat was when the machine started
    worker.start()
    until(lambda: any(one["say"] == "report" for one in worker.said), "it is online")
    job = worker.enqueue("add", a=1, b=2)
    until(lambda: sum(one["say"] == "report" for one in worker.said) >= 2, "a second has passed")
    meanwhile = worker.state(job)

    until(lambda: worker.shared_status.beat() or worker.state(job) is COMPLETED, "the job ends while a foreman beats")

    assert meanwhile is QUEUED


def test_without_a_foreman_it_does_not_start(tmp_path: Path):
    words = ["tests.worker.jobs:app", "--url", f"sqlite:///{tmp_path / 'jobs.db'}"]

    ended = subprocess.run(
        [sys.executable, "-m", "packhorse.worker", *words], cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE
    )

    told = "error: a worker needs a foreman, which sends its heartbeats - run: packhorse work tests.worker.jobs:app\n"
    assert (ended.returncode, ended.stderr) == (2, told)
    assert not (tmp_path / "jobs.db").exists()


# --- mistakes -------------------------------------------------------------------------------------------------------


def test_a_broken_module_is_told_without_a_traceback(tmp_path: Path):
    (tmp_path / "broken.py").write_text("x = 1\ny = x / 0\n")

    ended = typed(tmp_path, "broken.py")

    assert ended.returncode == 2
    assert ended.stderr.startswith("error: broken.py cannot be imported (ZeroDivisionError: division by zero, at ")
    assert ended.stderr.endswith("broken.py:2)\n")
    assert len(ended.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["nowhere:app"], "error: there is no module 'nowhere'"),
        (["tests.worker.jobs:nothing"], "error: tests.worker.jobs:nothing: nothing does not exist"),
        (
            ["tests.worker.jobs:app", "--url", "carrier-pigeon://loft"],
            "error: there is no storage for carrier-pigeon://",
        ),
    ],
)
def test_a_target_that_cannot_be_is_told_without_a_traceback(tmp_path: Path, words: list[str], error: str):
    ended = typed(tmp_path, *words)

    assert ended.returncode == 2
    assert ended.stderr.startswith(error)
    assert len(ended.stderr.splitlines()) == 1


def test_a_storage_that_cannot_be_opened_is_told_without_a_traceback(tmp_path: Path):
    (tmp_path / "letter.db").write_text("Dear Sir or Madam, " * 100)

    ended = typed(tmp_path, "tests.worker.jobs:app", "--url", f"sqlite:///{tmp_path / 'letter.db'}")

    assert ended.returncode == 1
    assert ended.stderr.startswith("error: ")
    assert "Traceback" not in ended.stderr


def test_what_jobs_log_is_printed_only_if_the_level_says_so(tmp_path: Path):
    (tmp_path / "shop.py").write_text(
        "import logging\n"
        "from packhorse import Packhorse\n"
        f"app = Packhorse('sqlite:///{tmp_path / 'shop.db'}')\n"
        "@app.task\n"
        "def talk():\n"
        "    logging.getLogger('shop').info('hello')\n"
        "    logging.getLogger('shop').error('help')\n"
        "if __name__ != 'shop_enqueue':\n"
        "    talk.enqueue()\n"
    )

    quiet = typed(tmp_path, "shop:app", "--burst")
    chatty = typed(tmp_path, "shop:app", "--burst", "--log-level", "info")

    assert ("hello" in quiet.stderr, "help" in quiet.stderr) == (False, True)
    assert ("hello" in chatty.stderr, "help" in chatty.stderr) == (True, True)


def test_two_workers_share_the_jobs_of_one_file(worker: WorkerSubprocess):
    handles = worker.app.enqueue_many([jobs.add.call(number, 1) for number in range(2_000)])
    words = ["tests.worker.jobs:app", "--burst", "--url", worker.url]

    with ThreadPoolExecutor(2) as threads:
        both = list(threads.map(lambda name: typed(ROOT, *words, "--id", name), ("ann", "bob")))

    assert [(one.returncode, one.stderr) for one in both] == [(0, ""), (0, "")]
    assert worker.app.count(state="completed") == len(handles)
    assert all(worker.kinds(job).count(Kind.COMPLETED) == 1 for job in handles[:50])


def test_the_owner_is_the_id_that_was_given(worker: WorkerSubprocess):
    worker.start()
    until(lambda: worker.storage.workers(), "it joins")

    assert [one.id for one in worker.storage.workers()] == [OWNER]


class Told:
    """Records the calls that a worker gets."""

    def __init__(self) -> None:
        self.orders: list[str] = []

    def drain_soon(self) -> None:
        self.orders.append("drain")

    def quit(self) -> None:
        self.orders.append("quit")


def test_a_second_signal_is_heard_wherever_it_interrupts_the_handler_of_the_first():
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR2)]
    seen, moment = 0, 0

    def trace(frame: FrameType, event: str, arg: object) -> Any:
        nonlocal seen
        seen += 1
        if seen == moment:
            signal.raise_signal(signal.SIGINT)
        return trace

    try:
        while seen >= moment:  # until it came after the end
            seen, moment = 0, moment + 1
            worker = Told()
            _take_signals(cast("WorkerProcess", worker))
            stop = signal.getsignal(signal.SIGTERM)
            assert callable(stop)
            sys.settrace(trace)
            stop(signal.SIGTERM, None)
            sys.settrace(None)
            assert sorted(worker.orders) == (["drain", "quit"] if seen >= moment else ["drain"]), f"at {moment}"
    finally:
        sys.settrace(None)
        for number, handler in zip((signal.SIGTERM, signal.SIGINT, signal.SIGUSR2), before, strict=True):
            signal.signal(number, handler)
    assert moment > 3
