"""The finisher: outcomes wait for each other for milliseconds at most, and none is lost or written twice."""

from __future__ import annotations

import time
from typing import Any
from unittest.mock import ANY

import pytest

from packhorse.core.clock import SECOND
from packhorse.core.job import Reason
from packhorse.core.outcome import Completed, Failed, Failure, Halted, Outcome, Snoozed, Stopped
from packhorse.storage.records import LogKind
from packhorse.worker.finisher import LONG_RUN, LONGEST_WAIT, MOST_KEPT, Finisher
from packhorse.worker.held_job import HeldJob, WorkerStop
from tests.worker.making import a_held_job, a_job, task_of


class Bell:
    """A loop that counts how often it was rung."""

    def __init__(self) -> None:
        self.rings = 0

    def ring(self) -> None:
        self.rings += 1


@pytest.fixture
def bell() -> Bell:
    return Bell()


@pytest.fixture
def finisher(bell: Bell) -> Finisher:
    """One whose worker has many jobs in hand, so that a single outcome is worth no write."""
    finisher = Finisher(bell.ring)
    finisher.in_hand = finisher.enough = 100
    return finisher


def completed(held: HeldJob, ran: int = 0) -> Completed:
    return Completed(held.job.token, "null", ran)


def outcomes(taken: list[tuple[HeldJob, Outcome]]) -> list[Outcome]:
    return [outcome for _, outcome in taken]


# --- when it is due -------------------------------------------------------------------------------------------------


def test_nothing_is_never_due(finisher: Finisher):
    assert finisher.due_in() is None
    assert finisher.take(10) == []


def test_a_short_job_waits_for_others_but_not_for_long(finisher: Finisher, bell: Bell, monkeypatch: Any):
    now = 1_000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    held = a_held_job()

    finisher.put(held, completed(held))

    assert bell.rings == 0
    assert finisher.due_in() == pytest.approx(LONGEST_WAIT)
    assert finisher.take(10) == []
    now += LONGEST_WAIT
    assert finisher.due_in() == 0.0
    assert outcomes(finisher.take(10)) == [completed(held)]


def test_a_long_job_is_written_down_at_once(finisher: Finisher, bell: Bell):
    held = a_held_job()

    finisher.put(held, completed(held, ran=LONG_RUN))

    assert bell.rings == 1
    assert finisher.due_in() == 0.0
    assert len(finisher.take(10)) == 1


def test_while_its_worker_stops_nothing_waits_for_others(finisher: Finisher, bell: Bell):
    before, after = a_held_job(), a_held_job()
    finisher.put(before, completed(before))

    finisher.is_stopping = True

    assert finisher.due_in() == 0.0
    assert outcomes(finisher.take(10)) == [completed(before)]
    finisher.put(after, completed(after))
    assert bell.rings == 1
    assert outcomes(finisher.take(10)) == [completed(after)]


def test_so_many_are_enough(finisher: Finisher, bell: Bell):
    finisher.enough = 3
    held_jobs = [a_held_job() for _ in range(3)]

    for held in held_jobs[:2]:
        finisher.put(held, completed(held))
    before = bell.rings
    finisher.put(held_jobs[2], completed(held_jobs[2]))

    assert (before, bell.rings) == (0, 1)
    assert finisher.due_in() == 0.0


def test_the_desk_is_rung_once_until_it_comes(finisher: Finisher, bell: Bell):
    finisher.enough = 1
    held_jobs = [a_held_job() for _ in range(3)]

    for held in held_jobs[:2]:
        finisher.put(held, completed(held))
    before = bell.rings
    finisher.take(10)
    finisher.put(held_jobs[2], completed(held_jobs[2]))

    assert (before, bell.rings) == (1, 2)


def test_a_ring_for_what_was_taken_already_costs_the_next_one_nothing(finisher: Finisher, bell: Bell):
    finisher.enough = 1
    one, two = a_held_job(), a_held_job()
    finisher.put(one, completed(one))
    finisher.take_now(10)

    finisher.put(two, completed(two))

    assert bell.rings == 2
    assert finisher.due_in() == 0.0


def test_when_nobody_else_is_about_to_end_nobody_is_waited_for(finisher: Finisher, bell: Bell):
    finisher.in_hand = 1
    held = a_held_job()

    finisher.put(held, completed(held))

    assert bell.rings == 1
    assert finisher.due_in() == 0.0


def test_the_oldest_are_taken_first_and_no_more_than_asked(finisher: Finisher):
    finisher.enough = 1
    held_jobs = [a_held_job(a_job(str(number))) for number in range(5)]
    for held in held_jobs:
        finisher.put(held, completed(held))

    assert [held.job.id for held, _ in finisher.take(3)] == ["0", "1", "2"]
    assert [held.job.id for held, _ in finisher.take_now(3)] == ["3", "4"]
    assert len(finisher) == 0


# --- what is kept ---------------------------------------------------------------------------------------------------


