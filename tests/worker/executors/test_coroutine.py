"""Coroutines on the worker's loop: many at once, none beyond the slots, and nothing that they do ends the loop."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from packhorse.core.job import Reason
from packhorse.core.outcome import Completed, Failed, Outcome, Released, Stopped
from packhorse.worker.executors import coroutine
from packhorse.worker.executors.coroutine import CoroutineExecutor
from packhorse.worker.executors.slots import Slots
from packhorse.worker.finisher import OutcomeQueue
from packhorse.worker.held_job import HeldJob, WorkerStop
from tests.children import PATIENCE, until
from tests.worker.factories import RESULT_LIMIT, a_held_job, a_job, task_of


class Bench:
    def __init__(self, slots: int) -> None:
        self.slots = Slots(None, slots, lambda held: self.executor)
        self.queue = OutcomeQueue(lambda: None)
        self.executor = CoroutineExecutor(self.slots, self.queue, RESULT_LIMIT)
        self.worker_stop = WorkerStop()

    def held(self, function: Callable[..., Any], name: str = "a") -> HeldJob:
        return a_held_job(a_job(name), task_of(function, "task"), worker_stop=self.worker_stop)

    def outcome_of(self, held: HeldJob) -> Outcome:
        until(lambda: held.is_settled and len(self.queue), "it ends")
        return dict(self.queue.take_now(100))[held]


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench(2)
    yield bench
    if bench.executor._loop is not None:
        loop = bench.executor.loop()
        bench.executor.close()
        until(loop.is_closed, "the loop ends")


def test_no_more_run_at_once_than_there_are_slots(bench: Bench):
    began: list[int] = []
    gate = asyncio.Event()

    async def task() -> None:
        began.append(1)
        await gate.wait()

    held_jobs = [bench.held(task, str(number)) for number in range(5)]
    bench.slots.line_up(held_jobs)
    until(lambda: len(began) == 2, "two begin")
    in_line = bench.slots.waiting
    bench.executor.loop().call_soon_threadsafe(gate.set)
    until(lambda: len(bench.queue) == 5, "all end")

    assert in_line == 3
    until(lambda: len(bench.slots._free) == 2, "both slots are free")


@pytest.mark.parametrize("error", [SystemExit(1), KeyboardInterrupt(), type("Odd", (BaseException,), {})()], ids=repr)
def test_nothing_that_a_task_raises_ends_the_loop(bench: Bench, error: BaseException):
    async def bad() -> None:
        raise error

    async def good() -> str:
        return "fine"

    first, second = bench.held(bad), bench.held(good, "b")
    bench.slots.line_up([first])
    outcome = bench.outcome_of(first)
    bench.slots.line_up([second])

    assert isinstance(outcome, Failed)
    assert isinstance(bench.outcome_of(second), Completed)


def running(bench: Bench) -> HeldJob:
    began = threading.Event()

    async def task() -> None:
        began.set()
        await asyncio.sleep(60)

    held = bench.held(task)
    bench.slots.line_up([held])
    assert began.wait(PATIENCE)
    return held


def test_an_aborted_task_is_cancelled(bench: Bench):
    held = running(bench)
    held.stop(Reason.ABORTED, "it was aborted")

    assert bench.executor.stop(held, hard=False) is True
    outcome = bench.outcome_of(held)

    assert isinstance(outcome, Stopped)
    assert outcome.ran > 0


def test_a_task_whose_worker_goes_is_handed_back(bench: Bench):
    held = running(bench)
    bench.worker_stop.is_forced = True

    bench.executor.stop(held, hard=False)

    assert isinstance(bench.outcome_of(held), Released)


def test_a_task_that_cancels_itself_has_failed(bench: Bench):
    async def task() -> None:
        raise asyncio.CancelledError

    held = bench.held(task)
    bench.slots.line_up([held])
    outcome = bench.outcome_of(held)

    assert isinstance(outcome, Failed)
    assert outcome.failure.summary() == "CancelledError: the task was cancelled from within"


def test_a_task_that_is_cancelled_before_its_first_step_has_an_outcome(bench: Bench):
    ran = []

    async def task() -> None:
        ran.append(True)

    held = bench.held(task)
    held.stop(Reason.ABORTED, "it was aborted")

    def both_at_once() -> None:
        bench.executor._begin(held, bench.slots._free.popleft())
        bench.executor._cancel(held)

    bench.executor.loop().call_soon_threadsafe(both_at_once)

    assert isinstance(bench.outcome_of(held), Stopped)
    assert ran == []


def test_a_coroutine_cannot_be_made_to_end_by_force(bench: Bench):
    assert bench.executor.stop(running(bench), hard=True) is False


@pytest.mark.parametrize("is_told_before", [False, True])
def test_what_runs_when_the_loop_ends_is_cancelled_once_and_cleans_up(bench: Bench, is_told_before: bool):
    began, cleaned_up = threading.Event(), threading.Event()

    async def task() -> None:
        began.set()
        try:
            await asyncio.sleep(PATIENCE)
        finally:
            await asyncio.sleep(0.001)
            cleaned_up.set()

    held = bench.held(task)
    bench.slots.line_up([held])
    assert began.wait(PATIENCE)
    bench.worker_stop.is_forced = True
    if is_told_before:
        bench.executor.stop(held, hard=False)
    bench.executor.close()

    assert isinstance(bench.outcome_of(held), Released)
    assert cleaned_up.is_set()


def test_what_does_not_end_when_it_is_cancelled_does_not_keep_the_loop(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(coroutine, "CLEANUP_TIME", 0.01)
    began = threading.Event()

    async def task() -> None:
        began.set()
        while True:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(PATIENCE)

    bench.slots.line_up([bench.held(task)])
    assert began.wait(PATIENCE)
    (stubborn,) = bench.executor._tasks.values()
    stubborn._log_destroy_pending = False  # type: ignore[attr-defined]  # that it is left behind is what is wanted here
    loop = bench.executor.loop()
    bench.executor.close()

    until(loop.is_closed, "the loop ends")
    assert not stubborn.done()


def test_a_seat_that_was_handed_back_is_not_run(bench: Bench):
    ran = []

    async def task() -> None:
        ran.append(True)

    one, two = bench.held(task, "a"), bench.held(task, "b")
    one.claim()
    bench.slots.line_up([one, two])
    until(lambda: two.is_settled, "the other ends")

    assert ran == [True]
    assert one.began_at is None


def test_a_coroutine_waits_for_a_slot_that_a_thread_holds(bench: Bench):
    bench.slots._free.clear()

    async def task() -> None: ...

    held_jobs = [bench.held(task, name) for name in "abc"]
    bench.slots.line_up(held_jobs)
    waiting = bench.slots.waiting

    bench.slots.give(0)
    until(lambda: len(bench.queue) == 3, "all end, one after the other")

    assert waiting == 3
