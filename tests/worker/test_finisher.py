"""The queue: outcomes wait for each other for milliseconds at most, and none is lost or written twice."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any
from unittest.mock import ANY

import pytest

from packhorse.core.clock import SECOND
from packhorse.core.errors import BadValue, StorageUnavailable
from packhorse.core.job import Reason, Token
from packhorse.core.outcome import Completed, Failed, Failure, Halted, Outcome, Snoozed, Stopped, Verdict
from packhorse.storage.records import LogKind
from packhorse.worker.finisher import LONG_RUN, MAX_CALLS, MAX_KEPT, MAX_WAIT, OutcomeQueue, finish_in_parts
from packhorse.worker.held_job import HeldJob, WorkerStop
from tests.worker.factories import a_held_job, a_job, task_of


class WakeCounter:
    """A loop that counts how often it was rung."""

    def __init__(self) -> None:
        self.count = 0

    def wake(self) -> None:
        self.count += 1


@pytest.fixture
def wakeups() -> WakeCounter:
    return WakeCounter()


@pytest.fixture
def queue(wakeups: WakeCounter) -> OutcomeQueue:
    """One whose worker has many jobs in hand, so that a single outcome is worth no write."""
    queue = OutcomeQueue(wakeups.wake)
    queue.in_hand = queue.enough = 100
    return queue


def completed(held: HeldJob, ran: int = 0) -> Completed:
    return Completed(held.job.token, "null", ran)


def outcomes(taken: list[tuple[HeldJob, Outcome]]) -> list[Outcome]:
    return [outcome for _, outcome in taken]


# --- when it is due -------------------------------------------------------------------------------------------------


def test_nothing_is_never_due(queue: OutcomeQueue):
    assert queue.due_in() is None
    assert queue.take(10) == []


def test_a_short_job_waits_for_others_but_not_for_long(queue: OutcomeQueue, wakeups: WakeCounter, monkeypatch: Any):
    now = 1_000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    held = a_held_job()

    queue.put(held, completed(held))

    assert wakeups.count == 0
    assert queue.due_in() == pytest.approx(MAX_WAIT)
    assert queue.take(10) == []
    now += MAX_WAIT
    assert queue.due_in() == 0.0
    assert outcomes(queue.take(10)) == [completed(held)]


def test_a_long_job_is_written_down_at_once(queue: OutcomeQueue, wakeups: WakeCounter):
    held = a_held_job()

    queue.put(held, completed(held, ran=LONG_RUN))

    assert wakeups.count == 1
    assert queue.due_in() == 0.0
    assert len(queue.take(10)) == 1


def test_while_its_worker_stops_nothing_waits_for_others(queue: OutcomeQueue, wakeups: WakeCounter):
    before, after = a_held_job(), a_held_job()
    queue.put(before, completed(before))

    queue.is_stopping = True

    assert queue.due_in() == 0.0
    assert outcomes(queue.take(10)) == [completed(before)]
    queue.put(after, completed(after))
    assert wakeups.count == 1
    assert outcomes(queue.take(10)) == [completed(after)]


def test_so_many_are_enough(queue: OutcomeQueue, wakeups: WakeCounter):
    queue.enough = 3
    held_jobs = [a_held_job() for _ in range(3)]

    for held in held_jobs[:2]:
        queue.put(held, completed(held))
    before = wakeups.count
    queue.put(held_jobs[2], completed(held_jobs[2]))

    assert (before, wakeups.count) == (0, 1)
    assert queue.due_in() == 0.0


def test_the_loop_is_woken_once_until_it_comes(queue: OutcomeQueue, wakeups: WakeCounter):
    queue.enough = 1
    held_jobs = [a_held_job() for _ in range(3)]

    for held in held_jobs[:2]:
        queue.put(held, completed(held))
    before = wakeups.count
    queue.take(10)
    queue.put(held_jobs[2], completed(held_jobs[2]))

    assert (before, wakeups.count) == (1, 2)


def test_a_ring_for_what_was_taken_already_costs_the_next_one_nothing(queue: OutcomeQueue, wakeups: WakeCounter):
    queue.enough = 1
    one, two = a_held_job(), a_held_job()
    queue.put(one, completed(one))
    queue.take_now(10)

    queue.put(two, completed(two))

    assert wakeups.count == 2
    assert queue.due_in() == 0.0


def test_when_nobody_else_is_about_to_end_nobody_is_waited_for(queue: OutcomeQueue, wakeups: WakeCounter):
    queue.in_hand = 1
    held = a_held_job()

    queue.put(held, completed(held))

    assert wakeups.count == 1
    assert queue.due_in() == 0.0


def test_the_oldest_are_taken_first_and_no_more_than_asked(queue: OutcomeQueue):
    queue.enough = 1
    held_jobs = [a_held_job(a_job(str(number))) for number in range(5)]
    for held in held_jobs:
        queue.put(held, completed(held))

    assert [held.job.id for held, _ in queue.take(3)] == ["0", "1", "2"]
    assert [held.job.id for held, _ in queue.take_now(3)] == ["3", "4"]
    assert len(queue) == 0


# --- what is kept ---------------------------------------------------------------------------------------------------


def test_what_could_not_be_written_keeps_its_place(queue: OutcomeQueue):
    held_jobs = [a_held_job(a_job(str(number))) for number in range(4)]
    for held in held_jobs[:3]:
        queue.put(held, completed(held))
    taken = queue.take_now(2)
    queue.put(held_jobs[3], completed(held_jobs[3]))

    queue.put_back(taken)

    assert [held.job.id for held, _ in queue.take_now(10)] == ["0", "1", "2", "3"]


def test_it_is_full_at_a_thousand(queue: OutcomeQueue):
    for number in range(MAX_KEPT):
        assert not queue.is_full
        held = a_held_job(a_job(str(number)))
        queue.put(held, completed(held))

    assert queue.is_full


def test_an_outcome_that_comes_late_is_dropped(queue: OutcomeQueue):
    held = a_held_job()

    queue.put(held, Stopped(held.job.token))
    queue.put(held, completed(held))

    assert outcomes(queue.take_now(10)) == [Stopped(held.job.token)]


def test_an_error_becomes_a_line_of_the_log(queue: OutcomeQueue):
    held = a_held_job()

    queue.put(held, Failed(held.job.token, Failure("ValueError", "no such address")))

    (line,) = held.buffer.take_lines()
    assert (line.kind, line.message) == (LogKind.ERROR, "ValueError: no such address")


# --- jobs that were told to stop ------------------------------------------------------------------------------------


def stopping(reason: Reason | None = None, *, sees: bool = True, **job: Any) -> HeldJob:
    """A running job that was asked to stop, by an operator or, without a reason, by its worker."""
    worker_stop = WorkerStop()
    worker_stop.is_wanted = worker_stop.is_forced = reason is None
    held = a_held_job(a_job(**job), task_of(lambda: None, "send", backoff=3), worker_stop=worker_stop)
    held.begin(0)
    if reason is not None:
        held.stop(reason, "it took too long")
    if sees:
        held.should_stop()
    return held


def written(queue: OutcomeQueue, held: HeldJob, outcome: Outcome) -> Outcome:
    queue.put(held, outcome)
    ((_, told),) = queue.take_now(1)
    return told


def test_a_job_that_saw_the_abort_and_returned_is_aborted(queue: OutcomeQueue):
    held = stopping(Reason.ABORTED)

    outcome = written(queue, held, completed(held))

    assert isinstance(outcome, Stopped)
    assert outcome.reason is Reason.ABORTED


def test_a_job_that_saw_its_timeout_and_returned_has_failed_and_is_tried_again(queue: OutcomeQueue):
    held = stopping(Reason.JOB_TIMEOUT)

    outcome = written(queue, held, completed(held))

    assert isinstance(outcome, Failed)
    assert (outcome.reason, outcome.retry_in) == (Reason.JOB_TIMEOUT, 3 * SECOND)
    assert outcome.failure.summary() == "Timeout: it took too long"
    assert [line.message for line in held.buffer.take_lines()] == ["Timeout: it took too long"]


def test_a_job_that_saw_its_worker_stop_and_returned_has_completed(queue: OutcomeQueue):
    held = stopping()

    assert written(queue, held, completed(held)) == completed(held)


def test_a_job_that_saw_its_timeout_and_snoozes_has_failed(queue: OutcomeQueue):
    held = stopping(Reason.JOB_TIMEOUT)

    assert isinstance(written(queue, held, Snoozed(held.job.token, 0)), Failed)


def test_a_job_that_completed_without_looking_has_completed(queue: OutcomeQueue):
    for held in (stopping(Reason.ABORTED, sees=False), stopping(sees=False)):
        assert written(queue, held, completed(held)) == completed(held)


def test_what_a_stopped_job_says_for_itself_stands(queue: OutcomeQueue):
    held = stopping(Reason.ABORTED)

    assert written(queue, held, Snoozed(held.job.token, 5)) == Snoozed(held.job.token, 5)


# --- the version of the code ----------------------------------------------------------------------------------------


def test_what_did_not_go_well_tells_the_version_of_the_code():
    queue = OutcomeQueue(lambda: None, code_version="4f2c")
    failure = Failure("ValueError", "no")

    def ended(outcome_of: Any) -> Any:
        held = a_held_job()
        queue.put(held, outcome_of(held.job.token))
        ((_, outcome),) = queue.take_now(1)
        return outcome

    assert ended(lambda token: Failed(token, failure)).failure.version == "4f2c"
    assert ended(lambda token: Stopped(token, Reason.ABORTED, failure)).failure.version == "4f2c"
    assert ended(lambda token: Halted(token, "signal 9")).version == "4f2c"
    assert ended(lambda token: Stopped(token, Reason.ABORTED)).failure is None
    assert ended(lambda token: Snoozed(token, SECOND)) == Snoozed(ANY, SECOND)
    assert ended(lambda token: Completed(token, "null")) == Completed(ANY, "null")


def test_a_worker_that_was_told_no_version_tells_none(queue: OutcomeQueue):
    held = a_held_job()
    queue.put(held, Failed(held.job.token, Failure("ValueError", "no")))

    ((_, outcome),) = queue.take_now(1)

    assert isinstance(outcome, Failed)
    assert outcome.failure.version is None


# --- refused batches --------------------------------------------------------------------------------------------------


Batch = Sequence[tuple[int, Outcome]]


class PickyStorage:
    """A storage that refuses every call with an outcome that it does not like."""

    def __init__(self, refuses: Callable[[Outcome], bool]) -> None:
        self._refuses = refuses
        self.calls = 0
        self.written: list[Outcome] = []

    def finish(self, batch: Batch) -> list[Verdict]:
        self.calls += 1
        if any(self._refuses(outcome) for _, outcome in batch):
            raise BadValue("it is too long")
        self.written += [outcome for _, outcome in batch]
        return [Verdict.ACCEPTED] * len(batch)


def a_batch(number: int) -> list[tuple[int, Outcome]]:
    return [(place, Completed(Token(f"job-{place}", "ann", 1), result=str(place))) for place in range(number)]


def is_result_of(*places: int) -> Callable[[Outcome], bool]:
    results = [str(place) for place in places]
    return lambda outcome: isinstance(outcome, Completed) and outcome.result in results


@pytest.mark.parametrize("bad", [0, 1, 499, 500, 700, 999])
def test_one_among_a_thousand_is_found_in_few_calls(bad: int):
    storage, batch = PickyStorage(is_result_of(bad)), a_batch(1_000)

    written = finish_in_parts(batch, storage.finish)

    assert storage.calls <= 21
    assert [place for place, _ in written.written] == list(range(1_000))
    assert written.verdicts == [Verdict.ACCEPTED] * 1_000
    assert (written.lost, written.left) == ([], [])
    assert [outcome for _, outcome in written.written] == storage.written
    assert [type(outcome) is Failed for outcome in storage.written] == [place == bad for place in range(1_000)]


def test_what_is_refused_in_every_form_is_lost_alone(caplog: pytest.LogCaptureFixture):
    storage, batch = PickyStorage(lambda outcome: outcome.token.job_id == "job-2"), a_batch(5)

    written = finish_in_parts(batch, storage.finish)

    assert written.lost == [2]
    assert [place for place, _ in written.written] == [0, 1, 3, 4]
    assert written.left == []
    assert "job job-2: the storage refuses its outcome in every form" in caplog.text


def test_after_some_calls_the_rest_waits_for_the_next_time():
    storage, batch = PickyStorage(lambda outcome: True), a_batch(1_000)

    written = finish_in_parts(batch, storage.finish)

    assert storage.calls <= 2 * MAX_CALLS
    assert written.lost
    assert written.left == batch[len(written.lost) :]


@pytest.mark.parametrize("number", [1, 2, 3, 1_000])
def test_time_after_time_it_comes_to_an_end(number: int):
    storage = PickyStorage(is_result_of(*range(0, number, 7)))
    left, written = a_batch(number), []

    while left:
        some = finish_in_parts(left, storage.finish)
        written += some.written
        assert len(some.left) < len(left)
        left = some.left

    assert [place for place, _ in written] == list(range(number))
    assert sum(type(outcome) is Failed for _, outcome in written) == len(range(0, number, 7))


def test_a_storage_that_goes_away_meanwhile_is_told():
    def finish(batch: Batch) -> list[Verdict]:
        raise StorageUnavailable("gone")

    with pytest.raises(StorageUnavailable):
        finish_in_parts([(1, Snoozed(Token("job-1", "ann", 1), 5))], finish)
