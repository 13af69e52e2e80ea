"""Threads: as many as are needed, never more than slots, and they stay."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest

from packhorse.core.errors import StorageError
from packhorse.core.outcome import Outcome, Released
from packhorse.worker.executors import thread as thread_module
from packhorse.worker.executors.slots import Slots
from packhorse.worker.executors.thread import Delegation, ThreadExecutor, delegate
from packhorse.worker.finisher import OutcomeQueue
from packhorse.worker.held_job import HeldJob
from tests.children import PATIENCE, until
from tests.worker.conftest import WorkerHarness
from tests.worker.factories import RESULT_LIMIT, a_held_job, a_job, task_of, throw_into


class Bench:
    """An executor whose jobs wait for a gate."""

    def __init__(self, slots: int) -> None:
        self.slots = Slots(None, slots, lambda held: self.executor)
        self.queue = OutcomeQueue(lambda: None)
        self.stuck: list[str] = []
        self.executor = ThreadExecutor(self.slots, self.queue, RESULT_LIMIT, self.stuck.append)
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
    until(lambda: len(bench.queue) == 5, "all end")
    assert sorted(bench.began) == ["a", "b", "c", "d", "e"]


def test_threads_stay_for_the_next_jobs(bench: Bench):
    bench.gate.set()
    for name in "abcdef":
        bench.slots.line_up(bench.held_jobs(name))
        until(lambda: bench.executor._idle, "its thread is free again")

    assert bench.threads == 1
    assert len(bench.queue) == 6


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
    until(lambda: len(bench.queue) == 2, "they end")

    bench.executor.close()

    until(lambda: not any(thread.is_alive() for thread in bench.executor._threads), "the threads end")


# --- lent to the loop -----------------------------------------------------------------------------------------------


def lend_to_thread(bench: Bench, work: Callable[[], None]) -> threading.Event:
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

    lend_to_thread(bench, work)
    until(lambda: len(bench.queue) == 1, "it ends")

    assert at_work == lent
    assert bench.threads == 1


def test_it_leaves_the_other_jobs_to_others(bench: Bench):
    lend_to_thread(bench, lambda: bench.slots.line_up(bench.held_jobs("a", "b", "c")))
    until(lambda: len(bench.began) == 3, "all begin")

    assert bench.threads == 3
    bench.gate.set()
    until(lambda: bench.executor._idle == 3, "all threads are free again")


def test_a_job_that_somebody_else_begins_meanwhile_is_not_left_to_it(bench: Bench):
    is_out, may_return = threading.Event(), threading.Event()

    def work() -> None:
        is_out.set()
        may_return.wait(60)

    done = lend_to_thread(bench, work)
    assert is_out.wait(60)
    bench.slots.line_up(bench.held_jobs("a"))
    until(lambda: bench.began == ["a"], "it begins on another thread")

    assert not done.is_set()
    may_return.set()
    assert done.wait(60)


def test_a_thread_that_was_lent_for_nothing_is_free_again(bench: Bench):
    assert lend_to_thread(bench, lambda: None).wait(60)
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
    assert lend_to_thread(bench, lambda: None).wait(60)


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

    lend_to_thread(bench, lambda: work("a"))
    lend_to_thread(bench, lambda: work("b"))
    until(lambda: len(bench.queue) == 2, "both end")

    assert at_work == lent
    assert bench.threads == 2


def cannot_start(thread: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


def test_where_no_thread_can_be_started_none_is_lent_and_nobody_is_stuck(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(threading.Thread, "start", cannot_start)

    assert not bench.executor.lend(lambda: None)
    assert bench.stuck == []


def test_where_no_thread_can_be_started_a_job_makes_the_worker_stuck(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(threading.Thread, "start", cannot_start)

    bench.slots.line_up(bench.held_jobs("a"))

    assert bench.stuck == ["it cannot start a thread: can't start new thread"]


# --- what is thrown into a thread -------------------------------------------------------------------------------------


def test_a_thread_that_is_hit_while_it_is_idle_runs_the_next_job(bench: Bench):
    bench.gate.set()
    assert lend_to_thread(bench, lambda: None).wait(60)
    until(lambda: bench.executor._idle == 1, "it is free")

    throw_into(bench.executor._threads[0], TimeoutError)
    bench.slots.line_up(bench.held_jobs("a"))
    until(lambda: len(bench.queue) == 1, "it ends")
    until(lambda: bench.executor._idle == 1, "its thread is free again")

    assert bench.began == ["a"]
    assert bench.threads == 1


def test_a_thread_that_is_hit_while_it_is_idle_does_what_it_is_lent_for(bench: Bench):
    assert lend_to_thread(bench, lambda: None).wait(60)
    until(lambda: bench.executor._idle == 1, "it is free")

    throw_into(bench.executor._threads[0], SystemExit)

    assert lend_to_thread(bench, lambda: None).wait(60)
    until(lambda: bench.executor._idle == 1, "it is free again")
    assert bench.threads == 1


class Interruption:
    """Raises in a thread of the executor, before the line of its code that is the nth to come."""

    CODE = frozenset(
        each.__code__
        for each in (*vars(ThreadExecutor).values(), thread_module._clear)
        # The one catches it. In the other nothing is called between taking the lock and letting it go, and so nothing
        # is raised there but by a tracer.
        if hasattr(each, "__code__") and each not in (ThreadExecutor._work, ThreadExecutor._become_idle)
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


def ran_in_spite_of(interruption: Interruption) -> set[int]:
    """The loop's work, which finds one job, and then another two, on one thread; answers the lines where it was."""
    bench = Bench(1)
    bench.gate.set()
    held_jobs = bench.held_jobs("a", "b", "c")
    before = threading.gettrace()
    threading.settrace(interruption)
    try:
        is_found: list[bool] = []

        def find() -> None:
            if not is_found:
                is_found.append(True)
                bench.slots.line_up(held_jobs[:1])

        assert lend_to_thread(bench, find).wait(60)
    finally:
        threading.settrace(before)  # type: ignore[arg-type]
    bench.slots.line_up(held_jobs[1:])
    until(lambda: bench.executor._idle == 1 and bench.executor._given.empty(), f"it is free, after {interruption.line}")
    for held in held_jobs:  # as the loop does with those that do not begin
        if held.claim():
            bench.slots.give_up(held)
            bench.queue.put(held, Released(held.job.token, "it did not begin"))
    until(lambda: bench.executor._idle == 1, f"it is free, after {interruption.line}")

    ended = {held.job.id for held, _ in bench.queue.take_now(100)}
    assert ended == {"a", "b", "c"}, f"lost after {interruption.line}"
    assert sorted(bench.began) == sorted(set(bench.began)), f"run twice after {interruption.line}"
    assert list(bench.slots._free) == [0], f"its slot is lost after {interruption.line}"
    assert bench.stuck == []
    bench.executor.close()
    bench.executor._threads[0].join(PATIENCE)
    assert not bench.executor._threads[0].is_alive()
    return {interruption.line} if interruption.line is not None else set()


