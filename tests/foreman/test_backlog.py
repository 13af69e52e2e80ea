from __future__ import annotations

import pytest

from packhorse.core.clock import SECOND, ManualClock
from packhorse.core.job import NewJob
from packhorse.foreman.poller import read_demand
from packhorse.foreman.scaling import Demand
from packhorse.foreman.worker_handle import Serving
from packhorse.storage import open_storage
from packhorse.storage.contract import Storage

MAIL = Serving(frozenset({"mail"}))


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def storage(clock: ManualClock) -> Storage:
    return open_storage("memory://", now=clock)


def add(storage: Storage, job_id: str, queue: str = "mail", **options: int) -> None:
    storage.enqueue([NewJob(id=job_id, task="send", queue=queue, **options)])


def test_nothing_waits_in_an_empty_storage(storage: Storage) -> None:
    assert read_demand(storage, None)[0] == Demand()


def test_what_waits_is_counted_and_the_oldest_is_known(storage: Storage, clock: ManualClock) -> None:
    add(storage, "old")
    clock.turn(3)
    add(storage, "new")
    add(storage, "later", delay=60 * SECOND)

    assert read_demand(storage, None)[0] == Demand(backlog=2, oldest_wait=3.0)


def test_queues_that_no_worker_serves_do_not_count(storage: Storage) -> None:
    add(storage, "a")
    add(storage, "b", queue="video")

    assert read_demand(storage, MAIL)[0].backlog == 1
    assert read_demand(storage, None)[0].backlog == 2


def test_of_a_paused_queue_only_forced_jobs_count(storage: Storage) -> None:
    add(storage, "a")
    add(storage, "b")
    storage.pause("mail")
    assert read_demand(storage, MAIL)[0] == Demand()

    storage.force_start(["b"])

    demand = read_demand(storage, MAIL)[0]
    assert (demand.backlog, demand.forced) == (1, 1)


def test_forced_jobs_of_other_queues_do_not_count(storage: Storage) -> None:
    add(storage, "a")
    add(storage, "b", queue="video")

    storage.force_start(["b"])

    demand = read_demand(storage, MAIL)[0]
    assert (demand.backlog, demand.forced) == (1, 0)


def test_a_queue_that_holds_jobs_of_their_tasks_is_served_whatever_its_name(storage: Storage) -> None:
    add(storage, "a", queue="bulk.de")
    add(storage, "b", queue="video")
    storage.enqueue([NewJob(id="c", task="strange", queue="bulk.fr")])

    every = read_demand(storage, Serving(frozenset({"mail"}), frozenset({"send"}), ("*",)))
    some = read_demand(storage, Serving(frozenset({"mail"}), frozenset({"send"}), ("mail", "bulk.*")))

    assert (every[0].backlog, every[1]) == (2, {"bulk.de": ["send"], "video": ["send"]})
    assert (some[0].backlog, some[1]) == (1, {"bulk.de": ["send"]})
