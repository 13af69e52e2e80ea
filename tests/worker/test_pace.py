"""The pace: short jobs come in large batches, slow ones never wait in a buffer, and an idle worker asks less and
less."""

from __future__ import annotations

import pytest

from packhorse.core.clock import SECOND
from packhorse.worker.pace import LONGEST_WAIT, MAX_BUFFERED, Pace, TaskDurations

MS = SECOND // 1_000


def test_a_new_worker_takes_what_its_slots_can_begin():
    pace = Pace(10)

    assert pace.buffer == 0
    assert pace.wanted(in_hand=0) == 10
    assert pace.wanted(in_hand=4) == 6
    assert pace.wanted(in_hand=10) == 0


@pytest.mark.parametrize(("run", "buffer"), [(10 * MS, 50), (50 * MS, 10), (100 * MS, 5), (500 * MS, 1), (SECOND, 0)])
def test_the_buffer_is_what_the_slots_begin_within_50_ms(run: int, buffer: int):
    pace = Pace(10)

    pace.note([run, run])

    assert pace.buffer == buffer
    assert pace.wanted(0) == 10 + buffer


@pytest.mark.parametrize("run", [0, 1, 10])
def test_the_buffer_has_a_limit(run: int):
    pace = Pace(10)

    pace.note([run])

    assert pace.buffer == MAX_BUFFERED


def test_slow_jobs_are_never_hoarded():
    pace = Pace(4)

    pace.note([10 * SECOND])

    assert pace.buffer == 0
    assert pace.wanted(4) == 0


def test_the_buffer_follows_the_pace_of_late():
    pace = Pace(10)
    pace.note([MS])
    buffers = []

    for _ in range(20):
        pace.note([100 * MS])
        buffers.append(pace.buffer)

    assert buffers == sorted(buffers, reverse=True)
    assert buffers[0] < MAX_BUFFERED
    assert buffers[-1] == 5


def test_one_slow_job_among_many_quick_ones_changes_little():
    pace = Pace(10)
    pace.note([MS] * 100)

    pace.note([MS] * 99 + [100 * MS])

    assert pace.buffer > 300


@pytest.mark.parametrize("slots", [1, 10, 1_000])
def test_jobs_that_waited_too_long_end_the_hoarding_before_any_job_has_ended(slots: int):
    pace = Pace(slots)
    pace.note([MS])

    pace.note_overfull()

    assert pace.buffer == 0


def test_quick_jobs_are_taken_in_batches_again_after_hoarding():
    pace = Pace(10)
    pace.note_overfull()

    for _ in range(40):
        pace.note([10 * MS])

    assert pace.buffer == 49


def test_nothing_that_ran_teaches_nothing():
    pace = Pace(10)

    pace.note([])

    assert pace.buffer == 0


def test_an_idle_worker_waits_longer_and_longer():
    pace = Pace(10)
    waits = [pace.idle_wait]

    for _ in range(4):
        pace.note_answer(asked=10, got=0)
        waits.append(pace.idle_wait)

    assert waits == [0.0, 0.01, 0.1, 1.0, 1.0]


def test_a_worker_that_has_been_idle_for_long_asks_seldom_and_often_again_once_it_was_woken():
    pace = Pace(10)
    for _ in range(30):
        pace.note_answer(asked=10, got=0)
    assert pace.idle_wait == LONGEST_WAIT

    pace.wake()
    pace.note_answer(asked=10, got=0)

    assert pace.idle_wait == 0.01


def test_a_full_hand_asks_again_at_once():
    pace = Pace(10)
    pace.note_answer(asked=10, got=0)
    pace.note_answer(asked=10, got=0)

    pace.note_answer(asked=10, got=10)

    assert pace.idle_wait == 0.0


def test_a_wake_up_asks_again_at_once():
    pace = Pace(10)
    for _ in range(3):
        pace.note_answer(asked=10, got=0)

    pace.wake()

    assert pace.idle_wait == 0.0


# --- durations of tasks -----------------------------------------------------------------------------------------------


MS = SECOND // 1_000


def test_jobs_of_a_task_that_has_not_run_yet_are_neither_short_nor_long():
    durations = TaskDurations()

    assert not durations.are_short("mail")
    assert not durations.are_long("mail")


def test_each_task_is_judged_by_its_own_jobs():
    durations = TaskDurations()

    durations.note("mail", 10)
    durations.note("film", SECOND)

    assert (durations.are_short("mail"), durations.are_long("mail")) == (True, False)
    assert (durations.are_short("film"), durations.are_long("film")) == (False, True)


def test_one_slow_job_among_short_ones_does_not_make_them_less_short():
    durations = TaskDurations()
    for _ in range(100):
        durations.note("mail", 10)

    durations.note("mail", 5 * MS)

    assert durations.are_short("mail")


def test_jobs_that_have_become_slower_are_not_short_for_long():
    durations = TaskDurations()
    durations.note("mail", 10)

    for _ in range(20):
        durations.note("mail", 5 * MS)

    assert not durations.are_short("mail")


def test_the_latest_job_says_whether_the_next_one_may_be_long():
    durations = TaskDurations()
    durations.note("film", SECOND)

    durations.note("film", MS)

    assert not durations.are_long("film")
