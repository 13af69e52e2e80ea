"""The fetcher: short jobs come in large batches, slow ones are never hoarded, and an idle worker asks less and less."""

from __future__ import annotations

import pytest

from packhorse.core.clock import SECOND
from packhorse.worker.fetcher import LONGEST_WAIT, MOST_BUFFERED, Fetcher

MS = SECOND // 1_000


def test_a_new_worker_takes_what_its_slots_can_begin():
    fetcher = Fetcher(10)

    assert fetcher.buffer == 0
    assert fetcher.wanted(in_hand=0) == 10
    assert fetcher.wanted(in_hand=4) == 6
    assert fetcher.wanted(in_hand=10) == 0


@pytest.mark.parametrize(("run", "buffer"), [(10 * MS, 50), (50 * MS, 10), (100 * MS, 5), (500 * MS, 1), (SECOND, 0)])
def test_the_buffer_is_what_the_slots_begin_within_50_ms(run: int, buffer: int):
    fetcher = Fetcher(10)

    fetcher.note([run, run])

    assert fetcher.buffer == buffer
    assert fetcher.wanted(0) == 10 + buffer


@pytest.mark.parametrize("run", [0, 1, 10])
def test_the_buffer_has_a_limit(run: int):
    fetcher = Fetcher(10)

    fetcher.note([run])

    assert fetcher.buffer == MOST_BUFFERED


def test_slow_jobs_are_never_hoarded():
    fetcher = Fetcher(4)

    fetcher.note([10 * SECOND])

    assert fetcher.buffer == 0
    assert fetcher.wanted(4) == 0


def test_the_buffer_follows_the_pace_of_late():
    fetcher = Fetcher(10)
    fetcher.note([MS])
    buffers = []

    for _ in range(20):
        fetcher.note([100 * MS])
        buffers.append(fetcher.buffer)

    assert buffers == sorted(buffers, reverse=True)
    assert buffers[0] < MOST_BUFFERED
    assert buffers[-1] == 5


def test_one_slow_job_among_many_quick_ones_changes_little():
    fetcher = Fetcher(10)
    fetcher.note([MS] * 100)

    fetcher.note([MS] * 99 + [100 * MS])

    assert fetcher.buffer > 300


@pytest.mark.parametrize("slots", [1, 10, 1_000])
def test_jobs_that_waited_too_long_end_the_hoarding_before_any_job_has_ended(slots: int):
    fetcher = Fetcher(slots)
    fetcher.note([MS])

    fetcher.hoarded()

    assert fetcher.buffer == 0


def test_quick_jobs_are_taken_in_batches_again_after_hoarding():
    fetcher = Fetcher(10)
    fetcher.hoarded()

    for _ in range(40):
        fetcher.note([10 * MS])

    assert fetcher.buffer == 49


def test_nothing_that_ran_teaches_nothing():
    fetcher = Fetcher(10)

    fetcher.note([])

    assert fetcher.buffer == 0


def test_an_idle_worker_waits_longer_and_longer():
    fetcher = Fetcher(10)
    waits = [fetcher.idle_wait]

    for _ in range(4):
        fetcher.found(asked=10, got=0)
        waits.append(fetcher.idle_wait)

    assert waits == [0.0, 0.01, 0.1, 1.0, 1.0]


def test_a_worker_that_has_been_idle_for_long_asks_seldom_and_often_again_once_it_was_woken():
    fetcher = Fetcher(10)
    for _ in range(30):
        fetcher.found(asked=10, got=0)
    assert fetcher.idle_wait == LONGEST_WAIT

    fetcher.woken()
    fetcher.found(asked=10, got=0)

    assert fetcher.idle_wait == 0.01


def test_a_full_hand_asks_again_at_once():
    fetcher = Fetcher(10)
    fetcher.found(asked=10, got=0)
    fetcher.found(asked=10, got=0)

    fetcher.found(asked=10, got=10)

    assert fetcher.idle_wait == 0.0


def test_a_wake_up_asks_again_at_once():
    fetcher = Fetcher(10)
    for _ in range(3):
        fetcher.found(asked=10, got=0)

    fetcher.woken()

    assert fetcher.idle_wait == 0.0
