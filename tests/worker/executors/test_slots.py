"""Slots: never more jobs at once than places, whatever executor runs them, in the order in which they came, and each on
the shared status while it runs."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

import pytest

from packhorse.worker.executors import Executor
from packhorse.worker.executors.slots import Slots
from packhorse.worker.held_job import HeldJob
from packhorse.worker.shared_status import SharedStatus
from tests.children import until
from tests.worker.factories import a_held_job, a_job


class Runner:
    """An executor that only notes what it is given."""

    def __init__(self, begun: list[tuple[str, int]]) -> None:
        self.begun = begun

    def begin(self, held: HeldJob, slot: int) -> None:
        self.begun.append((held.job.id, slot))

    def stop(self, held: HeldJob, *, hard: bool) -> bool:
        raise AssertionError("nobody asked for that")

    def close(self) -> None: ...


class Place:
    """Slots, and two runners: jobs whose id is upper case go to the second."""

    def __init__(self, number: int, shared_status: SharedStatus | None = None) -> None:
        self.begun: list[tuple[str, int]] = []
        self.lower, self.upper = Runner(self.begun), Runner(self.begun)
        self.slots = Slots(shared_status, number, self.executor_of)

    def executor_of(self, held: HeldJob) -> Executor:
        return self.upper if held.job.id.isupper() else self.lower

    def line_up(self, ids: str) -> None:
        self.slots.line_up([a_held_job(a_job(job_id)) for job_id in ids])


@pytest.fixture
def shared_status(tmp_path: Path) -> SharedStatus:
    return SharedStatus.create(tmp_path / "shared status", 2)


def test_each_job_that_begins_has_another_slot():
    place = Place(3)

    place.line_up("ab")
    place.line_up("c")

    assert place.begun == [("a", 0), ("b", 1), ("c", 2)]


def test_who_finds_no_slot_gets_the_next_that_is_free():
    place = Place(1)
    place.line_up("ab")
    before = list(place.begun)

    place.slots.give(0)

    assert before == [("a", 0)]
    assert place.begun == [("a", 0), ("b", 0)]


def test_jobs_of_all_executors_begin_in_the_order_in_which_they_came():
    place = Place(1)
    place.line_up("aBcD")
    place.line_up("e")

    for _ in range(4):
        place.slots.give(0)

    assert [job_id for job_id, _ in place.begun] == list("aBcDe")


def test_a_slot_that_nobody_waits_for_is_free_again():
    place = Place(1)
    place.line_up("a")
    place.slots.give(0)

    place.line_up("b")

    assert place.begun == [("a", 0), ("b", 0)]


def test_an_executor_goes_on_in_its_slot_only_with_a_job_of_its_own():
    place = Place(1)
    place.line_up("abC")

    following = place.slots.follow(0, place.lower)
    stranger = place.slots.follow(0, place.lower)

    assert following is not None
    assert following.job.id == "b"
    assert stranger is None
    assert place.begun == [("a", 0), ("C", 0)]


def test_an_executor_with_nothing_to_go_on_with_gives_its_slot_up():
    place = Place(1)
    place.line_up("a")

    nothing = place.slots.follow(0, place.lower)
    place.line_up("b")

    assert nothing is None
    assert place.begun == [("a", 0), ("b", 0)]


def test_one_that_was_handed_back_in_line_gets_no_slot():
    place = Place(1)
    held_jobs = [a_held_job(a_job(job_id)) for job_id in "abc"]
    place.slots.line_up(held_jobs)
    held_jobs[1].claim()

    place.slots.give(0)

    assert place.begun == [("a", 0), ("c", 0)]
    assert place.slots.waiting == 0


def test_one_that_was_handed_back_with_its_slot_gives_it_up_once():
    place = Place(1)
    held_jobs = [a_held_job(a_job(job_id)) for job_id in "abc"]
    place.slots.line_up(held_jobs)
    held_jobs[0].claim()

    place.slots.give_up(held_jobs[0])  # as the thread does that hands it back
    place.slots.give_up(held_jobs[0])  # and the executor, when it finds out

    assert place.begun == [("a", 0), ("b", 0)]


def test_a_running_job_is_in_the_shared_status(shared_status: SharedStatus):
    slots = Place(2, shared_status).slots
    one, two = a_held_job(a_job("one")), a_held_job(a_job("two"))

    slots.begin(one, 0)
    slots.begin(two, 1)
    both = shared_status.running()
    slots.clear(one)

    assert both == ["one", "two"]
    assert shared_status.running() == ["two"]
    assert one.began_at is not None


def test_there_are_no_more_slots_than_the_board_has(shared_status: SharedStatus):
    assert Place(10, shared_status).slots.number == 2


class Crowd:
    """Threads that take whatever is given to them, and give the slot back or continue in it."""

    def __init__(self) -> None:
        self.given: SimpleQueue[tuple[HeldJob, int] | None] = SimpleQueue()
        self.slots = Slots(None, 3, lambda held: self)
        self.taken = [threading.Lock() for _ in range(3)]
        self.run: list[str] = []
        self.shared = 0

    def begin(self, held: HeldJob, slot: int) -> None:
        self.given.put((held, slot))

    def stop(self, held: HeldJob, *, hard: bool) -> bool:
        raise AssertionError("nobody asked for that")

    def close(self) -> None: ...

    def work(self) -> None:
        while (given := self.given.get()) is not None:
            following: HeldJob | None
            following, slot = given
            while following is not None:
                self.use(following, slot)
                following = self.slots.follow(slot, self)

    def use(self, held: HeldJob, slot: int) -> None:
        if self.taken[slot].acquire(blocking=False):
            time.sleep(0)  # let the others try
            self.taken[slot].release()
        else:
            self.shared += 1
        self.run.append(held.job.id)


def test_many_threads_never_share_a_slot_and_miss_nobody():
    crowd = Crowd()

    with ThreadPoolExecutor(6) as threads:
        for _ in range(6):
            threads.submit(crowd.work)
        for start in range(0, 1_000, 50):
            crowd.slots.line_up([a_held_job(a_job(str(number))) for number in range(start, start + 50)])
        until(lambda: len(crowd.run) >= 1_000, "all have run")
        for _ in range(6):
            crowd.given.put(None)

    assert crowd.shared == 0
    assert sorted(crowd.run, key=int) == [str(number) for number in range(1_000)]


def test_a_narrow_line_is_widened():
    place = Place(3)
    held_jobs = [a_held_job(a_job(job_id)) for job_id in "abcd"]

    place.slots.line_up(held_jobs, narrow=True)
    before, was_narrow = list(place.begun), place.slots.is_narrow
    place.slots.widen()

    assert (before, was_narrow) == ([("a", 0)], True)
    assert [job_id for job_id, _ in place.begun] == ["a", "b", "c"]
    assert not place.slots.is_narrow


def test_a_narrow_line_begins_at_once_beside_a_job_that_runs():
    place = Place(3)
    place.line_up("a")

    place.slots.line_up([a_held_job(a_job(job_id)) for job_id in "bc"], narrow=True)
    place.slots.line_up([a_held_job(a_job("d"))], narrow=True)

    assert place.begun == [("a", 0), ("b", 1)]
    assert place.slots.waiting == 2