def test_what_could_not_be_written_keeps_its_place(finisher: Finisher):
    held_jobs = [a_held_job(a_job(str(number))) for number in range(4)]
    for held in held_jobs[:3]:
        finisher.put(held, completed(held))
    taken = finisher.take_now(2)
    finisher.put(held_jobs[3], completed(held_jobs[3]))

    finisher.give_back(taken)

    assert [held.job.id for held, _ in finisher.take_now(10)] == ["0", "1", "2", "3"]


def test_it_is_full_at_a_thousand(finisher: Finisher):
    for number in range(MOST_KEPT):
        assert not finisher.is_full
        held = a_held_job(a_job(str(number)))
        finisher.put(held, completed(held))

    assert finisher.is_full


def test_an_outcome_that_comes_late_is_dropped(finisher: Finisher):
    held = a_held_job()

    finisher.put(held, Stopped(held.job.token))
    finisher.put(held, completed(held))

    assert outcomes(finisher.take_now(10)) == [Stopped(held.job.token)]


def test_an_error_becomes_a_line_of_the_log(finisher: Finisher):
    held = a_held_job()

    finisher.put(held, Failed(held.job.token, Failure("ValueError", "no such address")))

    (line,) = held.job_log.take_lines()
    assert (line.kind, line.message) == (LogKind.ERROR, "ValueError: no such address")


# --- jobs that were told to stop ------------------------------------------------------------------------------------


def stopping(reason: Reason | None = None, *, sees: bool = True, **job: Any) -> HeldJob:
    """A running job that was told to stop, by an operator or, without a reason, by its worker."""
    worker_stop = WorkerStop()
    worker_stop.is_wanted = worker_stop.is_forced = reason is None
    held = a_held_job(a_job(**job), task_of(lambda: None, "send", backoff=3), worker_stop=worker_stop)
    held.begin(0)
    if reason is not None:
        held.stop(reason, "it took too long")
    if sees:
        held.should_stop()
    return held


def written(finisher: Finisher, held: HeldJob, outcome: Outcome) -> Outcome:
    finisher.put(held, outcome)
    ((_, told),) = finisher.take_now(1)
    return told


def test_a_job_that_saw_the_abort_and_returned_is_aborted(finisher: Finisher):
    held = stopping(Reason.ABORTED)

    outcome = written(finisher, held, completed(held))

    assert isinstance(outcome, Stopped)
    assert outcome.reason is Reason.ABORTED


def test_a_job_that_saw_its_timeout_and_returned_has_failed_and_is_tried_again(finisher: Finisher):
    held = stopping(Reason.JOB_TIMEOUT)

    outcome = written(finisher, held, completed(held))

    assert isinstance(outcome, Failed)
    assert (outcome.reason, outcome.retry_in) == (Reason.JOB_TIMEOUT, 3 * SECOND)
    assert outcome.failure.summary() == "Timeout: it took too long"
    assert [line.message for line in held.job_log.take_lines()] == ["Timeout: it took too long"]


def test_a_job_that_saw_its_worker_stop_and_returned_has_completed(finisher: Finisher):
    held = stopping()

    assert written(finisher, held, completed(held)) == completed(held)


def test_a_job_that_saw_its_timeout_and_snoozes_has_failed(finisher: Finisher):
    held = stopping(Reason.JOB_TIMEOUT)

    assert isinstance(written(finisher, held, Snoozed(held.job.token, 0)), Failed)


def test_a_job_that_completed_without_looking_has_completed(finisher: Finisher):
    for held in (stopping(Reason.ABORTED, sees=False), stopping(sees=False)):
        assert written(finisher, held, completed(held)) == completed(held)


def test_what_a_stopped_job_says_for_itself_stands(finisher: Finisher):
    held = stopping(Reason.ABORTED)

    assert written(finisher, held, Snoozed(held.job.token, 5)) == Snoozed(held.job.token, 5)


# --- the version of the code ----------------------------------------------------------------------------------------


def test_what_did_not_go_well_tells_the_version_of_the_code():
    finisher = Finisher(lambda: None, code_version="4f2c")
    failure = Failure("ValueError", "no")

    def ended(outcome_of: Any) -> Any:
        held = a_held_job()
        finisher.put(held, outcome_of(held.job.token))
        ((_, outcome),) = finisher.take_now(1)
        return outcome

    assert ended(lambda token: Failed(token, failure)).failure.version == "4f2c"
    assert ended(lambda token: Stopped(token, Reason.ABORTED, failure)).failure.version == "4f2c"
    assert ended(lambda token: Halted(token, "signal 9")).version == "4f2c"
    assert ended(lambda token: Stopped(token, Reason.ABORTED)).failure is None
    assert ended(lambda token: Snoozed(token, SECOND)) == Snoozed(ANY, SECOND)
    assert ended(lambda token: Completed(token, "null")) == Completed(ANY, "null")


def test_a_worker_that_was_told_no_version_tells_none(finisher: Finisher):
    held = a_held_job()
    finisher.put(held, Failed(held.job.token, Failure("ValueError", "no")))

    ((_, outcome),) = finisher.take_now(1)

    assert isinstance(outcome, Failed)
    assert outcome.failure.version is None
