"""Threads: as many as are needed, never more than slots, and they stay."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest

from packhorse.core.outcome import Outcome, Released
from packhorse.worker.executors import thread as thread_module
from packhorse.worker.executors.slots import Slots
from packhorse.worker.executors.thread import ThreadExecutor
from packhorse.worker.finisher import Finisher
from packhorse.worker.held_job import HeldJob
from tests.children import PATIENCE, until
from tests.worker.making import RESULT_LIMIT, a_held_job, a_job, task_of, throw_into


class Bench:
    """An executor whose jobs wait for a gate."""

    def __init__(self, slots: int) -> None:
        self.slots = Slots(None, slots, lambda held: self.executor)
        self.finisher = Finisher(lambda: None)
        self.condemned: list[str] = []
        self.executor = ThreadExecutor(self.slots, self.finisher, RESULT_LIMIT, self.condemned.append)
        self.gate = threading.Event()
        self.began: list[str] = []
        self.task = task_of(self.wait, "wait")

    def wait(self, name: str) -> None:
        self.began.append(name)
        self.gate.wait(PATIENCE)

    def held_jobs(self, *names: str) -> list[HeldJob]:
        return [a_held_job(a_job(name, f'{{"name":"{name}"}}'), self.task) for name in names]

    @property
    def threads(self) -> int:
        return len(self.executor._threads)


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench(3)
    yield bench
    bench.gate.set()
    bench.executor.close()
    for thread in bench.executor._threads:
        thread.join(PATIENCE)


def test_no_job_no_thread(bench: Bench):
    assert bench.threads == 0


def test_each_job_gets_a_thread_at_once_until_there_are_no_more_slots(bench: Bench):
    counts = []
    for name in "abcde":
        bench.slots.line_up(bench.held_jobs(name))
        counts.append(bench.threads)
    until(lambda: len(bench.began) == 3, "three begin")

    assert counts == [1, 2, 3, 3, 3]
    bench.gate.set()
    until(lambda: len(bench.finisher) == 5, "all end")
    assert sorted(bench.began) == ["a", "b", "c", "d", "e"]


def test_threads_stay_for_the_next_jobs(bench: Bench):
    bench.gate.set()
    for name in "abcdef":
        bench.slots.line_up(bench.held_jobs(name))
        until(lambda: bench.executor._idle, "its thread is free again")

    assert bench.threads == 1
    assert len(bench.finisher) == 6


def test_a_seat_that_was_handed_back_is_not_run(bench: Bench):
    one, two = bench.held_jobs("a", "b")
    one.claim()

    bench.slots.line_up([one, two])
    until(lambda: bench.began, "the other begins")

    assert bench.began == ["b"]
    assert one.began_at is None


def test_jobs_wait_for_slots_that_others_hold(bench: Bench):
    bench.slots._free.clear()
    bench.slots.line_up(bench.held_jobs("a"))
    waiting = bench.slots.waiting

    bench.slots.give(0)
    until(lambda: bench.began, "it begins")

    assert waiting == 1


def test_a_thread_cannot_be_made_to_end(bench: Bench):
    (held,) = bench.held_jobs("a")

    assert bench.executor.stop(held, hard=False) is True
    assert bench.executor.stop(held, hard=True) is False


def test_threads_end_when_the_executor_closes(bench: Bench):
    bench.gate.set()
    bench.slots.line_up(bench.held_jobs("a", "b"))
    until(lambda: len(bench.finisher) == 2, "they end")

    bench.executor.close()

    until(lambda: not any(thread.is_alive() for thread in bench.executor._threads), "the threads end")


# --- lent to the loop -----------------------------------------------------------------------------------------------


def lend(bench: Bench, work: Callable[[], None]) -> threading.Event:
    """Have a thread do this; the event is set when it is done."""
    done = threading.Event()

    def all_of_it() -> None:
        work()
        done.set()

    assert bench.executor.lend(all_of_it)
    return done


def test_a_thread_that_is_lent_runs_the_first_job_that_it_has_begun_itself(bench: Bench):
    at_work: list[int] = []
    where = task_of(lambda: at_work.append(threading.get_ident()), "where")
    lent: list[int] = []

    def work() -> None:
        lent.append(threading.get_ident())
        bench.slots.line_up([a_held_job(a_job("a"), where)])

    lend(bench, work)
    until(lambda: len(bench.finisher) == 1, "it ends")

    assert at_work == lent
    assert bench.threads == 1


def test_it_leaves_the_other_jobs_to_others(bench: Bench):
    lend(bench, lambda: bench.slots.line_up(bench.held_jobs("a", "b", "c")))
    until(lambda: len(bench.began) == 3, "all begin")

    assert bench.threads == 3
    bench.gate.set()
    until(lambda: bench.executor._idle == 3, "all threads are free again")


def test_a_job_that_somebody_else_begins_meanwhile_is_not_left_to_it(bench: Bench):
    is_out, may_return = threading.Event(), threading.Event()

    def work() -> None:
        is_out.set()
        may_return.wait(60)

    done = lend(bench, work)
    assert is_out.wait(60)
    bench.slots.line_up(bench.held_jobs("a"))
    until(lambda: bench.began == ["a"], "it begins on another thread")

    assert not done.is_set()
    may_return.set()
    assert done.wait(60)


def test_a_thread_that_was_lent_for_nothing_is_free_again(bench: Bench):
    assert lend(bench, lambda: None).wait(60)
    until(lambda: bench.executor._idle == 1, "it is free")

    bench.slots.line_up(bench.held_jobs("a"))
    until(lambda: bench.began == ["a"], "it begins")

    assert bench.threads == 1


def test_while_all_threads_are_busy_none_is_lent(bench: Bench):
    bench.slots.line_up(bench.held_jobs("a", "b", "c"))
    until(lambda: len(bench.began) == 3, "all begin")

    assert not bench.executor.lend(lambda: None)
    bench.gate.set()
    until(lambda: bench.executor._idle == 3, "all threads are free again")
    assert lend(bench, lambda: None).wait(60)


def test_two_that_are_lent_at_once_each_run_their_own_job(bench: Bench):
    at_work: dict[str, int] = {}
    lent: dict[str, int] = {}
    together = threading.Barrier(2)

    def note(name: str) -> None:
        at_work[name] = threading.get_ident()

    where = task_of(note, "note")

    def work(name: str) -> None:
        lent[name] = threading.get_ident()
        together.wait(PATIENCE)
        bench.slots.line_up([a_held_job(a_job(name, f'{{"name":"{name}"}}'), where)])
        together.wait(PATIENCE)

    lend(bench, lambda: work("a"))
    lend(bench, lambda: work("b"))
    until(lambda: len(bench.finisher) == 2, "both end")

    assert at_work == lent
    assert bench.threads == 2


def cannot_start(thread: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


def test_where_no_thread_can_be_started_none_is_lent_and_nobody_is_condemned(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(threading.Thread, "start", cannot_start)

    assert not bench.executor.lend(lambda: None)
    assert bench.condemned == []


def test_where_no_thread_can_be_started_a_job_condemns_the_worker(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(threading.Thread, "start", cannot_start)

    bench.slots.line_up(bench.held_jobs("a"))

    assert bench.condemned == ["it cannot start a thread: can't start new thread"]


# --- what is thrown into a thread -------------------------------------------------------------------------------------


def test_a_thread_that_is_hit_while_it_is_idle_runs_the_next_job(bench: Bench):
    bench.gate.set()
    assert lend(bench, lambda: None).wait(60)
    until(lambda: bench.executor._idle == 1, "it is free")

    throw_into(bench.executor._threads[0], TimeoutError)
    bench.slots.line_up(bench.held_jobs("a"))
    until(lambda: len(bench.finisher) == 1, "it ends")
    until(lambda: bench.executor._idle == 1, "its thread is free again")

    assert bench.began == ["a"]
    assert bench.threads == 1


def test_a_thread_that_is_hit_while_it_is_idle_does_what_it_is_lent_for(bench: Bench):
    assert lend(bench, lambda: None).wait(60)
    until(lambda: bench.executor._idle == 1, "it is free")

    throw_into(bench.executor._threads[0], SystemExit)

    assert lend(bench, lambda: None).wait(60)
    until(lambda: bench.executor._idle == 1, "it is free again")
    assert bench.threads == 1


class Tearing:
    """Raises in a thread of the executor, before the line of its code that is the nth to come."""

    CODE = frozenset(
        each.__code__
        for each in (*vars(ThreadExecutor).values(), thread_module._let_go)
        # The one catches it. In the other nothing is called between taking the lock and letting it go, and so nothing
        # is raised there but by a tracer.
        if hasattr(each, "__code__") and each not in (ThreadExecutor._work, ThreadExecutor._rest)
    )

    def __init__(self, nth: int) -> None:
        self.left = nth
        self.line: int | None = None  # where it was

    def __call__(self, frame: FrameType, event: str, arg: Any) -> Any:
        return self.at if self.line is None and frame.f_code in self.CODE else None

    def at(self, frame: FrameType, event: str, arg: Any) -> Any:
        if event != "line" or self.line is not None:
            return self.at
        self.left -= 1
        if self.left < 0:
            self.line = frame.f_lineno
            raise TimeoutError("meant for a job")
        return self.at


def ran_in_spite_of(tearing: Tearing) -> set[int]:
    """The loop's work, which finds one job, and then another two, on one thread; answers the lines where it was."""
    bench = Bench(1)
    bench.gate.set()
    held_jobs = bench.held_jobs("a", "b", "c")
    before = threading.gettrace()
    threading.settrace(tearing)
    try:
        is_found: list[bool] = []

        def find() -> None:
            if not is_found:
                is_found.append(True)
                bench.slots.line_up(held_jobs[:1])

        assert lend(bench, find).wait(60)
    finally:
        threading.settrace(before)  # type: ignore[arg-type]
    bench.slots.line_up(held_jobs[1:])
    until(lambda: bench.executor._idle == 1 and bench.executor._given.empty(), f"it is free, after {tearing.line}")
    for held in held_jobs:  # as the loop does with those that do not begin
        if held.claim():
            bench.slots.give_up(held)
            bench.finisher.put(held, Released(held.job.token, "it did not begin"))
    until(lambda: bench.executor._idle == 1, f"it is free, after {tearing.line}")

    ended = {held.job.id for held, _ in bench.finisher.take_now(100)}
    assert ended == {"a", "b", "c"}, f"lost after {tearing.line}"
    assert sorted(bench.began) == sorted(set(bench.began)), f"run twice after {tearing.line}"
    assert list(bench.slots._free) == [0], f"its slot is lost after {tearing.line}"
    assert bench.condemned == []
    bench.executor.close()
    bench.executor._threads[0].join(PATIENCE)
    assert not bench.executor._threads[0].is_alive()
    return {tearing.line} if tearing.line is not None else set()


def test_wherever_a_thread_is_hit_no_job_and_no_slot_is_lost():
    lines: set[int] = set()
    nth = 0
    while hit := ran_in_spite_of(Tearing(nth)):
        lines |= hit
        nth += 1

    assert len(lines) > 20


def test_a_thread_that_does_not_get_on_at_all_condemns_its_worker(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    def put(held: HeldJob, outcome: Outcome) -> None:
        raise LookupError("no room")

    bench.gate.set()
    monkeypatch.setattr(bench.finisher, "put", put)
    bench.slots.line_up(bench.held_jobs("a"))
    until(lambda: bench.executor._idle == 1, "its thread is free again")

    assert bench.condemned == ["a thread of its does not get on: LookupError"]
    assert bench.began == ["a"]
