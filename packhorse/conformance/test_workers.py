"""Workers and foremen: join, beat, leave; and the wake-up of those who sleep."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from functools import partial
from queue import Empty, SimpleQueue

import pytest
from msgspec.structs import replace

from packhorse.conformance.builders import WORKER, add, at_once, in_state, join, kinds, new_job, snapshot, stored
from packhorse.core.clock import SECOND, ManualClock
from packhorse.core.errors import WorkerExists
from packhorse.core.event import ForemanAction, ForemanOrder, Kind, Subject
from packhorse.core.job import ABORTED, HELD, QUEUED, RESERVED, RUNNING, Reason, State
from packhorse.core.outcome import Completed, Verdict
from packhorse.storage.contract import OTHER_QUEUES, Storage
from packhorse.storage.records import AbortRequest, EventFilter, WorkerInfo

LONG = 60.0
"""Seconds of sleep: who is not woken does not look before the test has failed."""

# --- join and beat --------------------------------------------------------------------------------------------------


def test_a_worker_is_shown_as_it_joined(storage: Storage, clock: ManualClock) -> None:
    told = WorkerInfo(
        "w1",
        foreman="f1",
        host="horse",
        pid=7,
        queues=["mail", "print"],
        concurrency=4,
        info={"version": "1", "n": [1]},
    )

    storage.join(told)
    clock.turn(1)
    storage.join(WorkerInfo("f1", subject=Subject.FOREMAN))

    worker, foreman = storage.workers()
    assert worker == replace(told, joined_at=clock() - SECOND, beat_at=clock() - SECOND)
    assert (foreman.subject, foreman.joined_at) == (Subject.FOREMAN, clock())
    assert [event.owner for event in storage.events(EventFilter(kind=Kind.STARTED))] == ["w1", "f1"]


def test_nobody_joins_under_the_id_of_a_living_worker(storage: Storage, clock: ManualClock) -> None:
    storage.join(WorkerInfo("ruby-1", queues=["sums"], info={"start": "one"}))
    job = in_state(storage, RUNNING, owner="ruby-1")
    clock.turn(10)
    before = (storage.workers(), storage.events(EventFilter()))

    for info in ({}, {"start": "two"}):
        with pytest.raises(WorkerExists):
            storage.join(WorkerInfo("ruby-1", info=info))

    assert (storage.workers(), storage.events(EventFilter())) == before
    assert stored(storage, job.id) == job


def test_joining_again_in_the_same_process_does_no_harm(storage: Storage, clock: ManualClock) -> None:
    told = WorkerInfo("ruby-1", info={"start": "one"})
    storage.join(told)
    job = in_state(storage, RUNNING, owner="ruby-1")
    events = storage.events(EventFilter())
    clock.turn(1)

    storage.join(told)

    assert storage.workers() == [replace(told, joined_at=clock() - SECOND, beat_at=clock())]
    assert storage.events(EventFilter()) == events
    assert stored(storage, job.id) == job


def test_who_joins_under_the_id_of_a_silent_worker_finds_its_jobs_taken_back(
    storage: Storage, clock: ManualClock
) -> None:
    storage.join(WorkerInfo("ruby-1", info={"start": "one"}))
    running, reserved = (in_state(storage, state, owner="ruby-1") for state in (RUNNING, RESERVED))
    clock.turn(15.1)

    storage.join(WorkerInfo("ruby-1", info={"start": "two"}))

    assert [stored(storage, job.id).state for job in (running, reserved)] == [QUEUED, QUEUED]
    assert [stored(storage, job.id).halts for job in (running, reserved)] == [1, 0]
    assert kinds(storage, running.id)[-2:] == [Kind.HALTED, Kind.READDED]
    assert kinds(storage, reserved.id)[-1] is Kind.READDED
    assert storage.finish([Completed(running.token)]) == [Verdict.STALE]
    told = [event.kind for event in storage.events(EventFilter(subject=Subject.WORKER, owner="ruby-1"))]
    assert told == [Kind.STARTED, Kind.DIED, Kind.STARTED]
    (worker,) = storage.workers()
    assert (worker.joined_at, worker.info) == (clock(), {"start": "two"})


def test_a_worker_that_has_a_longer_lease_keeps_its_id_for_so_long(storage: Storage, clock: ManualClock) -> None:
    storage.join(WorkerInfo("ruby-1", info={"lease_s": 60}))
    clock.turn(59)

    with pytest.raises(WorkerExists):
        storage.join(WorkerInfo("ruby-1"))
    clock.turn(2)
    with pytest.raises(WorkerExists):
        storage.join(WorkerInfo("ruby-1"), lease=120 * SECOND)
    storage.join(WorkerInfo("ruby-1"))


def test_of_those_who_join_at_once_under_one_id_one_does(storage: Storage, neighbour: Storage) -> None:
    def join_as(door: Storage, start: int) -> bool:
        try:
            door.join(WorkerInfo("ruby-1", info={"start": start}))
        except WorkerExists:
            return False
        return True

    joined = at_once([partial(join_as, door, number) for number, door in enumerate([storage, neighbour] * 3)])

    assert sum(joined) == 1
    assert len(storage.events(EventFilter(kind=Kind.STARTED))) == 1


def test_a_beat_overwrites_the_record_and_is_no_event(storage: Storage, clock: ManualClock) -> None:
    join(storage, "w1")
    join(storage, "w2")
    before = storage.events(EventFilter())
    clock.turn(5)

    beat = storage.heartbeat({"w1": {"running": 3}})
    storage.heartbeat({"w1": {"running": 2, "jobs": ["a"]}})

    first, second = storage.workers()
    assert (beat.now, beat.unknown, beat.stops) == (clock(), [], [])
    assert (first.beat_at, first.report) == (clock(), {"running": 2, "jobs": ["a"]})
    assert (second.beat_at, second.report) == (clock() - 5 * SECOND, {})
    assert storage.events(EventFilter()) == before


def test_owners_that_are_not_known_are_named(storage: Storage) -> None:
    join(storage, "w1")

    beat = storage.heartbeat({"stranger": {}, "w1": {}, "ghost": {}})

    assert sorted(beat.unknown) == ["ghost", "stranger"]
    assert [worker.id for worker in storage.workers()] == ["w1"]
    assert storage.heartbeat({}).unknown == []


@pytest.mark.parametrize("state", sorted(HELD))
def test_a_beat_tells_which_jobs_should_stop(storage: Storage, state: State) -> None:
    job = in_state(storage, state)
    in_state(storage, state)
    storage.abort([job.id])

    stops = [storage.heartbeat({WORKER: {}}).stops for _ in range(2)]

    assert stops == [[AbortRequest(job.token, Reason.ABORTED)]] * 2
    storage.finish([Completed(job.token)])
    assert storage.heartbeat({WORKER: {}}).stops == []


def test_a_beat_tells_only_about_the_owners_that_were_asked_for(storage: Storage) -> None:
    jobs = {owner: in_state(storage, RUNNING, owner=owner) for owner in ("w1", "w2", "w3")}
    storage.abort([job.id for job in jobs.values()])

    stops = storage.heartbeat({"w1": {}, "w3": {}}).stops

    assert sorted(stop.token.job_id for stop in stops) == sorted([jobs["w1"].id, jobs["w3"].id])


# --- leave ----------------------------------------------------------------------------------------------------------


def test_a_worker_that_leaves_hands_back_what_it_holds(storage: Storage, clock: ManualClock) -> None:
    reserved, running = in_state(storage, RESERVED), in_state(storage, RUNNING)
    asked, other = in_state(storage, RUNNING), in_state(storage, RUNNING, owner="bob")
    storage.abort([asked.id])
    clock.turn(1)

    storage.leave(WORKER, why="stopping")

    assert [stored(storage, job.id).state for job in (reserved, running, asked, other)] == [
        QUEUED,
        QUEUED,
        ABORTED,
        RUNNING,
    ]
    back = stored(storage, running.id)
    assert (back.halts, back.losses, back.failures, back.rank) == (0, 0, 0, running.rank)
    assert [worker.id for worker in storage.workers()] == ["bob"]
    assert kinds(storage, running.id)[-1] is Kind.READDED


def test_what_had_begun_when_its_worker_left_says_so(storage: Storage) -> None:
    begun, waiting = in_state(storage, RESERVED), in_state(storage, RESERVED)

    storage.leave(WORKER, why="stopping", ran=[begun.id, "another"])

    assert [stored(storage, job.id).attempts for job in (begun, waiting)] == [1, 0]
    assert [stored(storage, job.id).halts for job in (begun, waiting)] == [0, 0]
    assert kinds(storage, begun.id)[-2:] == [Kind.STARTED, Kind.READDED]
    assert kinds(storage, waiting.id)[-2:] == [Kind.RESERVED, Kind.READDED]


def test_leaving_twice_is_harmless(storage: Storage) -> None:
    job = in_state(storage, RUNNING)
    storage.leave(WORKER, why="stopping")
    before = snapshot(storage, job.id)

    storage.leave(WORKER, why="stopping")
    storage.leave("stranger")

    assert snapshot(storage, job.id) == before
    (event,) = storage.events(EventFilter(kind=Kind.KILLED))
    assert (event.subject, event.owner, (event.data or {})["why"]) == (Subject.WORKER, WORKER, "stopping")


def test_a_late_outcome_of_a_worker_that_left_changes_nothing(storage: Storage) -> None:
    job = in_state(storage, RUNNING)
    storage.leave(WORKER)
    before = snapshot(storage, job.id)

    (verdict,) = storage.finish([Completed(job.token)])

    assert verdict is not Verdict.ACCEPTED
    assert snapshot(storage, job.id) == before


def test_what_a_worker_has_done_is_recorded_as_an_event(storage: Storage) -> None:
    join(storage)

    storage.record_stat(WORKER, {"completed": 12, "by_task": {"send": 12}})

    (event,) = storage.events(EventFilter(kind=Kind.STAT))
    assert (event.subject, event.owner) == (Subject.WORKER, WORKER)
    assert event.data is not None
    assert {name: event.data[name] for name in ("completed", "by_task")} == {"completed": 12, "by_task": {"send": 12}}


def test_each_event_of_a_worker_carries_its_record(storage: Storage, clock: ManualClock) -> None:
    info = {"code_version": "v1", "tasks": ["send"]}
    for owner in ("leaves", "dies"):
        storage.join(WorkerInfo(owner, foreman="f", host="a", pid=7, queues=["mail", "sms"], concurrency=3, info=info))
    joined_at = clock()
    clock.turn(1)

    storage.heartbeat({"leaves": {"busy": 1}, "dies": {}})
    storage.record_stat("leaves", {"done": 1})
    storage.leave("leaves")
    storage.rescue_owner("dies", foreman="dies", why="signal 9")

    told = storage.events(EventFilter(subject=Subject.WORKER))
    assert [event.kind for event in told] == ["started", "started", "stat", "killed", "died"]
    for event in told:
        assert (event.data or {})["object"] == {
            "id": event.owner,
            "subject": "worker",
            "foreman": "f",
            "host": "a",
            "pid": 7,
            "queues": ["mail", "sms"],
            "concurrency": 3,
            "info": info,
            "joined_at": joined_at,
        }


# --- wake-up --------------------------------------------------------------------------------------------------------


def _resume_and_pause(storage: Storage, clock: ManualClock) -> None:
    storage.resume("mail")
    storage.pause("mail")


def _promote(storage: Storage, clock: ManualClock) -> None:
    clock.turn(1)
    storage.promote()


WAKERS: dict[str, Callable[[Storage, ManualClock], object]] = {
    "enqueue": lambda storage, clock: storage.enqueue([new_job()]),
    "interrupt": lambda storage, clock: storage.interrupt(),
    "resume": _resume_and_pause,
    "promote": _promote,
}


@pytest.mark.parametrize("cause", WAKERS)
def test_a_sleeper_is_woken(storage: Storage, clock: ManualClock, cause: str) -> None:
    storage.enqueue([new_job(delay=number * SECOND) for number in range(1, 500)])
    woken: list[bool] = []
    sleeper = threading.Thread(target=lambda: woken.append(storage.wait(60)), daemon=True)

    sleeper.start()
    while sleeper.is_alive():  # the first calls may come before it sleeps
        WAKERS[cause](storage, clock)
        sleeper.join(0.01)

    assert woken == [True]


def test_a_sleeper_that_serves_others_too_is_woken_for_a_queue_that_nobody_named(storage: Storage) -> None:
    woken: list[bool] = []
    sleeper = threading.Thread(target=lambda: woken.append(storage.wait(60, ["mail", OTHER_QUEUES])), daemon=True)

    sleeper.start()
    for number in itertools.count():  # the first may come before it sleeps
        if not sleeper.is_alive():
            break
        storage.enqueue([new_job(queue=f"new-{number}")])
        sleeper.join(0.01)

    assert woken == [True]


def test_a_sleeper_wakes_by_itself_when_its_time_is_over(storage: Storage) -> None:
    storage.wait(0)
    storage.wait(0.01)


def test_an_interrupt_just_before_lying_down_is_not_lost(storage: Storage) -> None:
    storage.wait(0)
    storage.interrupt()

    assert storage.wait(60) is True


def test_interrupt_wakes_all_sleepers(storage: Storage) -> None:
    sleepers = [threading.Thread(target=storage.wait, args=(30,), daemon=True) for _ in range(3)]
    for sleeper in sleepers:
        sleeper.start()

    while any(sleeper.is_alive() for sleeper in sleepers):
        storage.interrupt()
        for sleeper in sleepers:
            sleeper.join(0.01)


QUEUES = {"ann": "mail", "bob": "print"}


@pytest.mark.parametrize("way", ["wait", "wait_and_reserve"])
def test_workers_with_one_storage_are_woken_each_for_its_own_queue(
    storage: Storage, neighbour: Storage, way: str
) -> None:
    """As at a manager, whose storage sleeps for all its workers: who lies down, and who has looked last, is another."""
    taken: SimpleQueue[tuple[str, str]] = SimpleQueue()
    is_over = threading.Event()

    def work(name: str, queues: dict[str, int]) -> None:
        while not is_over.is_set():
            if way == "wait":
                storage.wait(LONG, list(queues))
                jobs = storage.reserve(name, queues, 1)
            else:
                jobs = storage.wait_and_reserve(name, queues, 1, LONG)
            while jobs:  # until nothing is left to do
                taken.put((name, jobs[0].queue))
                jobs = storage.reserve(name, queues, 1)

    for name, queue in QUEUES.items():
        join(storage, name)
        assert storage.reserve(name, {queue: 1}, 1) == []
    workers = [threading.Thread(target=work, args=(name, {queue: 1}), daemon=True) for name, queue in QUEUES.items()]
    for worker in workers:
        worker.start()
    try:
        for name, queue in [*QUEUES.items()] * 3:
            assert _brought_until_taken(neighbour, queue, taken) == (name, queue)
    finally:
        is_over.set()
        while any(worker.is_alive() for worker in workers):
            storage.interrupt()
            for worker in workers:
                worker.join(0.01)


def _brought_until_taken(storage: Storage, queue: str, taken: SimpleQueue[tuple[str, str]]) -> tuple[str, str]:
    """Who takes the first of these jobs. One may come in at the very moment when a worker begins to wait, and is
    missed."""
    deadline = time.monotonic() + LONG / 2
    number = 0
    while True:
        storage.enqueue([new_job(queue=queue)])
        number += 1
        try:
            first = taken.get(timeout=2.0)
        except Empty:
            assert time.monotonic() < deadline, "no worker is woken for it"
            continue
        for _ in range(number - 1):
            taken.get(timeout=LONG)
        return first


# --- life -----------------------------------------------------------------------------------------------------------


def test_a_storage_that_was_closed_opens_again_when_it_is_used(storage: Storage) -> None:
    job = add(storage)

    storage.close()
    storage.close()

    assert storage.get(job.id) == job


def test_a_storage_says_how_it_is(storage: Storage, clock: ManualClock) -> None:
    add(storage)

    health = storage.health()

    assert health.kind
    assert all(isinstance(problem, str) for problem in health.problems)
    assert health.latency >= 0
    assert storage.now() == clock()


def test_what_a_process_has_measured_of_its_calls_is_told_in_sums(storage: Storage) -> None:
    add(storage)

    measured = storage.measured()

    assert len({each.name for each in measured}) == len(measured)
    assert all(each.calls > 0 for each in measured)
    assert all(each.run_p95 <= each.run_max <= each.run and each.wait_max <= each.wait for each in measured)


# --- orders -----------------------------------------------------------------------------------------------------------


def test_an_order_is_kept_for_its_foreman_with_who_gave_it(storage: Storage, clock: ManualClock) -> None:
    storage.join(WorkerInfo("f1", subject=Subject.FOREMAN))
    storage.join(WorkerInfo("f2", subject=Subject.FOREMAN))
    clock.turn(1)

    orders = [
        ForemanOrder(ForemanAction.SCALE, least=2, most=8),
        ForemanOrder(ForemanAction.STOP, worker="w1", now=True),
    ]
    taken = [storage.order("f1", order, by="olga") for order in orders] + [
        storage.order("f2", ForemanOrder(ForemanAction.QUIET))
    ]

    found = storage.events(EventFilter(subject=Subject.FOREMAN, kind=Kind.ORDERED, owner="f1"))
    assert taken == [True, True, True]
    assert [ForemanOrder.of(event) for event in found] == orders
    assert [(event.at, event.data and event.data["by"]) for event in found] == [(clock(), "olga")] * 2
    assert storage.events(EventFilter(kind=Kind.ORDERED, owner="f2"))[0].data == {"do": "quiet"}


def test_an_order_for_somebody_unknown_is_refused_and_leaves_no_trace(storage: Storage) -> None:
    storage.join(WorkerInfo("f1", subject=Subject.FOREMAN))
    storage.leave("f1")
    before = storage.events(EventFilter())

    assert not storage.order("f1", ForemanOrder(ForemanAction.STOP), by="olga")
    assert storage.events(EventFilter()) == before


# --- versions of the code -------------------------------------------------------------------------------------------


def test_the_first_worker_of_a_version_is_told_of(storage: Storage) -> None:
    def begin(owner: str, version: str | None, subject: Subject = Subject.WORKER) -> None:
        info = {} if version is None else {"code_version": version}
        storage.join(WorkerInfo(owner, subject, foreman="chief", info=info))

    begin("chief", "v0", Subject.FOREMAN)
    for owner, version in (("a", None), ("b", "v1"), ("c", "v1"), ("d", "v2"), ("e", "v1")):
        begin(owner, version)
    for owner in ("b", "c", "e"):
        storage.leave(owner)
    begin("f", "v1")

    told = storage.events(EventFilter(subject=Subject.FOREMAN, kind=Kind.DEPLOYED))
    assert [(event.owner, event.data) for event in told] == [
        ("chief", {"version": "v1"}),
        ("chief", {"version": "v2"}),
        ("chief", {"version": "v1"}),
    ]
    started = storage.events(EventFilter(subject=Subject.WORKER, kind=Kind.STARTED))
    assert [(event.data or {}).get("version") for event in started] == [None, "v1", "v1", "v2", "v1", "v1"]


def test_a_worker_keeps_the_version_that_it_told(storage: Storage) -> None:
    storage.join(WorkerInfo("a", info={"code_version": "v1"}))
    storage.join(WorkerInfo("b"))

    assert {worker.id: worker.code_version for worker in storage.workers()} == {"a": "v1", "b": None}
