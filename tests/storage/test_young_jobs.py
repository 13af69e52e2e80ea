"""Who asks for young jobs, for old ones, or for those of a task is not walked past all others."""

from __future__ import annotations

import math
from typing import Any

import pytest

from packhorse.conformance.builders import add, find_all, finish, ids, join, new_job, new_jobs, run
from packhorse.core.clock import HOUR, ManualClock
from packhorse.core.job import COMPLETED, DEAD
from packhorse.core.outcome import Completed
from packhorse.storage.contract import Storage
from packhorse.storage.records import Count, Filter
from packhorse.storage.redis import lists as redis_lists
from packhorse.storage.sql import lists
from packhorse.storage.sql.storage import SQLStorage


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """One call looks at a hundred jobs, instead of the usual thousands."""
    monkeypatch.setattr(lists, "AT_MOST", 100)
    monkeypatch.setattr(lists, "AT_A_TIME", 100)
    monkeypatch.setattr(lists, "_NEAR", 50)
    monkeypatch.setattr(redis_lists, "_AT_MOST", 100)
    monkeypatch.setattr(redis_lists, "_AT_ONCE", 100)


def test_a_look_for_young_jobs_ends_where_all_are_older(storage: Storage, clock: ManualClock):
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


def test_a_look_for_old_jobs_begins_where_the_others_are_too_young(storage: Storage, clock: ManualClock):
    old = [add(storage, queue="old"), add(storage, queue="young")]
    clock.turn("3h")
    storage.enqueue(new_jobs(490, queue="young"))

    def found(**where: Any) -> list[str]:
        page = storage.find(Filter(created_to=storage.now() - HOUR, **where))
        return ids(page.jobs) if page.next is None else []

    assert found() == ids(old[::-1])
    assert found(queue="young") == [old[1].id]
    assert found(text="found nowhere") == []
    assert storage.find(Filter(created_to=storage.now() + 1)).next, "then all fit"


def test_a_task_with_a_queue_of_its_own_is_found_below_all_others(storage: Storage):
    waiting, done = add(storage, queue="rare", task="rare"), add(storage, queue="rare", task="rare", priority=9)
    finish(storage, Completed(run(storage, done).token))
    storage.enqueue(new_jobs(250, queue="common", task="common"))
    storage.finish([Completed(job.token) for job in storage.reserve(join(storage), {"common": 1}, 250)])
    completed = frozenset({COMPLETED})

    def found(**where: Any) -> tuple[list[str], bool]:
        page = storage.find(Filter(**where))
        return ids(page.jobs), page.next is not None

    assert found(task="rare") == ([done.id, waiting.id], False)
    assert found(tasks=frozenset({"ra*", "none"})) == ([done.id, waiting.id], False)
    assert found(task="rare", states=completed) == ([done.id], False)
    assert found(queue="rare", states=completed) == ([done.id], False)
    assert found(task="rare", text="found nowhere") == ([], False)
    assert found(task="rare", states=frozenset({DEAD})) == ([], False)
    assert found(task="unheard of") == ([], False)
    assert storage.count(Filter(task="rare", states=completed, min_attempts=1)) == Count(1)
    assert storage.count(Filter(task="unheard of", min_attempts=1)) == Count(0)


def test_a_list_of_a_task_ends_with_the_last_job_that_it_has(storage: Storage):
    storage.enqueue(new_jobs(250, queue="shared", task="common"))
    lone = add(storage, queue="shared", task="rare")

    page = storage.find(Filter(task="rare"))
    everything = storage.find(Filter(task="rare", text="rare"))

    assert (ids(page.jobs), page.next) == ([lone.id], None)
    if storage.health().kind != "memory":
        assert (ids(everything.jobs), everything.next is None) == ([lone.id], False), "nobody has counted those"


def test_jobs_of_a_task_in_several_queues_come_in_the_order_of_the_list(storage: Storage):
    added = [add(storage, queue=f"queue-{number % 3}", task="rare") for number in range(6)]
    storage.enqueue(new_jobs(150, queue="common", task="common"))

    assert ids(storage.find(Filter(task="rare")).jobs) == ids(added[::-1])
    first = storage.find(Filter(task="rare"), limit=4)
    second = storage.find(Filter(task="rare"), limit=4, cursor=first.next)
    assert ids(first.jobs + second.jobs) == ids(added[::-1])
    assert second.next is None
    finished = [finish(storage, Completed(run(storage, job).token)) for job in added]
    assert len(finished) == 6
    ended = Filter(task="rare", states=frozenset({COMPLETED}))
    first = storage.find(ended, limit=4)
    assert ids(first.jobs + storage.find(ended, limit=4, cursor=first.next).jobs) == ids(added[::-1])


def test_jobs_that_were_moved_are_found_with_those_of_their_task_in_the_same_queue(
    storage: Storage, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(lists, "_FEW_JOBS", 10)
    monkeypatch.setattr(lists, "AT_MOST", 200)
    old = [add(storage, queue="other", task="rare") for _ in range(2)]
    storage.abort([old[0].id], by="anna")
    clock.turn("3h")
    storage.enqueue(new_jobs(450, queue="shared", task="common"))
    storage.set_queue([job.id for job in old], "shared", by="anna")
    clock.turn("3h")
    storage.roll_up()
    storage.enqueue([*new_jobs(450, queue="shared", task="common"), young := new_job(queue="shared", task="rare")])

    assert ids(find_all(storage, Filter(task="rare"))) == [young.id, old[1].id, old[0].id]
    assert storage.count(Filter(task="rare")) == Count(3)


def test_a_server_that_takes_long_is_not_asked_for_all_that_one_call_may_look_at(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
):
    if not isinstance(storage, SQLStorage) or storage._lists.patience == math.inf:
        pytest.skip("it looks at so many however long that takes")
    monkeypatch.setattr(lists, "AT_MOST", 300)
    monkeypatch.setattr(lists, "_AT_LEAST", 100)
    storage._lists.patience = 0.0
    storage.enqueue([new_job("oldest"), *new_jobs(250)])

    page = storage.find(Filter(text="oldest"))

    assert (page.jobs, page.next is None) == ([], False)
