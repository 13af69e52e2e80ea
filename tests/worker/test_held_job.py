"""A held job: one job in a worker's hands; claimed once, settled once, and nothing that the job says is lost."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from packhorse.core.job import Reason
from packhorse.worker.held_job import HeldJob, WorkerStop
from tests.worker.making import a_held_job

THREADS = 8
ROUNDS = 200


def winners(step: Callable[[HeldJob], bool], held_jobs: list[HeldJob]) -> int:
    """How often `step` said True, when many threads try it on each held job at the same time."""
    start = threading.Barrier(THREADS)

    def work() -> int:
        start.wait()
        return sum(step(held) for held in held_jobs)

    with ThreadPoolExecutor(THREADS) as threads:
        return sum(one.result() for one in [threads.submit(work) for _ in range(THREADS)])


def test_a_seat_is_claimed_exactly_once_under_many_threads():
    held_jobs = [a_held_job() for _ in range(ROUNDS)]

    assert winners(HeldJob.claim, held_jobs) == ROUNDS


def test_a_seat_is_settled_exactly_once_under_many_threads():
    held_jobs = [a_held_job() for _ in range(ROUNDS)]

    assert winners(HeldJob.settle, held_jobs) == ROUNDS
    assert all(held.is_settled for held in held_jobs)


def test_a_seat_knows_how_long_it_runs():
    held = a_held_job()
    before = (held.ran, held.began_at)

    held.begin(3)

    assert before == (0, None)
    assert held.slot == 3
    assert held.checked_in_at == held.began_at
    assert held.ran >= 0


# --- stopping -------------------------------------------------------------------------------------------------------


def test_nobody_is_told_to_stop_without_a_reason():
    held = a_held_job()

    assert not held.should_stop()
    assert not held.saw_stop


def test_a_job_that_should_stop_is_told_and_that_is_remembered():
    held = a_held_job()
    held.stop(Reason.ABORTED, "it was aborted")
    unseen = held.saw_stop

    assert held.should_stop()
    assert (unseen, held.saw_stop) == (False, True)
    assert (held.stop_reason, held.stop_why) == (Reason.ABORTED, "it was aborted")
    assert held.stopped_at is not None


def test_all_jobs_of_a_worker_are_told_when_it_stops():
    worker_stop = WorkerStop()
    held_jobs = [a_held_job(worker_stop=worker_stop) for _ in range(2)]
    before = [held.should_stop() for held in held_jobs]

    worker_stop.is_wanted = True

    assert before == [False, False]
    assert all(held.should_stop() and not held.is_cut_short for held in held_jobs)


# --- what a job says ------------------------------------------------------------------------------------------------


def test_a_silent_job_has_no_words():
    assert not a_held_job().has_unwritten


def test_a_check_in_without_a_message_is_a_sign_of_life_to_write_down():
    held = a_held_job()
    held.begin(0)
    held.checked_in_at = 0.0

    held.check_in(None, None, None)

    assert held.checked_in_at > 0
    assert held.has_unwritten


@pytest.mark.parametrize(
    "say",
    [
        lambda held: held.log("a line"),
        lambda held: held.check_in("working", None, None),
        lambda held: held.check_in(None, 0, None),
    ],
)
def test_a_job_that_said_something_has_words_until_they_are_taken(say: Callable[[HeldJob], None]):
    held = a_held_job()
    say(held)
    before = held.has_unwritten

    held.job_log.take_lines()
    held.job_log.take_checkin(held.job.token)

    assert before
    assert not held.has_unwritten


def test_many_threads_of_one_job_speak_into_the_same_words():
    for _ in range(20):
        held = a_held_job()
        start = threading.Barrier(THREADS)

        def speak(held: HeldJob = held, start: threading.Barrier = start) -> None:
            start.wait()
            held.log("hello")

        with ThreadPoolExecutor(THREADS) as threads:
            for one in [threads.submit(speak) for _ in range(THREADS)]:
                one.result()

        assert len(held.job_log.take_lines()) == THREADS
