"""What a running task knows of its job, and what it can say."""

from __future__ import annotations

import time
from datetime import UTC, datetime

import pytest

from packhorse.core.clock import SECOND
from packhorse.core.context import MESSAGE_LIMIT, JobContext, current_job, tidy
from packhorse.core.errors import BadValue, PackhorseError
from tests.worker.factories import RecordingLink, a_job


@pytest.fixture
def line() -> RecordingLink:
    return RecordingLink()


@pytest.fixture
def context(line: RecordingLink) -> JobContext:
    job = a_job(failures=1, max_attempts=4, fence=7, created_at=1_800_000_000 * SECOND, meta='{"trace":"t-1"}')
    return JobContext(job, {"to": 7}, line)


def test_a_task_knows_its_job(context: JobContext):
    assert (context.id, context.task, context.queue, context.owner) == ("job-1", "send", "send", "ann")
    assert context.args == {"to": 7}
    assert context.fence == 7
    assert context.created_at == datetime(2027, 1, 15, 8, tzinfo=UTC)
    assert repr(context) == "<job job-1 (send), attempt 2>"


def test_a_task_knows_which_attempt_it_is(context: JobContext):
    assert (context.attempt, context.attempts_left, context.max_attempts) == (2, 3, 4)


def test_what_was_handed_along_is_there(context: JobContext, line: RecordingLink):
    assert context.meta == {"trace": "t-1"}
    assert JobContext(a_job(), {}, line).meta == {}


def test_outside_of_a_job_there_is_none():
    with pytest.raises(PackhorseError, match=r"no job runs here - current_job\(\) works inside a task"):
        current_job()


# --- time -----------------------------------------------------------------------------------------------------------


def test_a_job_without_a_limit_has_all_the_time(context: JobContext):
    assert context.seconds_left is None


def test_the_time_that_is_left_grows_shorter_and_ends_at_zero(line: RecordingLink, monkeypatch: pytest.MonkeyPatch):
    now = 50.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    context = JobContext(a_job(), {}, line, timeout=10 * SECOND)

    assert context.seconds_left == 10
    now = 54.0
    assert context.seconds_left == 6
    now = 90.0
    assert context.seconds_left == 0


# --- saying something -----------------------------------------------------------------------------------------------


def test_a_check_in_says_what_the_job_is_at(context: JobContext, line: RecordingLink):
    assert context.checkin("sending") is False
    assert context.checkin() is False
    assert line.checkins == [("sending", None, None), (None, None, None)]


def test_progress_is_a_check_in_too(context: JobContext, line: RecordingLink):
    assert context.progress(40, "rendering") is False
    assert line.checkins == [(None, 40, "rendering")]


def test_both_tell_the_job_to_stop(line: RecordingLink):
    line.stops = True
    context = JobContext(a_job(), {}, line)

    assert context.checkin() is True
    assert context.progress(1) is True
    assert context.should_stop is True


@pytest.mark.parametrize("percent", [-1, 101, 50.5, True, "50", None])
def test_progress_is_in_whole_percent(context: JobContext, line: RecordingLink, percent: int):
    with pytest.raises(BadValue, match="progress must be a whole number from 0 to 100"):
        context.progress(percent)

    assert line.checkins == []


@pytest.mark.parametrize("percent", [0, 100])
def test_the_ends_of_progress_are_allowed(context: JobContext, line: RecordingLink, percent: int):
    context.progress(percent)

    assert line.checkins == [(None, percent, None)]


@pytest.mark.parametrize(("said", "kept"), [("ready", "ready"), (7, "7"), (None, ""), (ValueError("x"), "x")])
def test_anything_can_be_logged(context: JobContext, line: RecordingLink, said: object, kept: str):
    context.log(said)

    assert line.lines == [("log", kept)]


@pytest.mark.parametrize(
    ("said", "kept"),
    [
        (None, None),
        ("Ljubljana č š ž", "Ljubljana č š ž"),
        ("a\0b", "a\\0b"),
        ("\udc80", "\\udc80"),
        ("x" * (MESSAGE_LIMIT + 1), "x" * MESSAGE_LIMIT + "…"),
    ],
)
def test_text_is_made_fit_for_every_storage(said: object, kept: str | None):
    assert tidy(said) == kept
