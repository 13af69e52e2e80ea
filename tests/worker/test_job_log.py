"""The log writer: what jobs say is written once, in order, and nothing of it is lost while the storage is away."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest

from packhorse.conformance.builders import add, stored, take
from packhorse.core.errors import BadValue, StorageUnavailable
from packhorse.core.job import RESERVED, RUNNING, Job
from packhorse.storage.contract import Storage
from packhorse.storage.records import LogKind
from packhorse.worker.held_job import HeldJob
from packhorse.worker.job_log import JobLogWriter
from tests.worker.conftest import FlakyStorage
from tests.worker.factories import a_held_job


@pytest.fixture
def flaky_storage(storage: Storage) -> Any:
    return FlakyStorage(storage)


def hold(storage: Storage) -> tuple[Job, HeldJob]:
    job = take(storage, add(storage))
    return job, a_held_job(job)


def refuse(
    storage: Storage, monkeypatch: pytest.MonkeyPatch, call: str, is_too_much: Callable[[list[str]], object]
) -> None:
    """The storage refuses what holds too much text in one call."""
    write = getattr(storage, call)

    def picky(*given: Any, **more: Any) -> Any:
        said = [text for each in given[-1] for text in (each.message, getattr(each, "progress_text", None)) if text]
        if is_too_much(said):
            raise BadValue("so much does not get through", hint="let it take more")
        return write(*given, **more)

    monkeypatch.setattr(storage, call, picky)


def messages(storage: Storage, job: Job) -> list[str]:
    return [line.message for line in storage.log_lines(job.id)]


def test_everything_that_was_said_is_written_and_said_no_more(storage: Storage, flaky_storage: Any):
    (one, first), (two, second) = hold(storage), hold(storage)
    first.log("a")
    first.log("b", "error")
    first.check_in("working", 10, "early")
    second.log("c")
    log_writer = JobLogWriter(flaky_storage)

    log_writer.write([first, second])
    before = len(flaky_storage.calls)
    log_writer.write([first, second])

    assert sorted(messages(storage, one)) == ["10 % early", "a", "b", "working"]
    assert messages(storage, two) == ["c"]
    assert stored(storage, one.id).checkin == "working"
    assert len(flaky_storage.calls) == before


def test_a_check_in_of_an_aborted_job_says_that_it_should_end(storage: Storage):
    (one, first), (_, second) = hold(storage), hold(storage)
    storage.abort([one.id])
    for held in (first, second):
        held.check_in("on", None, None)

    assert JobLogWriter(storage).write([first, second]) == [first]


def test_a_check_in_without_a_word_is_written_while_the_job_runs(storage: Storage):
    job, held = hold(storage)
    held.check_in(None, None, None)

    JobLogWriter(storage).write([held])

    assert stored(storage, job.id).checkin_at is not None
    assert messages(storage, job) == []


def test_a_check_in_without_a_word_costs_a_job_that_has_ended_no_call(storage: Storage, flaky_storage: Any):
    _, held = hold(storage)
    held.check_in(None, None, None)
    held.settle()

    JobLogWriter(flaky_storage).write([held])

    assert flaky_storage.calls == []


@pytest.mark.parametrize("away", ["check_in", "append_log"])
def test_what_cannot_be_written_is_written_the_next_time(storage: Storage, flaky_storage: Any, away: str):
    job, held = hold(storage)
    log_writer = JobLogWriter(flaky_storage)
    held.log("one")
    held.check_in("first", 10, None)
    flaky_storage.fails = {away}

    with pytest.raises(StorageUnavailable):
        log_writer.write([held])
    held.log("two")
    flaky_storage.fails = set()
    log_writer.write([held])

    assert [line for line in messages(storage, job) if line in ("one", "two")] == ["one", "two"]
    assert messages(storage, job).count("first") == 1
    assert stored(storage, job.id).progress == 10


def test_a_job_that_is_marked_late_has_begun_when_it_began(storage: Storage, monkeypatch: pytest.MonkeyPatch):
    (_, late), (_, not_yet) = hold(storage), hold(storage)
    late.begin(0)
    assert late.began_at is not None
    late.began_at -= 2
    told: list[int] = []
    start = storage.start
    monkeypatch.setattr(storage, "start", lambda tokens, agos: told.extend(agos) or start(tokens, agos))

    JobLogWriter(storage).mark_running([late, not_yet])

    assert told[0] >= 2_000_000
    assert told[1] == 0


def test_marking_says_that_jobs_run_and_who_has_lost_his(storage: Storage):
    (one, first), (two, second) = hold(storage), hold(storage)
    storage.release([two.token], "it belongs to another worker now")

    stale = JobLogWriter(storage).mark_running([first, second])

    assert stale == [second]
    assert stored(storage, one.id).state is RUNNING
    assert first.is_marked


def test_a_start_that_cannot_be_written_is_not_taken_for_written(storage: Storage, flaky_storage: Any):
    job, held = hold(storage)
    flaky_storage.is_away = True

    with pytest.raises(StorageUnavailable):
        JobLogWriter(flaky_storage).mark_running([held])

    assert not held.is_marked
    assert stored(storage, job.id).state is RESERVED


def test_what_is_logged_before_progress_stands_before_it(storage: Storage):
    job, held = hold(storage)
    held.log("first")
    held.check_in(None, 10, "then")

    JobLogWriter(storage).write([held])

    assert [line.kind for line in storage.log_lines(job.id)] == [LogKind.LOG, LogKind.PROGRESS]


def test_a_log_keeps_only_so_many_lines(storage: Storage):
    job, held = hold(storage)
    for number in range(10):
        held.log(str(number))

    JobLogWriter(storage, keep_lines=3).write([held])

    assert messages(storage, job)[-2:] == ["8", "9"]


# --- what the storage refuses ---------------------------------------------------------------------------------------


def test_lines_that_are_too_many_at_once_are_written_in_portions(storage: Storage, monkeypatch: pytest.MonkeyPatch):
    job, held = hold(storage)
    said = [str(number) for number in range(100)]
    for line in said:
        held.log(line)
    refuse(storage, monkeypatch, "append_log", lambda lines: len(lines) > 7)

    JobLogWriter(storage).write([held])

    assert messages(storage, job) == said


def test_a_line_that_is_refused_by_itself_gives_way_to_one_that_says_so(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
):
    job, held = hold(storage)
    for line, kind in (("a", "log"), ("b", "log"), ("x" * 9_000, "error"), ("c", "log")):
        held.log(line, kind)
    refuse(storage, monkeypatch, "append_log", lambda lines: sum(map(len, lines)) > 1_000)

    JobLogWriter(storage).write([held])

    notice = "a line of 9,000 characters was refused: so much does not get through - let it take more"
    assert messages(storage, job) == ["a", "b", notice, "c"]
    assert storage.log_lines(job.id)[2].kind is LogKind.ERROR


def test_a_check_in_that_is_refused_keeps_its_percentage_and_harms_no_other(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
):
    (one, first), (two, second), (three, third) = hold(storage), hold(storage), hold(storage)
    first.check_in("on", None, None)
    second.check_in("x" * 5_000, 40, "y" * 2_000)
    third.check_in(None, 70, "nearly")
    storage.abort([two.id, three.id])
    refuse(storage, monkeypatch, "check_in", lambda texts: sum(map(len, texts)) > 1_000)

    stopped = JobLogWriter(storage).write([first, second, third])

    assert stopped == [second, third]
    refused = stored(storage, two.id)
    assert stored(storage, one.id).checkin == "on"
    assert (refused.checkin or "").startswith("a message of 5,000 characters was refused: so much")
    assert refused.progress == 40
    assert (refused.progress_text or "").startswith("a text of 2,000 characters was refused: so much")
    assert stored(storage, three.id).progress == 70


def test_what_even_a_notice_cannot_be_written_for_is_lost_alone(
    storage: Storage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    (one, first), (two, second) = hold(storage), hold(storage)
    first.log("never")
    first.log("never")
    second.log("a")
    refuse(storage, monkeypatch, "append_log", lambda lines: lines != ["a"])

    with caplog.at_level(logging.WARNING, "packhorse.worker"):
        JobLogWriter(storage).write([first, second])

    assert messages(storage, one) == []
    assert messages(storage, two) == ["a"]
    assert "dropped 2 log messages of jobs" in caplog.text


@pytest.mark.parametrize("most", [1_000, 10], ids=["long lines", "everything"])
def test_a_storage_that_refuses_line_after_line_is_not_asked_about_each(
    storage: Storage, flaky_storage: Any, monkeypatch: pytest.MonkeyPatch, most: int
):
    job, held = hold(storage)
    for number in range(400):
        held.log("short" if number == 399 else "x" * 2_000)
    refuse(storage, monkeypatch, "append_log", lambda lines: max(map(len, lines)) > most)

    JobLogWriter(flaky_storage).write([held])

    assert flaky_storage.calls.count("append_log") < 100
    said = messages(storage, job)
    assert len(said) == (400 if most == 1_000 else 0)
    assert said[-1:] == (["short"] if most == 1_000 else [])


def test_a_storage_that_goes_away_between_two_portions_gets_each_line_once(
    storage: Storage, flaky_storage: Any, monkeypatch: pytest.MonkeyPatch
):
    job, held = hold(storage)
    for line in "abcdefgh":
        held.log(line)

    def is_too_much(lines: list[str]) -> bool:
        if "b" in lines and len(lines) == 2:
            flaky_storage.is_away = True  # once these are written
        return len(lines) > 2

    refuse(storage, monkeypatch, "append_log", is_too_much)
    with pytest.raises(StorageUnavailable):
        JobLogWriter(flaky_storage).write([held])
    assert messages(storage, job) == ["a", "b"]
    held.log("i")
    flaky_storage.is_away = False
    JobLogWriter(flaky_storage).write([held])

    assert messages(storage, job) == list("abcdefghi")


def test_who_should_end_hears_it_though_the_storage_goes_away_for_the_next(
    storage: Storage, flaky_storage: Any, monkeypatch: pytest.MonkeyPatch
):
    (one, first), (two, second) = hold(storage), hold(storage)
    storage.abort([one.id])
    first.check_in("one", None, None)
    second.check_in("two", None, None)

    def is_too_much(texts: list[str]) -> bool:
        if texts == ["one"]:
            flaky_storage.is_away = True
        return len(texts) > 1

    refuse(storage, monkeypatch, "check_in", is_too_much)

    assert JobLogWriter(flaky_storage).write([first, second]) == [first]
    flaky_storage.is_away = False
    JobLogWriter(flaky_storage).write([first, second])
    assert stored(storage, two.id).checkin == "two"
