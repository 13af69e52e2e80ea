"""Starts: a line that is full of jobs which are gone is not walked again and again, and no job is hidden for long."""

from __future__ import annotations

import pytest

from packhorse.conformance.builders import ids, join, new_jobs
from packhorse.core.job import QUEUED, Job
from packhorse.storage.mysql import MySQL, starts
from packhorse.storage.mysql.starts import LONG_WALK, Starts


def job(seq: int, rank: int = 12, queue: str = "mail") -> Job:
    return Job(f"job-{seq}", seq, "send", queue, "{}", QUEUED, 1, rank, 0, 0)


def test_a_short_walk_is_not_worth_remembering() -> None:
    own = Starts()
    own.note(["mail"], [job(7)], LONG_WALK / 2, is_all=False)

    assert own.of("mail") is None


def test_after_a_long_walk_a_line_begins_where_jobs_were_found() -> None:
    own = Starts(lambda: 100.0)
    own.note(["mail", "print"], [job(9), job(7, rank=5), job(8)], LONG_WALK, is_all=False)
    assert (own.of("mail"), own.of("print")) == ((12, 9), None)

    own.note(["mail"], [job(11)], 0.001, is_all=False)
    assert own.of("mail") == (12, 11)
    own.note(["mail"], [], 0.001, is_all=True)
    assert own.of("mail") is None


def test_the_whole_line_is_walked_again_after_ten_times_as_long_and_ten_seconds_at_most() -> None:
    for took, seconds in ((LONG_WALK, 10 * LONG_WALK), (60.0, 10.0)):
        now = [100.0]
        own = Starts(lambda now=now: now[0])
        own.note(["mail"], [job(9)], took, is_all=False)
        now[0] += seconds - 0.01
        own.note(["mail"], [job(10)], took, is_all=False)
        assert own.of("mail") == (12, 10)
        now[0] += 0.02
        assert own.of("mail") is None


@pytest.fixture
def marked(storage: MySQL, monkeypatch: pytest.MonkeyPatch) -> MySQL:
    """A storage to which every walk is long."""
    monkeypatch.setattr(starts, "LONG_WALK", 0.0)
    monkeypatch.setattr(starts, "_PATIENCE", 1e9)
    join(storage)
    return storage


@pytest.mark.parametrize("queues", [{"mail": 1}, {"mail": 1, "print": 1}])
def test_jobs_are_taken_in_their_order_all_the_same(marked: MySQL, queues: dict[str, int]) -> None:
    marked.enqueue(new_jobs(30))
    first = marked.reserve("ann", queues, 10)
    assert marked._starts.of("mail") == (12, first[-1].seq)

    urgent = marked.enqueue(new_jobs(3, priority=10))
    taken = [ids(marked.reserve("ann", queues, limit)) for limit in (5, 8, 40)]

    assert taken[0][:3] == [one.job_id for one in urgent]
    everything = [*ids(first), *(job_id for part in taken for job_id in part)]
    assert len(everything) == len(set(everything)) == 33


def test_a_job_that_this_process_brings_back_is_first(marked: MySQL) -> None:
    marked.enqueue(new_jobs(5))
    first, _ = marked.reserve("ann", {"mail": 1}, 2)
    marked.release([first.token], "handed back")

    assert ids(marked.reserve("ann", {"mail": 1}, 1)) == [first.id]


def test_what_another_process_brings_back_is_found_when_the_line_is_walked_again(marked: MySQL, url: str) -> None:
    other = MySQL.from_url(url)
    marked.enqueue(new_jobs(3))
    first, _ = marked.reserve("ann", {"mail": 1}, 2)
    other.release([first.token], "handed back")

    assert first.id not in ids(marked.reserve("ann", {"mail": 1}, 5))
    assert ids(marked.reserve("ann", {"mail": 1}, 5)) == [first.id]
    other.close()
