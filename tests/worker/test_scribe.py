"""The scribe: what jobs say is written once, in order, and nothing of it is lost while the storage is away."""

from __future__ import annotations

from typing import Any

import pytest

from packhorse.conformance.builders import add, stored, take
from packhorse.errors import StorageUnavailable
from packhorse.job import RESERVED, RUNNING, Job
from packhorse.storage.contract import Storage
from packhorse.storage.records import LogKind
from packhorse.worker.scribe import Scribe
from packhorse.worker.seat import Seat
from tests.worker.conftest import Shaky
from tests.worker.making import a_seat


@pytest.fixture
def shaky(storage: Storage) -> Any:
    return Shaky(storage)


def held(storage: Storage) -> tuple[Job, Seat]:
    job = take(storage, add(storage))
    return job, a_seat(job)


def messages(storage: Storage, job: Job) -> list[str]:
    return [line.message for line in storage.log_lines(job.id)]


def test_everything_that_was_said_is_written_and_said_no_more(storage: Storage, shaky: Any):
    (one, first), (two, second) = held(storage), held(storage)
    first.log("a")
    first.log("b", "error")
    first.check_in("working", 10, "early")
    second.log("c")
    scribe = Scribe(shaky)

    scribe.write_down([first, second])
    before = len(shaky.calls)
    scribe.write_down([first, second])

    assert sorted(messages(storage, one)) == ["10 % early", "a", "b", "working"]
    assert messages(storage, two) == ["c"]
    assert stored(storage, one.id).checkin == "working"
    assert len(shaky.calls) == before


def test_a_check_in_of_an_aborted_job_says_that_it_should_end(storage: Storage):
    (one, first), (_, second) = held(storage), held(storage)
    storage.abort([one.id])
    for seat in (first, second):
        seat.check_in("on", None, None)

    assert Scribe(storage).write_down([first, second]) == [first]


@pytest.mark.parametrize("away", ["check_in", "append_log"])
def test_what_cannot_be_written_is_written_the_next_time(storage: Storage, shaky: Any, away: str):
    job, seat = held(storage)
    scribe = Scribe(shaky)
    seat.log("one")
    seat.check_in("first", 10, None)
    shaky.fails = {away}

    with pytest.raises(StorageUnavailable):
        scribe.write_down([seat])
    seat.log("two")
    shaky.fails = set()
    scribe.write_down([seat])

    assert [line for line in messages(storage, job) if line in ("one", "two")] == ["one", "two"]
    assert messages(storage, job).count("first") == 1
    assert stored(storage, job.id).progress == 10


def test_a_job_that_is_marked_late_has_begun_when_it_began(storage: Storage, monkeypatch: pytest.MonkeyPatch):
    (_, late), (_, not_yet) = held(storage), held(storage)
    late.begin(0)
    assert late.began_at is not None
    late.began_at -= 2
    told: list[int] = []
    start = storage.start
    monkeypatch.setattr(storage, "start", lambda tokens, agos: told.extend(agos) or start(tokens, agos))

    Scribe(storage).mark([late, not_yet])

    assert told[0] >= 2_000_000
    assert told[1] == 0


def test_marking_says_that_jobs_run_and_who_has_lost_his(storage: Storage):
    (one, first), (two, second) = held(storage), held(storage)
    storage.release([two.token], "somebody else's now")

    stale = Scribe(storage).mark([first, second])

    assert stale == [second]
    assert stored(storage, one.id).state is RUNNING
    assert first.is_marked


def test_a_start_that_cannot_be_written_is_not_taken_for_written(storage: Storage, shaky: Any):
    job, seat = held(storage)
    shaky.is_away = True

    with pytest.raises(StorageUnavailable):
        Scribe(shaky).mark([seat])

    assert not seat.is_marked
    assert stored(storage, job.id).state is RESERVED


def test_what_is_logged_before_progress_stands_before_it(storage: Storage):
    job, seat = held(storage)
    seat.log("first")
    seat.check_in(None, 10, "then")

    Scribe(storage).write_down([seat])

    assert [line.kind for line in storage.log_lines(job.id)] == [LogKind.LOG, LogKind.PROGRESS]


def test_a_log_keeps_only_so_many_lines(storage: Storage):
    job, seat = held(storage)
    for number in range(10):
        seat.log(str(number))

    Scribe(storage, keep_lines=3).write_down([seat])

    assert messages(storage, job)[-2:] == ["8", "9"]
