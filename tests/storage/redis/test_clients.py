"""Clients and workers that have very much to let go of, and calls that overtake one another."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest

from packhorse.conformance.builders import (
    WORKER,
    add,
    at_once,
    find_all,
    ids,
    in_state,
    join,
    new_job,
    new_jobs,
    recount,
    stored,
    tallies,
)
from packhorse.core.clock import HOUR
from packhorse.core.event import Kind, Subject
from packhorse.core.job import COMPLETED, DEAD, FINAL, QUEUED, RESERVED, RUNNING
from packhorse.core.outcome import Completed
from packhorse.storage.contract import BATCH
from packhorse.storage.records import ClientInfo, EventFilter, Filter, Retention, ScheduleInfo, Tick
from packhorse.storage.redis import Redis, lists, pruner
from tests.storage.redis.audit import audit
from tests.storage.redis.races import after_read, before_write

AT_ONCE = Retention(completed=0, dead=0, aborted=0, events=HOUR, clients=HOUR)


@pytest.fixture
def neighbour(url: str) -> Iterator[Redis]:
    neighbour = Redis.from_url(url)
    yield neighbour
    neighbour.close()


@pytest.fixture
def carl(storage: Redis) -> str:
    storage.join_client(ClientInfo("carl"))
    storage.join_client(ClientInfo("dora"))
    return "carl"


def prunable(storage: Redis) -> set[str]:
    """The finished jobs that retention would remove."""
    before = {job.id for job in find_all(storage, Filter(FINAL))}
    storage.prune(AT_ONCE)
    return before - {job.id for job in find_all(storage, Filter(FINAL))}


# --- very much ------------------------------------------------------------------------------------------------------


def test_a_client_with_very_many_subscriptions_leaves_in_parts(
    storage: Redis, carl: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pruner, "MOST_MISSED", 4)
    jobs = [in_state(storage, state) for state in (COMPLETED, QUEUED, RESERVED) for _ in range(5)]
    storage.subscribe(carl, ids(jobs))
    assert len(storage.outcomes_for(carl)) == 5

    assert storage.leave_client(carl)

    assert [storage.subscribers(job.id) for job in jobs] == [[]] * len(jobs)
    assert storage.outcomes_for(carl) == []
    assert [event.owner for event in storage.events(EventFilter(kind=Kind.LEFT))] == [carl]
    assert prunable(storage) == set(ids(jobs[:5]))


def test_outcomes_are_read_whole(storage: Redis, carl: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lists, "_JOBS_AT_ONCE", 4)
    jobs = [in_state(storage, COMPLETED) for _ in range(10)]
    storage.subscribe(carl, ids(jobs))

    assert ids(storage.outcomes_for(carl)) == ids(jobs)
    assert ids(storage.outcomes_for(carl, limit=6)) == ids(jobs[:6])


def test_a_worker_that_holds_more_than_a_batch_leaves_all_of_it(storage: Redis) -> None:
    for _ in range(2):
        storage.enqueue(new_jobs(BATCH))
        storage.reserve(join(storage), {"mail": 1}, BATCH)
    storage.enqueue(new_jobs(5))
    storage.reserve("ann", {"mail": 1}, 5)

    storage.leave("ann")

    assert storage.count(Filter(frozenset({QUEUED}))).number == 2 * BATCH + 5
    assert tallies(storage) == recount(storage)
    assert storage.workers() == []
    assert storage.find(Filter(owner="ann")).jobs == []


# --- overtaken ------------------------------------------------------------------------------------------------------


def test_a_job_is_kept_for_a_client_that_subscribes_while_the_last_one_acknowledges(
    storage: Redis, neighbour: Redis, carl: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = in_state(storage, COMPLETED, subscriber=carl)
    before_write(monkeypatch, storage, lambda: neighbour.subscribe("dora", [job.id]))

    assert storage.acknowledge(carl, [job.id]) == 1

    assert storage.subscribers(job.id) == ["dora"]
    assert ids(neighbour.outcomes_for("dora")) == [job.id]


def test_an_outcome_is_acknowledged_once_although_two_do_it(
    storage: Redis, neighbour: Redis, carl: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = in_state(storage, COMPLETED, subscriber=carl, persistent=True)
    before_write(monkeypatch, storage, lambda: neighbour.acknowledge(carl, [job.id]))

    assert storage.acknowledge(carl, [job.id]) == 0

    assert len(storage.events(EventFilter(kind=Kind.HANDLED))) == 1


def test_a_subscription_made_while_the_client_leaves_is_deleted_too(
    storage: Redis, neighbour: Redis, carl: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, other = in_state(storage, COMPLETED, subscriber=carl), in_state(storage, COMPLETED)
    before_write(monkeypatch, storage, lambda: neighbour.subscribe(carl, [other.id]))

    assert storage.leave_client(carl)

    assert (storage.subscribers(job.id), storage.subscribers(other.id)) == ([], [])
    assert prunable(storage) == {job.id, other.id}


def test_a_client_with_a_sign_of_life_just_before_the_prune_stays(
    storage: Redis, neighbour: Redis, carl: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = in_state(storage, COMPLETED, subscriber=carl)
    before_write(monkeypatch, storage, lambda: neighbour.join_client(ClientInfo(carl)))

    storage.prune(Retention(clients=0))

    assert carl in [client.id for client in storage.clients()]
    assert storage.subscribers(job.id) == [carl]


def test_a_job_reserved_while_the_worker_leaves_is_released_too(
    storage: Redis, neighbour: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = add(storage), add(storage)
    storage.reserve(join(storage), {"mail": 1}, 1)
    before_write(monkeypatch, storage, lambda: neighbour.reserve("ann", {"mail": 1}, 1))

    storage.leave("ann")

    assert {stored(storage, job.id).state for job in (first, second)} == {QUEUED}
    assert storage.workers() == []


# --- moved between two readings: a range says where jobs stood, their heads where they stand --------------------------


def test_a_job_that_is_retried_while_it_is_pruned_stays(
    storage: Redis, neighbour: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = [in_state(storage, DEAD) for _ in range(2)]
    after_read(monkeypatch, storage, storage._keys.finished(DEAD), lambda: neighbour.retry([jobs[0].id]))

    pruned = storage.prune(AT_ONCE)

    assert pruned.jobs == 1
    assert stored(storage, jobs[0].id).state is QUEUED
    assert storage.get(jobs[1].id) is None


def test_a_job_that_gets_a_subscriber_while_it_is_pruned_stays(
    storage: Redis, neighbour: Redis, carl: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = in_state(storage, COMPLETED)
    key = storage._keys.finished(COMPLETED)
    after_read(monkeypatch, storage, key, lambda: neighbour.subscribe(carl, [job.id]))

    assert storage.prune(AT_ONCE).jobs == 0

    assert ids(storage.outcomes_for(carl)) == [job.id]


@pytest.mark.parametrize("call", ["rescue_owner", "rescue", "leave"])
def test_a_job_that_is_completed_while_its_worker_is_given_up_stays_completed(
    storage: Redis, neighbour: Redis, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    job, other, third = in_state(storage, RUNNING), in_state(storage, RUNNING), add(storage)

    def go_on() -> None:
        """The number of jobs in its hands is the same afterwards."""
        neighbour.finish([Completed(job.token)])
        neighbour.reserve(WORKER, {third.queue: 1}, 1)

    after_read(monkeypatch, storage, storage._keys.held(WORKER), go_on)
    calls = {
        "rescue_owner": lambda: storage.rescue_owner(WORKER, foreman=WORKER, why="signal 9"),
        "rescue": lambda: storage.rescue(lease=0, why="silence"),
        "leave": lambda: storage.leave(WORKER),
    }
    calls[call]()

    assert stored(storage, job.id).state is COMPLETED
    assert stored(storage, other.id).state is QUEUED
    calls[call]()
    assert stored(storage, third.id).state is QUEUED
    assert storage.workers() == []
    audit(storage)


def test_one_of_many_pauses_a_queue(storage: Redis, neighbour: Redis) -> None:
    answers = at_once([partial(each.pause, "mail") for each in (storage, neighbour) * 3])
    again = at_once([partial(each.resume, "mail") for each in (storage, neighbour) * 3])

    assert (answers.count(True), again.count(True)) == (1, 1)
    add(storage)
    assert len(storage.reserve(join(storage), {"mail": 1}, 5)) == 1


def test_a_pause_holds_while_jobs_come_and_go(
    storage: Redis, neighbour: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    join(storage)
    before_write(monkeypatch, storage, lambda: neighbour.enqueue(new_jobs(3)))
    storage.pause("mail")

    assert neighbour.reserve("ann", {"mail": 1}, 5) == []
    storage.resume("mail")
    assert len(neighbour.reserve("ann", {"mail": 1}, 5)) == 3


def test_a_schedule_that_is_paused_while_it_ticks_does_not_tick(
    storage: Redis, neighbour: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    slot = storage.now()
    storage.put_schedules([ScheduleInfo("nightly", "send", "0 7 * * *", next_at=slot)])
    before_write(monkeypatch, storage, lambda: neighbour.pause_schedule("nightly", True))

    answer = storage.tick("nightly", slot, slot + HOUR, [new_job()], [Tick("nightly", slot, "enqueued", 0)])

    assert (answer, storage.ticks("nightly"), find_all(storage)) == (None, [], [])
    assert [event.kind for event in storage.events(EventFilter(subject=Subject.SCHEDULE))] == [Kind.PUT, Kind.PAUSED]


def test_many_schedules_tick_together_and_none_waits_for_another(storage: Redis, neighbour: Redis) -> None:
    slot = storage.now()
    names = [f"every minute {number}" for number in range(20)]
    storage.put_schedules([ScheduleInfo(name, "send", "* * * * *", next_at=slot) for name in names])

    def tick(each: Redis, name: str) -> bool:
        ticks = [Tick(name, slot, "enqueued", 0)]
        return each.tick(name, slot, slot + HOUR, [new_job(f"of {name}")], ticks) is not None

    answers = at_once([partial(tick, each, name) for name in names for each in (storage, neighbour)])

    assert answers.count(True) == len(names)
    assert [len(storage.ticks(name)) for name in names] == [1] * len(names)
    assert storage.count(Filter()).number == len(names)
