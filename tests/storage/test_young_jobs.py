"""Who asks for young jobs is not walked past all the old ones."""

from __future__ import annotations

from typing import Any

import pytest

from packhorse.clock import HOUR, TurnedClock
from packhorse.conformance.builders import add, finish, ids, join, new_jobs, run
from packhorse.job import COMPLETED
from packhorse.outcome import Completed
from packhorse.storage.contract import Storage
from packhorse.storage.records import Filter
from packhorse.storage.redis import lists as redis_lists
from packhorse.storage.sql import lists


def test_a_look_for_young_jobs_ends_where_all_are_older(
    storage: Storage, clock: TurnedClock, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(lists, "AT_MOST", 100)
    monkeypatch.setattr(redis_lists, "_AT_MOST", 100)
    monkeypatch.setattr(redis_lists, "_AT_ONCE", 100)
    storage.enqueue(new_jobs(250, queue="old"))
    storage.finish([Completed(job.token) for job in storage.reserve(join(storage), {"old": 1}, 250)])
    clock.turn("3h")
    done, waiting = add(storage, queue="young"), add(storage, queue="old")
    finish(storage, Completed(run(storage, done).token))

    def found(age: int = HOUR, **where: Any) -> tuple[list[str], bool]:
        page = storage.find(Filter(created_from=storage.now() - age, **where))
        return ids(page.jobs), page.next is not None

    assert found() == ([waiting.id, done.id], False)
    assert found(queue="old") == ([waiting.id], False)
    assert found(states=frozenset({COMPLETED})) == ([done.id], False)
    assert found(text="found nowhere") == ([], False)
    assert found(4 * HOUR)[1], "then the old ones fit, too"
    assert storage.count(Filter(created_from=storage.now() - HOUR, queue="old")).number == 1
