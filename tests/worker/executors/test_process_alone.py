"""The executor of isolated jobs without a worker around it: children and a fork server that die, hang or cannot be
had, at
moments that a whole worker would not let one choose."""

from __future__ import annotations

import os
import selectors
import signal
import socket
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from packhorse.core.job import Job
from packhorse.core.outcome import Completed, Halted, Outcome, Released
from packhorse.core.task import RegisteredTask
from packhorse.worker.executors import child, process
from packhorse.worker.executors.fork_server import ChildMain, ForkServer
from packhorse.worker.executors.process import ProcessExecutor
from packhorse.worker.executors.slots import Slots
from packhorse.worker.finisher import OutcomeQueue
from packhorse.worker.held_job import HeldJob
from packhorse.worker.ipc import Channel
from tests.children import until
from tests.worker.factories import RESULT_LIMIT, a_held_job, a_job, chain_of, task_of
from tests.worker.worker_subprocess import descendants, file, is_alive

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks at /proc")

LARGE = "x" * 4_000_000
"""More than the buffers between two processes take."""


def pid(text: str = "") -> int:
    return os.getpid()


def wait_for(path: str) -> int:
    Path(f"{path}.began").touch()
    while not Path(path).exists():
        time.sleep(0.002)
    return os.getpid()


def leave() -> int:
    """Leaves an orphan that runs, in a session of its own, and one that exits."""
    subprocess.run(["sh", "-c", "true &"], check=True)
    script = "setsid sh -c 'echo $$; exec sleep 600 >/dev/null' &"
    return int(subprocess.run(["sh", "-c", script], stdout=subprocess.PIPE, check=True).stdout)


TASKS = {function.__name__: task_of(function, function.__name__) for function in (pid, wait_for, leave)}


def serve(end: socket.socket) -> None:
    def find(name: str) -> tuple[RegisteredTask, Any, bool]:
        return TASKS[name], chain_of(TASKS[name]), False

    child.serve(end, find, RESULT_LIMIT)


class ProcessSetup:
    """An executor, its real fork server, and the outcomes that come out."""

    def __init__(self, child_main: ChildMain = serve, slots: int = 2) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # the test runner may have threads
            self.fork_server = ForkServer.start(child_main)
        self.stuck: list[list[str]] = []
        self.outcomes: dict[str, Outcome] = {}
        self._queue = OutcomeQueue(lambda: None)
        self._slots = Slots(None, slots, lambda held: self.executor)
        self.executor = ProcessExecutor(self.fork_server, self._slots, self._queue, report_stuck=self._report_stuck)

    def _report_stuck(self, why: str) -> None:
        self._look()
        self.stuck.append(sorted(self.outcomes))

    def begin(self, name: str, task: str, **args: str) -> HeldJob:
        held = a_held_job(a_job(name, msgspec.json.encode(args).decode(), task=task), TASKS[task])
        self._slots.line_up([held])
        return held

    def outcome(self, name: str) -> Outcome:
        until(lambda: self._look().get(name), f"{name} ends")
        return self.outcomes[name]

    def result(self, name: str) -> int:
        outcome = self.outcome(name)
        assert isinstance(outcome, Completed), outcome
        return int(outcome.result or 0)

    def _look(self) -> dict[str, Outcome]:
        self.outcomes.update({held.job.id: outcome for held, outcome in self._queue.take_now(100)})
        return self.outcomes

    def close(self) -> None:
        os.kill(self.fork_server.pid, signal.SIGCONT)
        self.executor.close()
        self.executor._wake_read.close()
        self.executor._wake_write.close()


@pytest.fixture
def started() -> Iterator[Callable[..., ProcessSetup]]:
    made: list[ProcessSetup] = []

    def start(*args: Any, **options: Any) -> ProcessSetup:
        made.append(ProcessSetup(*args, **options))
        return made[-1]

    yield start
    for one in made:
        one.close()


