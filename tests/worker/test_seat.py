"""A seat: one job in a worker's hands; claimed once, settled once, and nothing that the job says is lost."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from packhorse.job import Reason
from packhorse.storage.records import CheckIn
from packhorse.worker.seat import LINES_AT_ONCE, Seat
from tests.worker.making import a_job, a_seat

THREADS = 8
ROUNDS = 200


def winners(step: Callable[[Seat], bool], seats: list[Seat]) -> int:
    """How often `step` said True, when many threads try it on each seat at the same time."""
    start = threading.Barrier(THREADS)

    def work() -> int:
        start.wait()
        return sum(step(seat) for seat in seats)

    with ThreadPoolExecutor(THREADS) as threads:
        return sum(one.result() for one in [threads.submit(work) for _ in range(THREADS)])


def test_a_seat_is_claimed_exactly_once_under_many_threads():
    seats = [a_seat() for _ in range(ROUNDS)]

    assert winners(Seat.claim, seats) == ROUNDS


def test_a_seat_is_settled_exactly_once_under_many_threads():
    seats = [a_seat() for _ in range(ROUNDS)]

    assert winners(Seat.settle, seats) == ROUNDS
    assert all(seat.is_settled for seat in seats)


def test_a_seat_knows_how_long_it_runs():
    seat = a_seat()
    before = (seat.ran, seat.began_at)

    seat.begin(3)

    assert before == (0, None)
    assert seat.slot == 3
    assert seat.checked_in_at == seat.began_at
    assert seat.ran >= 0


# --- stopping -------------------------------------------------------------------------------------------------------


def test_nobody_is_told_to_stop_without_a_reason():
    seat = a_seat()

    assert not seat.should_stop()
    assert not seat.saw_stop


def test_a_job_that_should_stop_is_told_and_that_is_remembered():
    seat = a_seat()
    seat.stop(Reason.ABORTED, "it was aborted")
    unseen = seat.saw_stop

    assert seat.should_stop()
    assert (unseen, seat.saw_stop) == (False, True)
    assert (seat.stop_reason, seat.stop_why) == (Reason.ABORTED, "it was aborted")
    assert seat.stopped_at is not None


def test_all_jobs_of_a_worker_are_told_when_it_stops():
    worker_stops: list[bool] = []
    seats = [a_seat(worker_stops=worker_stops) for _ in range(2)]
    before = [seat.should_stop() for seat in seats]

    worker_stops.append(True)

    assert before == [False, False]
    assert all(seat.should_stop() and seat.worker_stops for seat in seats)


# --- what a job says ------------------------------------------------------------------------------------------------


def test_a_silent_job_has_nothing_to_write_down():
    seat = a_seat()

    assert not seat.has_words
    assert seat.take_checkin() is None
    assert seat.take_lines() == []


def test_a_check_in_without_words_is_a_sign_of_life_only():
    seat = a_seat()
    seat.begin(0)
    seat.checked_in_at = 0.0

    seat.check_in(None, None, None)

    assert seat.checked_in_at > 0
    assert not seat.has_words


def test_the_last_message_and_the_last_progress_are_taken_together_and_once():
    seat = a_seat(a_job())
    seat.check_in("one", None, None)
    seat.check_in(None, 10, "early")
    seat.check_in("two", None, None)
    seat.check_in(None, 20, None)

    assert seat.has_words
    assert seat.take_checkin() == CheckIn(a_job().token, "two", 20, None)
    assert seat.take_checkin() is None


def test_what_could_not_be_written_is_put_back_unless_there_is_something_newer():
    seat = a_seat()
    seat.check_in("old", 10, "old")
    said = seat.take_checkin()
    assert said is not None
    seat.check_in("new", None, None)

    seat.put_checkin_back(said)

    assert seat.take_checkin() == CheckIn(a_job().token, "new", 10, "old")


def test_lines_keep_their_order_when_they_are_put_back():
    seat = a_seat()
    seat.log("one")
    seat.log("two", "error")
    lines = seat.take_lines()
    seat.log("three")

    seat.put_lines_back(lines)

    assert [line.message for line in seat.take_lines()] == ["one", "two", "three"]


def test_of_too_many_lines_the_newest_stay():
    seat = a_seat()
    for number in range(LINES_AT_ONCE + 5):
        seat.log(str(number))
    lines = seat.take_lines()
    seat.log("last")

    seat.put_lines_back(lines)

    assert lines[0].message == "5"
    again = seat.take_lines()
    assert (len(again), again[0].message, again[-1].message) == (LINES_AT_ONCE, "6", "last")


@pytest.mark.parametrize("number", [5_000])
def test_no_last_word_is_lost_while_the_desk_takes_what_was_said(number: int):
    seat = a_seat()
    taken: list[CheckIn] = []
    is_over = threading.Event()

    def take() -> None:
        while not is_over.is_set():
            if (said := seat.take_checkin()) is not None:
                taken.append(said)

    desk = threading.Thread(target=take)
    desk.start()
    for one in range(number):
        seat.check_in(str(one), one, None)
    is_over.set()
    desk.join()
    if (said := seat.take_checkin()) is not None:
        taken.append(said)

    assert [one.message for one in taken if one.message is not None][-1] == str(number - 1)
    assert [one.progress for one in taken if one.progress is not None][-1] == number - 1
