"""A held job: one job in a worker's hands; claimed once, settled once, and nothing that the job says is lost."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from packhorse.core.job import Reason
from packhorse.storage.records import CheckIn, count_lost, dropped_lines
from packhorse.worker.held_job import MAX_LINES, HeldJob, LogBuffer, WorkerStop
from packhorse.worker.job_log import _for_storage
from tests.worker.factories import a_held_job, a_job

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
    assert all(held.should_stop() and not held.is_interrupted for held in held_jobs)


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

    held.buffer.take_lines()
    held.buffer.take_checkin(held.job.token)

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

        assert len(held.buffer.take_lines()) == THREADS


# --- what the job logs ------------------------------------------------------------------------------------------------


TOKEN = a_job().token


@pytest.fixture
def job_log() -> LogBuffer:
    return LogBuffer()


def lines(job_log: LogBuffer) -> list[str]:
    return [line.message for line in job_log.take_lines()]


def test_no_words_are_none(job_log: LogBuffer):
    assert not job_log
    assert job_log.take_checkin(TOKEN) is None
    assert job_log.take_lines() == []


def test_the_last_message_and_the_last_progress_are_taken_together_and_once(job_log: LogBuffer):
    job_log.check_in("one", None, None)
    job_log.check_in(None, 10, "early")
    job_log.check_in("two", None, None)
    job_log.check_in(None, 20, None)

    assert job_log
    assert job_log.take_checkin(TOKEN) == CheckIn(TOKEN, "two", 20, None, is_logged=True)
    assert job_log.take_checkin(TOKEN) is None
    assert lines(job_log) == ["one", "10 % early", "two", "20 %"]
    assert not job_log


def test_a_check_in_without_a_word_is_taken_once_and_makes_no_line(job_log: LogBuffer):
    job_log.check_in(None, None, None)

    assert job_log
    said = job_log.take_checkin(TOKEN)
    assert said == CheckIn(TOKEN, is_logged=True)
    assert not job_log
    assert job_log.take_checkin(TOKEN) is None
    job_log.put_checkin_back(said)
    assert job_log.take_checkin(TOKEN) == said
    assert lines(job_log) == []


def test_what_could_not_be_written_is_put_back_unless_there_is_something_newer(job_log: LogBuffer):
    job_log.check_in("old", 10, "old")
    said = job_log.take_checkin(TOKEN)
    assert said is not None
    job_log.check_in("new", None, None)

    job_log.put_checkin_back(said)

    assert job_log.take_checkin(TOKEN) == CheckIn(TOKEN, "new", 10, "old", is_logged=True)


def test_lines_keep_their_order_when_they_are_put_back(job_log: LogBuffer):
    job_log.log("one", "log")
    job_log.log("two", "error")
    taken = job_log.take_lines()
    job_log.log("three", "log")

    job_log.put_lines_back(taken)

    assert lines(job_log) == ["one", "two", "three"]


def test_of_too_many_lines_the_newest_stay_and_a_line_says_how_many_are_gone(job_log: LogBuffer):
    for number in range(MAX_LINES + 5):
        job_log.log(str(number), "log")
    taken = job_log.take_lines()
    job_log.log("last", "log")

    job_log.put_lines_back(taken)

    assert [line.message for line in taken[:2]] == [dropped_lines(5), "5"]
    again = lines(job_log)
    assert (len(again), again[:2], again[-1]) == (MAX_LINES + 1, [dropped_lines(6), "6"], "last")
    job_log.log("and on", "log")
    assert lines(job_log) == ["and on"]


def test_lines_progress_and_messages_stay_in_their_order(job_log: LogBuffer):
    job_log.log("begin", "log")
    job_log.check_in(None, 10, None)
    job_log.log("middle", "log")
    job_log.check_in("still here", None, None)
    for _ in range(3):
        job_log.check_in(None, 20, "pages")

    taken = job_log.take_lines()

    assert [(line.kind, line.message) for line in taken] == [
        ("log", "begin"),
        ("progress", "10 %"),
        ("log", "middle"),
        ("checkin", "still here"),
        ("progress", "20 % pages"),  # once, however often it was said
    ]


def test_a_line_tells_how_long_ago_it_was_said_and_in_which_attempt(
    job_log: LogBuffer, monkeypatch: pytest.MonkeyPatch
):
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    job_log.log("first", "log")
    now[0] = 100.2
    job_log.log("second", "log")
    now[0] = 100.25

    lines = _for_storage(job_log.take_lines(), 3)

    assert [(line.ago, line.attempt, line.at) for line in lines] == [(250_000, 3, 0), (50_000, 3, 0)]


def test_no_line_is_lost_or_counted_wrong_while_threads_say_more_than_there_is_room_for(job_log: LogBuffer):
    def say(name: int) -> None:
        for number in range(2_000):
            job_log.log(f"{name} {number}", "log")

    threads = [threading.Thread(target=say, args=(name,)) for name in range(4)]
    taken: list[str] = []
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        taken += lines(job_log)
    taken += lines(job_log)

    assert count_lost(taken) == 8_000


def test_no_last_word_is_lost_while_somebody_takes_what_was_said(job_log: LogBuffer):
    taken: list[CheckIn] = []
    is_over = threading.Event()

    def take() -> None:
        if (said := job_log.take_checkin(TOKEN)) is not None:
            taken.append(said)

    def take_on() -> None:
        while not is_over.is_set():
            take()

    loop = threading.Thread(target=take_on)
    loop.start()
    for number in range(5_000):
        job_log.check_in(str(number), number, None)
    is_over.set()
    loop.join()
    take()

    assert [one.message for one in taken if one.message is not None][-1] == "4999"
    assert [one.progress for one in taken if one.progress is not None][-1] == 4_999


def test_a_loop_of_check_ins_without_a_word_is_written_down_now_and_then(monkeypatch: pytest.MonkeyPatch):
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    said, taken = LogBuffer(), 0

    for _ in range(40):
        now += 0.25
        said.check_in(None, None, None)
        taken += bool(said) and said.take_checkin(TOKEN) is not None

    assert taken == 5


def test_a_message_is_written_down_at_once_after_a_check_in_without_one():
    said = LogBuffer()
    said.check_in(None, None, None)
    said.take_checkin(TOKEN)

    said.check_in("half done", None, None)

    assert said
    assert said.take_checkin(TOKEN) == CheckIn(TOKEN, "half done", None, None, is_logged=True)
