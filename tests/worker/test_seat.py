"""A seat: one job in a worker's hands; claimed once, settled once, and nothing that the job says is lost."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from packhorse.core.job import Reason
from packhorse.worker.seat import Seat, WorkerStop
from tests.worker.making import a_seat

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
    worker_stop = WorkerStop()
    seats = [a_seat(worker_stop=worker_stop) for _ in range(2)]
    before = [seat.should_stop() for seat in seats]

    worker_stop.is_wanted = True

    assert before == [False, False]
    assert all(seat.should_stop() and not seat.is_cut_short for seat in seats)


# --- what a job says ------------------------------------------------------------------------------------------------


def test_a_silent_job_has_no_words():
    assert not a_seat().has_words


def test_a_check_in_without_a_message_is_a_sign_of_life_to_write_down():
    seat = a_seat()
    seat.begin(0)
    seat.checked_in_at = 0.0

    seat.check_in(None, None, None)

    assert seat.checked_in_at > 0
    assert seat.has_words


@pytest.mark.parametrize(
    "say",
    [
        lambda seat: seat.log("a line"),
        lambda seat: seat.check_in("working", None, None),
        lambda seat: seat.check_in(None, 0, None),
    ],
)
def test_a_job_that_said_something_has_words_until_they_are_taken(say: Callable[[Seat], None]):
    seat = a_seat()
    say(seat)
    before = seat.has_words

    seat.words.take_lines()
    seat.words.take_checkin(seat.job.token)

    assert before
    assert not seat.has_words


def test_many_threads_of_one_job_speak_into_the_same_words():
    for _ in range(20):
        seat = a_seat()
        start = threading.Barrier(THREADS)

        def speak(seat: Seat = seat, start: threading.Barrier = start) -> None:
            start.wait()
            seat.log("hello")

        with ThreadPoolExecutor(THREADS) as threads:
            for one in [threads.submit(speak) for _ in range(THREADS)]:
                one.result()

        assert len(seat.words.take_lines()) == THREADS
