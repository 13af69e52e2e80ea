"""Slots: never more jobs at once than places, whoever runs them, and each on the board while it runs."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

import pytest

from packhorse.board import Board
from packhorse.worker.slots import Slots
from tests.worker.making import a_job, a_seat


def nobody(slot: int) -> None:
    raise AssertionError("there was a free slot")


@pytest.fixture
def board(tmp_path: Path) -> Board:
    return Board.create(tmp_path / "board", 2)


def test_each_taken_slot_is_another_one():
    slots = Slots(None, 3)

    assert [slots.take(nobody) for _ in range(3)] == [0, 1, 2]


def test_who_finds_no_slot_gets_the_next_that_is_free():
    slots, given = Slots(None, 1), []
    slots.take(nobody)

    assert slots.take(given.append) is None
    assert given == []
    slots.give(0)
    assert given == [0]


def test_slots_are_given_in_the_order_of_asking():
    slots, order = Slots(None, 1), []
    slots.take(nobody)
    for name in "abc":
        slots.take(lambda slot, name=name: order.append(name))

    for _ in range(3):
        slots.give(0)

    assert order == ["a", "b", "c"]


def test_a_slot_that_nobody_waits_for_is_free_again():
    slots = Slots(None, 1)
    slots.give(slots.take(nobody) or 0)

    assert slots.take(nobody) == 0


def test_a_running_job_is_on_the_board(board: Board):
    slots = Slots(board, 2)
    one, two = a_seat(a_job("one")), a_seat(a_job("two"))

    for seat in (one, two):
        slot = slots.take(nobody)
        assert slot is not None
        slots.begin(seat, slot)
    both = board.running()
    slots.end(one)

    assert both == ["one", "two"]
    assert board.running() == ["two"]
    assert one.began_at is not None


def test_there_are_no_more_slots_than_the_board_has(board: Board):
    assert Slots(board, 10).number == 2


def test_many_threads_never_share_a_slot():
    slots = Slots(None, 3)
    taken = [threading.Lock() for _ in range(3)]

    def work() -> int:
        shared, mine = 0, SimpleQueue[int]()
        for _ in range(200):
            slot = slots.take(mine.put)
            slot = mine.get(timeout=20) if slot is None else slot
            if taken[slot].acquire(blocking=False):
                time.sleep(0)  # let the others try
                taken[slot].release()
            else:
                shared += 1
            slots.give(slot)
        return shared

    with ThreadPoolExecutor(8) as threads:
        shared = sum(one.result() for one in [threads.submit(work) for _ in range(8)])

    assert shared == 0
    assert sorted(slots.take(nobody) or 0 for _ in range(3)) == [0, 1, 2]
