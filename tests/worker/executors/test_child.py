"""What a child does between two jobs, and with what a job prints. Real children: executors/test_process.py."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from packhorse.core.context import current_job
from packhorse.core.job import Reason
from packhorse.core.outcome import Completed, Failed, Failure, Halted, Outcome, Released, Snoozed, Stopped
from packhorse.worker.executors import child
from packhorse.worker.executors.child import decode_outcome, encode_outcome, is_stop
from packhorse.worker.ipc import Channel, Message
from packhorse.worker.middleware import compose
from tests.children import PATIENCE
from tests.worker.factories import RESULT_LIMIT, a_job, chain_of, task_of

TOKEN = a_job().token


@pytest.mark.parametrize(
    "outcome",
    [
        Completed(TOKEN, '"č"', 3),
        Failed(TOKEN, Failure("ValueError", "no", "Traceback …", "mail.py:1"), 5, Reason.JOB_TIMEOUT, 7),
        Snoozed(TOKEN, 5),
        Stopped(TOKEN, Reason.ABORTED, Failure("Abort", "no")),
        Halted(TOKEN, "it died"),
        Released(TOKEN, "back", 5),
    ],
    ids=lambda outcome: type(outcome).__name__,
)
def test_every_outcome_goes_over_the_channel_unharmed(outcome: Outcome):
    line = msgspec.json.encode(encode_outcome(outcome))

    assert decode_outcome(msgspec.json.decode(line)) == outcome


class Child:
    """`serve` in this thread; what it says comes out of `said`."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.task = task_of(function, "task")
        ours, self._its = socket.socketpair()
        self.channel = Channel(ours)

    def serve(self, *messages: Message) -> list[Message]:
        for message in messages:
            self.channel.send(message)
        self.channel.hang_up()
        chain, is_async = compose(self.task, (), loop=None)
        child.serve(self._its, lambda name: (self.task, chain, is_async), RESULT_LIMIT)
        self._its.shutdown(socket.SHUT_WR)
        return list(self.channel.receive())

    def close(self) -> None:
        self.channel.close()
        self._its.close()


@pytest.fixture
def serving() -> Iterator[Callable[..., Child]]:
    before = signal.getsignal(signal.SIGTERM)
    made: list[Child] = []

    def make(function: Callable[..., Any]) -> Child:
        made.append(Child(function))
        return made[-1]

    yield make
    signal.signal(signal.SIGTERM, before)
    for one in made:
        one.close()


def order(number: int) -> Message:
    return {"job": msgspec.to_builtins(a_job(f"job-{number}"))}


def outcomes(said: list[Message]) -> list[Outcome]:
    return [decode_outcome(message) for message in said if "outcome" in message]


def test_jobs_run_one_after_another_until_the_worker_hangs_up(serving: Callable[..., Child]):
    said = serving(lambda: threading.get_ident()).serve(order(1), order(2))

    assert [outcome.token.job_id for outcome in outcomes(said)] == ["job-1", "job-2"]
    assert {outcome.result for outcome in outcomes(said)} == {str(threading.main_thread().ident)}  # type: ignore[union-attr]


def test_sigterm_interrupts_the_job(serving: Callable[..., Child]):
    cleaned = []

    def task() -> None:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            threading.Event().wait(PATIENCE)
        finally:
            cleaned.append(True)

    (outcome,) = outcomes(serving(task).serve(order(1)))

    assert is_stop(outcome)
    assert cleaned == [True]


def test_sigterm_cancels_a_coroutine(serving: Callable[..., Child]):
    cleaned = []

    async def task() -> None:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.sleep(PATIENCE)
        finally:
            await asyncio.sleep(0)
            cleaned.append(True)

    (outcome,) = outcomes(serving(task).serve(order(1)))

    assert is_stop(outcome)
    assert cleaned == [True]


def test_sigterm_between_two_jobs_interrupts_neither_but_nothing_more_begins(serving: Callable[..., Child]):
    ran = []

    def task() -> None:
        ran.append(True)

    line = child._ChannelLink(serving(task).channel)
    line.terminate(signal.SIGTERM, None)
    registered = task_of(task, "task")

    outcome = child._run(a_job(), registered, chain_of(registered), False, line, RESULT_LIMIT)

    assert is_stop(outcome)
    assert ran == []


def test_a_failure_of_its_own_is_not_a_stop():
    assert not is_stop(Failed(TOKEN, Failure("ValueError", "StopNow")))
    assert not is_stop(Completed(TOKEN))


def test_what_a_job_prints_is_said_line_by_line_and_given_back_after(serving: Callable[..., Child]):
    out = sys.stdout

    def task() -> None:
        print("one", "two", sep="\n")
        print("10 %\r20 %\r", end="")
        print("30 %\r\n", end="")
        sys.stderr.write("x" * 20_000)
        sys.stderr.write("y" * 20_000)
        sys.stdout.flush()

    said = serving(task).serve(order(1))

    logged = [message["log"] for message in said if "log" in message]
    assert logged[:3] == ["one", "two", "30 %"]
    assert (len(logged), len(logged[3])) == (4, 10_001)
    assert sys.stdout is out


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks at /proc")
def test_what_a_job_has_started_is_gone_before_the_next_begins_and_nobody_else(serving: Callable[..., Child]):
    ours = subprocess.Popen(["sleep", "600"])
    started: list[int] = []
    seen: list[list[bool]] = []

    def start() -> None:
        started.extend((subprocess.Popen(["sleep", "600"]).pid, subprocess.Popen(["true"]).pid))

    def task() -> None:
        seen.append([Path(f"/proc/{pid}").exists() for pid in started])
        start()
        thread = threading.Thread(target=start)
        thread.start()
        thread.join()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # that nobody waits for them is the point
        serving(task).serve(order(1), order(2))

    lives = ours.poll() is None
    ours.kill()
    ours.wait()
    assert seen == [[], [False] * 4]
    assert len(started) == 8
    assert not any(Path(f"/proc/{pid}").exists() for pid in started)
    assert lives


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks at /proc")
def test_the_next_job_may_use_the_fork_server_that_the_last_one_started(serving: Callable[..., Child]):
    def task() -> int | None:
        process = multiprocessing.get_context("forkserver").Process(target=int)
        process.start()
        process.join()
        return process.exitcode

    said = serving(task).serve(order(1), order(2))

    assert [outcome.result for outcome in outcomes(said) if isinstance(outcome, Completed)] == ["0", "0"]


def test_a_stop_is_seen_by_the_check_in_and_said(serving: Callable[..., Child]):
    def task() -> str:
        while not current_job().checkin():
            pass
        return "stopped"

    one, said = serving(task), []

    def worker() -> None:
        one.channel.send(order(1))
        for message in one.channel.receive():
            said.append(message)
            if "checkin" in message:
                one.channel.send({"stop": True})
            if "outcome" in message:
                one.channel.hang_up()
                return

    thread = threading.Thread(target=worker)
    thread.start()
    child.serve(one._its, lambda name: (one.task, chain_of(one.task), False), RESULT_LIMIT)
    thread.join(PATIENCE)

    assert {"saw_stop": True} in said
    assert [type(outcome) for outcome in outcomes(said)] == [Completed]
