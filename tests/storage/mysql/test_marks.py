"""Marks on MySQL: a line that is full of jobs which are gone is not walked again and again, and no job is hidden."""

from __future__ import annotations

import pytest

from packhorse.storage.mysql import MySQL, working
from packhorse.storage.sql import marks
from tests.storage.builders import add, ids, join, new_jobs


@pytest.fixture
def marked(storage: MySQL, monkeypatch: pytest.MonkeyPatch) -> MySQL:
    """A storage to which every walk is long."""
    monkeypatch.setattr(working, "_LONG_WALK", 0.0)
    monkeypatch.setattr(marks, "LONG_WALK", 0)
    monkeypatch.setattr(marks, "_PATIENCE", 1e9)
    join(storage)
    return storage


@pytest.mark.parametrize("queues", [{"mail": 1}, {"mail": 1, "print": 1}])
def test_jobs_are_taken_in_their_order_all_the_same(marked: MySQL, queues: dict[str, int]) -> None:
    marked.enqueue(new_jobs(30))
    first = marked.reserve("ann", queues, 10)
    assert marked._marks.start("mail", 12) == first[-1].seq

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


def test_what_another_process_brings_back_is_found_when_the_mark_is_old(marked: MySQL, url: str) -> None:
    other = MySQL.from_url(url)
    marked.enqueue(new_jobs(3))
    first, _ = marked.reserve("ann", {"mail": 1}, 2)
    other.release([first.token], "handed back")
    assert first.id not in ids(marked.reserve("ann", {"mail": 1}, 5))

    marked._marks._until["mail"] = 0.0

    assert ids(marked.reserve("ann", {"mail": 1}, 5)) == [first.id]
    add(other)
    other.close()