def test_wherever_a_thread_is_hit_no_job_and_no_slot_is_lost():
    lines: set[int] = set()
    nth = 0
    while hit := ran_in_spite_of(Interruption(nth)):
        lines |= hit
        nth += 1

    assert len(lines) > 20


def test_a_thread_that_does_not_get_on_at_all_makes_its_worker_stuck(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    def put(held: HeldJob, outcome: Outcome) -> None:
        raise LookupError("no room")

    bench.gate.set()
    monkeypatch.setattr(bench.queue, "put", put)
    bench.slots.line_up(bench.held_jobs("a"))
    until(lambda: bench.executor._idle == 1, "its thread is free again")

    assert bench.stuck == ["a worker thread keeps failing with LookupError"]
    assert bench.began == ["a"]


# --- waiting in the loop's place --------------------------------------------------------------------------------------


Work = Callable[[], None]


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody goes without its delegate because the machine is slow."""
    monkeypatch.setattr(thread_module, "PATIENCE", 60.0)


def lend_new_thread(work: Work) -> bool:
    threading.Thread(target=work, daemon=True).start()
    return True


def nobody(work: Work) -> bool:
    return False


def no_call() -> None:
    raise AssertionError("nobody had to be called back")


def test_the_work_is_done_by_another_thread_before_it_is_answered():
    done: list[int] = []

    assert delegate(lend_new_thread, lambda: done.append(threading.get_ident()), no_call) is Delegation.DONE

    assert len(done) == 1
    assert done != [threading.get_ident()]


def test_what_the_storage_raises_is_raised_in_the_loop():
    def work() -> None:
        raise StorageError("the storage has lost something")

    with pytest.raises(StorageError, match="has lost something"):
        delegate(lend_new_thread, work, no_call)


def test_an_exception_thrown_into_the_waiting_thread_does_not_reach_the_loop(caplog: pytest.LogCaptureFixture):
    def work() -> None:
        throw_into(threading.current_thread(), TimeoutError)
        raise AssertionError("it was not thrown")

    assert delegate(lend_new_thread, work, no_call) is Delegation.INTERRUPTED
    assert "TimeoutError" in caplog.text


def test_without_a_thread_nothing_is_done():
    assert delegate(nobody, no_call, no_call) is Delegation.NO_THREAD


def test_work_that_no_thread_takes_is_left_to_the_loop_alone(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(thread_module, "PATIENCE", 0.001)
    lent: list[Work] = []

    def lend_to_nobody(work: Work) -> bool:
        lent.append(work)
        return True

    assert delegate(lend_to_nobody, no_call, no_call) is Delegation.NO_THREAD
    lent[0]()  # a thread that comes too late has nothing to do


def test_a_deputy_that_has_died_is_not_waited_for(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(thread_module, "PATIENCE", 0.001)

    def lend_to_one_that_dies(work: Work) -> bool:
        assert isinstance(work, thread_module._DelegatedCall)

        def die() -> None:
            work._thread = threading.current_thread()
            work._claim()

        thread = threading.Thread(target=die)
        thread.start()
        thread.join()
        return True

    assert delegate(lend_to_one_that_dies, no_call, no_call) is Delegation.INTERRUPTED


def test_a_deputy_that_takes_its_time_is_waited_for(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(thread_module, "PATIENCE", 0.001)
    looked = threading.Event()
    done: list[str] = []

    class Watched(thread_module._DelegatedCall):
        @property
        def is_abandoned(self) -> bool:
            looked.set()
            return super().is_abandoned

    def work() -> None:
        assert looked.wait(60)
        done.append("work")

    def lend_and_see_it_begin(work: Work) -> bool:
        assert isinstance(work, thread_module._DelegatedCall)
        threading.Thread(target=work, daemon=True).start()
        while work._claims:
            looked.wait(0.001)
        return True

    monkeypatch.setattr(thread_module, "_DelegatedCall", Watched)

    assert delegate(lend_and_see_it_begin, work, no_call) is Delegation.DONE
    assert done == ["work"]


def test_a_loop_that_is_interrupted_again_and_again_calls_the_thread_back_and_waits_for_it(
    monkeypatch: pytest.MonkeyPatch,
):
    """As when the handlers of signals raise while the loop sleeps."""
    called: list[str] = []
    called_back = threading.Event()
    told: list[str] = []

    def work() -> None:
        assert called_back.wait(60)
        told.append("back")

    def call_back() -> None:
        called.append("back")
        if len(called) == 3:
            called_back.set()

    class Torn(thread_module.SimpleQueue[None]):
        def get(self, *args: object, **kwargs: object) -> None:
            if len(called) < 3:
                raise KeyboardInterrupt(len(called))
            super().get()

    monkeypatch.setattr(thread_module, "SimpleQueue", Torn)

    with pytest.raises(KeyboardInterrupt) as raised:
        delegate(lend_new_thread, work, call_back)

    assert (told, raised.value.args) == (["back"], (0,))


def test_a_loop_that_is_interrupted_as_soon_as_a_thread_waits_for_it_waits_for_the_thread():
    called_back = threading.Event()
    told: list[str] = []

    def work() -> None:
        assert called_back.wait(60)
        told.append("back")

    def lend_and_be_torn(work: Work) -> bool:
        lend_new_thread(work)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        delegate(lend_and_be_torn, work, called_back.set)

    assert told == ["back"]


def test_a_loop_that_is_interrupted_when_the_thread_is_back_does_not_wait_for_it(monkeypatch: pytest.MonkeyPatch):
    waits = threading.Event()

    class Torn(thread_module.SimpleQueue[None]):
        def get(self, *args: object, **kwargs: object) -> None:
            waits.set()
            super().get()
            raise KeyboardInterrupt

    def work() -> None:
        assert waits.wait(60)

    monkeypatch.setattr(thread_module, "SimpleQueue", Torn)

    with pytest.raises(KeyboardInterrupt):
        delegate(lend_new_thread, work, no_call)


def test_an_idle_worker_runs_a_job_on_the_thread_that_waited_for_it(
    harness: WorkerHarness, monkeypatch: pytest.MonkeyPatch
):
    waited: list[int] = []
    reserve = harness.storage.wait_and_reserve

    def wait_and_reserve(*args: object) -> object:
        waited.append(threading.get_ident())
        return reserve(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(harness.storage, "wait_and_reserve", wait_and_reserve)
    monkeypatch.setattr(type(harness.storage), "supports_threaded_wait", True)
    monkeypatch.setattr("packhorse.worker.pace._IDLE_WAITS", (0.0, 600.0))  # nobody asks but who waits
    at_work: list[int] = []

    @harness.app.task
    def task() -> None:
        at_work.append(threading.get_ident())

    harness.run()
    harness.until(lambda: waited, "it does not wait")
    harness.until(lambda: harness.worker.loop.wakeup.place == "storage")
    job = task.enqueue()
    harness.until(lambda: harness.kinds(job)[-1] == "completed", "it has not run")

    assert at_work[0] in waited
    harness.until(lambda: harness.worker.loop.finisher.done == 1, "it has not been counted")


def test_a_worker_that_is_asleep_and_has_a_deputy_ends_when_it_is_told(
    harness: WorkerHarness, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(type(harness.storage), "supports_threaded_wait", True)
    monkeypatch.setattr("packhorse.worker.pace._IDLE_WAITS", (0.0, 600.0))

    @harness.app.task
    def task() -> None: ...

    harness.run()
    harness.until(lambda: harness.worker.loop.wakeup.place == "storage")
    harness.worker.drain_soon()

    assert harness.ended() == 0


@pytest.mark.parametrize("moment", ["before it asks", "when it has jobs"])
def test_a_worker_whose_deputy_is_hit_by_what_was_meant_for_a_job_goes_on(
    harness: WorkerHarness, monkeypatch: pytest.MonkeyPatch, moment: str
):
    hit: list[int] = []
    reserve = harness.storage.wait_and_reserve

    def wait_and_reserve(*args: object) -> object:
        jobs = [] if moment == "before it asks" else reserve(*args)  # type: ignore[arg-type]
        if not hit and (jobs or moment == "before it asks"):
            hit.append(threading.get_ident())
            throw_into(threading.current_thread(), TimeoutError)
        return jobs or reserve(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(harness.storage, "wait_and_reserve", wait_and_reserve)
    monkeypatch.setattr(type(harness.storage), "supports_threaded_wait", True)
    monkeypatch.setattr("packhorse.worker.pace._IDLE_WAITS", (0.0, 600.0))

    @harness.app.task
    def task() -> None: ...

    worker = harness.run(1)
    harness.until(lambda: worker.loop.wakeup.place == "storage" or hit)
    job = task.enqueue()
    harness.until(lambda: harness.kinds(job)[-1] == "completed", "it has not run")
    after = task.enqueue()
    harness.until(lambda: harness.kinds(after)[-1] == "completed", "the next has not run")
    worker.drain_soon()

    assert harness.ended() == 0
    assert hit
    assert hit != [harness.threads[0].ident]
    assert harness.job(job).fence == 1


def test_what_is_wrong_with_the_storage_itself_comes_out_in_the_loop(
    harness: WorkerHarness, monkeypatch: pytest.MonkeyPatch
):
    at_work: list[int] = []

    def broken(*args: object) -> object:
        at_work.append(threading.get_ident())
        raise LookupError("the storage has lost something")

    harness.app.task(lambda: None, name="task")
    monkeypatch.setattr(harness.storage, "wait_and_reserve", broken)
    monkeypatch.setattr(type(harness.storage), "supports_threaded_wait", True)
    harness.open(1)

    with pytest.raises(LookupError, match="has lost something"):
        harness.until(lambda: False)

    assert len(at_work) == 2
    assert at_work.index(threading.get_ident()) == 1


def test_a_worker_whose_idle_thread_is_hit_by_what_was_meant_for_a_job_runs_the_next_and_ends_when_it_is_told(
    harness: WorkerHarness, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(type(harness.storage), "supports_threaded_wait", False)  # so that it is idle

    @harness.app.task
    def task() -> None: ...

    worker = harness.run(1)
    job = task.enqueue()
    harness.until(lambda: harness.kinds(job)[-1] == "completed", "it has not run")
    harness.until(lambda: worker.executors.threads._idle == 1, "its thread is not free again")
    throw_into(worker.executors.threads._threads[0], TimeoutError)
    after = task.enqueue()
    harness.until(lambda: harness.kinds(after)[-1] == "completed", "the next has not run")
    worker.drain_soon()

    assert harness.ended() == 0
    assert len(worker.executors.threads._threads) == 1