def test_an_idle_child_that_has_died_gets_no_further_job(started: Callable[..., ProcessSetup]):
    alone = started(slots=1)
    first = alone.result(alone.begin("first", "pid").job.id)
    until(lambda: alone.executor._idle, "its child is idle")  # a moment after its outcome
    os.kill(alone.fork_server.pid, signal.SIGSTOP)  # so that it does not report the exit
    os.kill(first, signal.SIGKILL)
    until(lambda: not alone.executor._idle, "its closed channel is seen")

    alone.begin("second", "pid")
    os.kill(alone.fork_server.pid, signal.SIGCONT)

    assert alone.result("second") != first


def deaf_after_one(end: socket.socket) -> None:
    """A child that does its first job and then hears nothing, though it lives."""
    channel = Channel(end)
    (message,), _ = channel.read()
    end.shutdown(socket.SHUT_RD)
    token = msgspec.convert(message["job"], Job).token
    channel.send(child.encode_outcome(Completed(token, str(os.getpid()))))
    signal.pause()


def test_a_job_that_cannot_be_told_to_its_child_is_handed_back_uncounted(started: Callable[..., ProcessSetup]):
    alone = started(deaf_after_one, slots=1)
    first = alone.result(alone.begin("first", "pid").job.id)

    alone.begin("second", "pid")
    outcome = alone.outcome("second")

    assert outcome == Released(outcome.token, "its process died before it began")
    until(lambda: not is_alive(first), "that child is not kept")
    assert alone.result(alone.begin("third", "pid").job.id) != first


