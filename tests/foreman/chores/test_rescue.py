"""Rescue: only by a foreman that is steady, and until nothing is left."""

from __future__ import annotations

from collections.abc import Collection

from packhorse.conformance.builders import add, history, in_state, join, stored
from packhorse.core.clock import SECOND, ManualClock
from packhorse.core.event import Kind, Subject
from packhorse.core.job import HELD, QUEUED, RANK_HALTED, RANK_RECOVERED, RUNNING
from packhorse.core.settings import Settings
from packhorse.foreman.chores.rescue import Rescue
from packhorse.storage.memory import Memory
from packhorse.storage.records import Filter, PollResult, WorkerInfo


def rescue(storage: Memory, *steady: bool) -> Rescue:
    """A chore of a foreman that is steady, or, asked again and again, as is said."""
    answers = iter(steady)
    return Rescue(storage, Settings(), lambda: storage.now() if next(answers, True) else None)


def test_the_jobs_of_a_silent_worker_are_taken_back(storage: Memory, clock: ManualClock):
    job = in_state(storage, RUNNING)
    clock.turn(16)

    rescue(storage).run()

    assert stored(storage, job.id).state is QUEUED
    assert storage.workers() == []
    (halted,) = (event for event in history(storage, job.id) if event.kind is Kind.HALTED)
    assert halted.data == {"why": "its worker was silent for 15s", "halts": 1}


def test_the_jobs_of_a_live_worker_are_left_alone(storage: Memory, clock: ManualClock):
    job = in_state(storage, RUNNING)
    clock.turn(15)

    rescue(storage).run()

    assert stored(storage, job.id).state is RUNNING


def test_without_a_trusted_time_nothing_is_rescued(storage: Memory, clock: ManualClock):
    job = in_state(storage, RUNNING)
    clock.turn(60)

    rescue(storage, False).run()

    assert stored(storage, job.id).state is RUNNING


def test_a_clock_that_is_set_meanwhile_costs_no_worker_its_jobs(storage: Memory, clock: ManualClock):
    job = in_state(storage, RUNNING)

    def trusted_time() -> int:
        now = storage.now()
        clock.turn("1h")
        return now

    Rescue(storage, Settings(), trusted_time).run()

    assert stored(storage, job.id) == job
    assert [worker.id for worker in storage.workers()] == [job.owner]


def test_a_clock_that_is_set_does_not_make_other_foremen_seem_dead(storage: Memory, clock: ManualClock):
    job = in_state(storage, RUNNING)
    clock.turn(16)
    for foreman in ("f", "g"):
        storage.join(WorkerInfo(foreman, Subject.FOREMAN))
    sure = clock()
    clock.turn("1h")

    Rescue(storage, Settings(), lambda: sure).run()

    assert stored(storage, job.id).rank == RANK_HALTED


def test_the_jobs_of_a_worker_whose_own_lease_is_longer_are_left_alone(storage: Memory, clock: ManualClock):
    storage.join(WorkerInfo("ann", info={"lease_s": 90.0}))
    job = in_state(storage, RUNNING, owner="ann")
    clock.turn(20)

    rescue(storage).run()

    assert stored(storage, job.id) == job


def test_a_foreman_that_may_be_silent_for_longer_is_company(storage: Memory, clock: ManualClock):
    storage.join(WorkerInfo("slow", Subject.FOREMAN, info={"lease_s": 90.0}))
    job = in_state(storage, RUNNING)
    clock.turn(20)
    storage.join(WorkerInfo("own", Subject.FOREMAN))

    rescue(storage).run()

    assert stored(storage, job.id).rank == RANK_HALTED


def test_it_continues_until_nothing_is_left(storage: Memory, clock: ManualClock):
    for _ in range(1_001):
        add(storage)
    storage.reserve(join(storage), {"mail": 1}, 1_001)
    clock.turn(60)

    rescue(storage).run()

    assert (storage.count(Filter(states=HELD)).number, storage.workers()) == (0, [])


def test_it_stops_when_the_time_is_no_longer_trusted(storage: Memory, clock: ManualClock):
    for _ in range(501):
        add(storage)
    storage.reserve(join(storage), {"mail": 1}, 501)
    clock.turn(60)

    rescue(storage, True, False).run()

    assert storage.count(Filter(states=HELD)).number == 1


def test_what_a_lone_foreman_finds_at_first_goes_before_all_others(storage: Memory, clock: ManualClock):
    at_first, later = in_state(storage, RUNNING), in_state(storage, RUNNING, owner="bob")
    storage.join(WorkerInfo("f", Subject.FOREMAN))
    clock.turn(10)
    storage.heartbeat({"f": {}, "bob": {}})
    chore = rescue(storage)

    clock.turn(10)
    chore.run()
    clock.turn(10)
    chore.run()

    assert stored(storage, at_first.id).rank == RANK_RECOVERED
    assert stored(storage, later.id).rank == RANK_HALTED


def test_where_other_foremen_live_the_application_has_not_died(storage: Memory, clock: ManualClock):
    job = in_state(storage, RUNNING)
    clock.turn(16)
    for foreman in ("f", "g"):
        storage.join(WorkerInfo(foreman, Subject.FOREMAN))

    rescue(storage).run()

    assert stored(storage, job.id).rank == RANK_HALTED


def test_while_jobs_are_held_it_runs_as_often_as_the_heartbeat(storage: Memory):
    chore = Rescue(storage, Settings(heartbeat=2 * SECOND), storage.now)
    at_first = chore.due_in(PollResult(storage.now(), held=True))
    chore.run()

    due_in = chore.due_in(PollResult(storage.now(), held=True))

    assert at_first == 0
    assert due_in is not None
    assert 0 <= due_in <= 2 * SECOND


def test_while_no_job_is_held_it_runs_less_often(storage: Memory):
    chore = rescue(storage)

    assert chore.due_in(PollResult(storage.now(), held=False)) is None
    assert chore.interval == 10.0


def test_it_looks_for_jobs_without_a_holder_whatever_the_lease(storage: Memory):
    chore = Rescue(storage, Settings(heartbeat=5 * SECOND, lease=600 * SECOND), storage.now)

    assert chore.interval == 10.0


def test_a_frozen_worker_of_this_machine_is_ended_before_its_jobs_are_taken_back(storage: Memory, clock: ManualClock):
    job = in_state(storage, RUNNING)
    ended: list[tuple[set[str], object]] = []

    def end(owners: Collection[str]) -> None:
        ended.append((set(owners), stored(storage, job.id).state))

    chore = Rescue(storage, Settings(), storage.now, end, lambda: {job.owner or "", "somebody else's"})
    clock.turn(14)
    chore.run()
    clock.turn(2)
    chore.run()

    assert ended[:2] == [(set(), RUNNING), ({job.owner}, RUNNING)]
    assert stored(storage, job.id).state is QUEUED
