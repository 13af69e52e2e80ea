"""The outcomes of jobs that were asked to stop."""

from __future__ import annotations

from typing import Any

import pytest

from packhorse.core.clock import SECOND
from packhorse.core.errors import BadValue
from packhorse.core.job import Reason, Token
from packhorse.core.outcome import Completed, Failed, Failure, Halted, Outcome, Released, Snoozed, Stopped
from packhorse.worker.held_job import HeldJob, WorkerStop
from packhorse.worker.outcomes import of_given_up, of_stopped, shortened
from tests.worker.factories import a_held_job, a_job, task_of


def running(job: dict[str, Any] | None = None, *, worker_ends: bool = False, **options: Any) -> HeldJob:
    """A job that began at 100 seconds."""
    worker_stop = WorkerStop()
    worker_stop.is_wanted = worker_stop.is_forced = worker_ends
    held = a_held_job(a_job(**job or {}), task_of(lambda: None, "send", **options), worker_stop=worker_stop)
    held.begin(0)
    held.began_at = held.checked_in_at = 100.0
    return held


# --- outcomes -------------------------------------------------------------------------------------------------------


def test_a_job_that_nobody_told_anything_decides_for_itself():
    assert of_stopped(running()) is None


def test_an_aborted_job_is_aborted():
    held = running()
    held.stop(Reason.ABORTED, "it was aborted")

    outcome = of_stopped(held)

    assert outcome == Stopped(held.job.token, Reason.ABORTED, ran=outcome.ran if outcome else 0)


def test_a_job_that_was_given_up_says_why():
    held = running()
    held.stop(Reason.ABORTED, "it was aborted")

    outcome = of_given_up(held, 15 * SECOND)

    assert isinstance(outcome, Stopped)
    assert outcome.failure == Failure(
        "Aborted",
        "it did not end when asked: it may run until its worker is replaced, at most 15 s later",
        goes_on=15 * SECOND,
        worker="ann",
    )


def test_a_timeout_is_a_failed_attempt():
    held = running(backoff=3)
    held.stop(Reason.JOB_TIMEOUT, "it ran for longer than 5 s")

    outcome = of_stopped(held)

    assert isinstance(outcome, Failed)
    assert (outcome.reason, outcome.retry_in) == (Reason.JOB_TIMEOUT, 3 * SECOND)
    assert outcome.failure.summary() == "Timeout: it ran for longer than 5 s"


def test_a_timeout_of_the_last_attempt_is_not_tried_again():
    held = running({"failures": 3})
    held.stop(Reason.JOB_TIMEOUT, "it ran for longer than 5 s")

    outcome = of_stopped(held)

    assert isinstance(outcome, Failed)
    assert outcome.retry_in is None


def test_a_job_that_is_cut_short_because_its_worker_goes_is_handed_back():
    held = running(worker_ends=True)

    outcome = of_stopped(held)

    assert isinstance(outcome, Released)
    assert outcome.why == "its worker was told to stop"


def test_an_abort_goes_before_the_end_of_the_worker():
    held = running(worker_ends=True)
    held.stop(Reason.ABORTED, "it was aborted")

    assert isinstance(of_stopped(held), Stopped)


# --- limits ---------------------------------------------------------------------------------------------------------


LONG = Failure("ValueError", "x" * 4_000, traceback="y" * 30_000, place="mail.py:12", final="stop_on", version="v7")
SHORT = Failure(
    "ValueError",
    "x" * 500 + "…",
    traceback="left out, because the storage refused it: too long",
    place="mail.py:12",
    final="stop_on",
    version="v7",
)
TOKEN = Token("job-1", "ann", 1)


@pytest.mark.parametrize(
    ("outcome", "instead"),
    [
        (Failed(TOKEN, LONG, 5, Reason.JOB_TIMEOUT, 7, 3), Failed(TOKEN, SHORT, 5, Reason.JOB_TIMEOUT, 7, 3)),
        (Failed(TOKEN, LONG), Failed(TOKEN, SHORT)),
        (Failed(TOKEN, Failure("E", "m"), 5), Failed(TOKEN, Failure("E", "m"), 5)),
        (Stopped(TOKEN, Reason.ABORTED, LONG, 7, 3), Stopped(TOKEN, Reason.ABORTED, SHORT, 7, 3)),
        (Stopped(TOKEN, ran=7), Stopped(TOKEN, ran=7)),
        (Snoozed(TOKEN, 10, 7, 3), Snoozed(TOKEN, 10, 7, 3)),
        (Released(TOKEN, "z" * 900, 4, 7, 3), Released(TOKEN, "z" * 500 + "…", 4, 7, 3)),
        (Halted(TOKEN, "its child died", 7, 3, "v7"), Halted(TOKEN, "its child died", 7, 3, "v7")),
        (Completed(TOKEN, "[1]", 7, 3), Failed(TOKEN, Failure("BadValue", "too long", final="result"), ran=7, ago=3)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_is_too_long_for_the_storage_is_shortened_and_only_a_result_is_a_failure_then(
    outcome: Outcome, instead: Outcome
):
    assert shortened(outcome, BadValue("too long")) == instead


def test_why_it_was_refused_is_not_too_long_itself():
    refused = shortened(Completed(TOKEN), BadValue("x" * 100_000))

    assert isinstance(refused, Failed)
    assert len(refused.failure.message) < 1_000