def test_a_child_that_hangs_stops_nobody_else_and_its_job_is_handed_back(
    started: Callable[..., ProcessSetup], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(process, "_UNRESPONSIVE_AFTER", 0.3)
    alone = started()
    first = alone.result(alone.begin("first", "pid").job.id)
    os.kill(first, signal.SIGSTOP)

    alone.begin("large", "pid", text=LARGE)
    alone.begin("small", "pid")
    large = alone.outcome("large")

    assert alone.result("small") != first
    assert large == Released(large.token, f"its process {first} did not take it")
    until(lambda: not is_alive(first), "the child is killed")


def test_a_large_job_reaches_its_child_as_a_whole(started: Callable[..., ProcessSetup]):
    alone = started(slots=1)
    first = alone.result(alone.begin("first", "pid", text=LARGE).job.id)

    assert alone.result(alone.begin("second", "pid", text=LARGE).job.id) == first
    until(lambda: alone.executor._idle, "its child is idle")
    (idle,) = alone.executor._idle
    assert alone.executor._selector.get_key(idle.channel).events == selectors.EVENT_READ  # else it would spin


def test_a_child_that_dies_before_it_has_taken_all_of_its_job_costs_that_no_halt(started: Callable[..., ProcessSetup]):
    alone = started(slots=1)
    first = alone.result(alone.begin("first", "pid").job.id)
    os.kill(first, signal.SIGSTOP)
    alone.begin("large", "pid", text=LARGE)
    until(lambda: any(one.unsent for one in alone.executor._children.values()), "a part of it is sent")

    os.kill(first, signal.SIGKILL)

    assert isinstance(alone.outcome("large"), Released)


def test_a_job_that_is_stopped_before_its_child_has_taken_it_is_over_at_once(started: Callable[..., ProcessSetup]):
    alone = started(slots=1)
    first = alone.result(alone.begin("first", "pid").job.id)
    os.kill(first, signal.SIGSTOP)
    held = alone.begin("large", "pid", text=LARGE)
    until(lambda: any(one.unsent for one in alone.executor._children.values()), "a part of it is sent")

    alone.executor.stop(held, hard=False)

    assert isinstance(alone.outcome("large"), Released)
    assert alone.result(alone.begin("next", "pid").job.id) != first


def test_between_two_jobs_a_child_ends_and_reaps_what_the_last_one_left(started: Callable[..., ProcessSetup]):
    alone = started(slots=1)
    left = [alone.result(alone.begin(f"leave {number}", "leave").job.id) for number in range(3)]

    child = alone.result(alone.begin("next", "pid").job.id)

    assert not any(Path(f"/proc/{pid}").exists() for pid in left)
    assert descendants(child) == []


class Leaving:
    """A child that is gone as soon as it was looked at."""

    def __init__(self, children: dict[int, Any]) -> None:
        self._children = children

    @property
    def held(self) -> None:
        self._children.clear()


def test_children_may_come_and_go_while_another_thread_counts_them(started: Callable[..., ProcessSetup]):
    executor = started().executor
    executor._children.update({number: Leaving(executor._children) for number in (1, 2)})  # type: ignore[arg-type]

    assert executor.busy == 0


# --- no more children -----------------------------------------------------------------------------------------------


def limit_forks(monkeypatch: pytest.MonkeyPatch, full: Path, tries: Path) -> None:
    fork = os.fork

    def limited() -> int:
        if full.exists():
            with tries.open("a") as said:
                said.write(f"{time.monotonic()}\n")
            raise BlockingIOError("no more processes")
        return fork()

    monkeypatch.setattr(os, "fork", limited)


def test_while_no_child_can_be_forked_the_others_run_on_and_it_is_tried_again(
    started: Callable[..., ProcessSetup],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
):
    full, tries, go = tmp_path / "full", tmp_path / "tries", tmp_path / "go"
    limit_forks(monkeypatch, full, tries)
    alone = started()
    held = alone.begin("running", "wait_for", path=str(go))
    until(lambda: held.began_at is not None, "it runs")
    full.touch()
    alone.begin("waiting", "pid")
    until(lambda: tries.exists() and len(tries.read_text().split()) >= 4, "it is tried again and again")
    full.unlink()

    other = alone.result("waiting")
    go.touch()

    assert alone.result("running") != other
    assert alone.stuck == []
    at = [float(word) for word in file(tries).read_text().split()]
    assert at[3] - at[2] > 3 * process._FIRST_PAUSE  # with a growing pause
    assert "cannot fork a child for isolated jobs" in caplog.text


def test_who_waits_for_a_child_that_cannot_be_had_gets_the_next_that_is_idle(
    started: Callable[..., ProcessSetup], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    full, go = tmp_path / "full", tmp_path / "go"
    limit_forks(monkeypatch, full, tmp_path / "tries")
    alone = started()
    held = alone.begin("running", "wait_for", path=str(go))
    until(lambda: held.began_at is not None, "it runs")
    full.touch()
    alone.begin("waiting", "pid")
    file(tmp_path / "tries")
    go.touch()

    assert alone.result("waiting") == alone.result("running")


def test_whoever_is_handed_back_while_no_child_can_be_had_keeps_no_slot(
    started: Callable[..., ProcessSetup], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    full, tries = tmp_path / "full", tmp_path / "tries"
    limit_forks(monkeypatch, full, tries)
    alone = started(slots=1)
    full.touch()
    waiting = alone.begin("waiting", "pid")
    file(tries)
    assert waiting.claim()  # as the loop does that hands it back
    alone.begin("next", "pid")
    full.unlink()

    assert alone.result("next")
    assert "waiting" not in alone.outcomes


def test_a_worker_whose_fork_server_has_died_is_stuck_before_any_job_makes_room(
    started: Callable[..., ProcessSetup], tmp_path: Path
):
    alone = started()
    alone.begin("running", "wait_for", path=str(tmp_path / "never"))
    file(tmp_path / "never.began")  # and not only on its way to its child

    os.kill(alone.fork_server.pid, signal.SIGKILL)

    assert isinstance(alone.outcome("running"), Halted)
    assert alone.stuck == [[]]  # by then, nothing had ended
