"""Cases that a careful reader found: each was once answered wrongly by a storage."""

from __future__ import annotations

import pytest

from packhorse.conformance.builders import (
    FAILURE,
    WORKER,
    add,
    finish,
    ids,
    in_state,
    join,
    new_job,
    new_jobs,
    run,
    stored,
    take,
    unique,
)
from packhorse.core.clock import DAY, HOUR, SECOND, ManualClock
from packhorse.core.event import Event, Kind, Subject
from packhorse.core.job import ABORTED, COMPLETED, DEAD, QUEUED, RANK_FORCED, RUNNING, Job, Reason, State
from packhorse.core.outcome import Completed, Failed
from packhorse.storage import BATCH
from packhorse.storage.contract import Storage
from packhorse.storage.records import ClientInfo, EventFilter, Filter, LogLine, Placement, Retention, Span


def test_an_expired_job_is_not_handed_out(storage: Storage, clock: ManualClock) -> None:
    job = add(storage, expires=60 * SECOND)
    join(storage)
    clock.turn("1d")

    assert storage.reserve(WORKER, {job.queue: 1}, 10) == []
    assert stored(storage, job.id).state is ABORTED


@pytest.mark.parametrize("number", [150, 2_300])
def test_none_of_many_expired_jobs_is_handed_out(storage: Storage, clock: ManualClock, number: int) -> None:
    old, new = new_jobs(number, expires=60 * SECOND), new_jobs(5)
    for start in range(0, number, BATCH):
        storage.enqueue(old[start : start + BATCH])
    storage.enqueue(new)
    join(storage)
    clock.turn("1d")

    taken = storage.reserve(WORKER, {new[0].queue: 1}, 200)
    if not taken:  # so many that one call does not see to all of them; who asked is woken to ask again
        assert storage.wait(60, [new[0].queue])
        taken = storage.reserve(WORKER, {new[0].queue: 1}, 200)

    assert ids(taken) == [job.id for job in new]
    assert storage.count(Filter(states=frozenset({ABORTED}))).number == number


def test_acknowledging_does_not_free_a_key_whose_period_runs(storage: Storage) -> None:
    storage.join_client(ClientInfo("ann"))
    job = in_state(storage, COMPLETED, unique=unique(period=HOUR), subscriber="ann")

    storage.acknowledge("ann", [job.id])

    (answer,) = storage.enqueue([new_job(unique=unique(period=HOUR))])
    assert (answer.job_id, answer.placement) == (job.id, Placement.KEPT)


@pytest.mark.parametrize("state", [DEAD, ABORTED])
def test_a_job_that_came_to_nothing_does_not_hold_its_key_for_the_period(storage: Storage, state: State) -> None:
    in_state(storage, state, unique=unique(period=HOUR))

    (answer,) = storage.enqueue([new_job("next", unique=unique(period=HOUR))])

    assert answer.job_id == "next"


def test_new_arguments_do_not_hide_how_often_a_job_has_killed_its_worker(storage: Storage) -> None:
    job = in_state(storage, RUNNING, unique=unique(), max_halts=2)
    storage.rescue_owner(WORKER, foreman=WORKER, why="killed")
    storage.enqueue([new_job(queue=job.queue, unique=unique(on_conflict="replace"), max_halts=2, args='{"new": 1}')])

    run(storage, stored(storage, job.id))
    storage.rescue_owner(WORKER, foreman=WORKER, why="killed")

    assert (stored(storage, job.id).state, stored(storage, job.id).halts) == (DEAD, 2)


def test_all_queues_of_a_rank_come_before_the_next_rank_also_with_very_many(storage: Storage) -> None:
    queues = {f"q{number:03}": 1 for number in range(150)}
    storage.enqueue([new_job(queue=queue, priority=10) for queue in queues])
    storage.enqueue([new_job("low", queue="q000", priority=1)])
    join(storage)

    taken = storage.reserve(WORKER, queues, 120)

    assert len(taken) == 120
    assert "low" not in ids(taken)


def test_a_list_that_is_being_paged_does_not_miss_jobs_after_the_newest_was_deleted(storage: Storage) -> None:
    first = [add(storage) for _ in range(3)]
    storage.delete([first[-1].id])
    later = add(storage)

    assert later.seq > first[-1].seq


def test_the_chart_shows_how_long_a_job_ran_not_how_late_it_was_told(storage: Storage, clock: ManualClock) -> None:
    job = take(storage, add(storage))
    clock.turn(300)

    finish(storage, Completed(job.token, "1", ran=1_000, ago=299 * SECOND))

    assert sum(point.values.get("ran", 0) for point in storage.series(Span.TWO_HOURS)) == 1_000


def test_a_job_never_starts_before_it_was_queued(storage: Storage) -> None:
    job = take(storage, add(storage))

    finish(storage, Completed(job.token, "1", ran=HOUR))

    assert stored(storage, job.id).started_at == job.queued_at


def test_a_final_timeout_counts_as_a_failed_attempt(storage: Storage) -> None:
    job = in_state(storage, RUNNING)

    finish(storage, Failed(job.token, FAILURE, reason=Reason.JOB_TIMEOUT, ran=5))

    counted = storage.totals()
    assert (counted["failed"], counted["aborted"], counted["ran"]) == (1, 1, 5)
    assert len(storage.failures()) == 1


def test_forcing_a_queued_job_wakes_a_worker(storage: Storage) -> None:
    job = add(storage)
    join(storage)
    storage.pause(job.queue)
    storage.reserve(WORKER, {job.queue: 1}, 1)

    storage.force_start([job.id])

    assert storage.wait(60, [job.queue])
    assert stored(storage, job.id).rank == RANK_FORCED


def test_causes_of_long_ago_are_forgotten(storage: Storage, clock: ManualClock) -> None:
    finish(storage, Failed(in_state(storage, RUNNING).token, FAILURE))
    clock.turn("40d")

    storage.prune(Retention(events=30 * DAY))

    assert storage.failures() == []


def test_a_client_that_calls_is_alive(storage: Storage, clock: ManualClock) -> None:
    storage.join_client(ClientInfo("ann"))
    job = add(storage)
    for _ in range(5):
        clock.turn("20m")
        storage.subscribe("ann", [job.id])

    storage.prune(Retention(clients=HOUR))

    assert [client.id for client in storage.clients()] == ["ann"]


def test_a_log_of_no_lines_keeps_none(storage: Storage) -> None:
    token = in_state(storage, RUNNING).token

    storage.append_log(token, [LogLine("gone")], keep=0)

    assert storage.log_lines(token.job_id) == []


def test_a_page_of_nothing_still_leads_on(storage: Storage) -> None:
    jobs = [add(storage) for _ in range(3)]

    page = storage.find(Filter(states=frozenset({QUEUED})), limit=1)

    assert ids(page.jobs) == [jobs[0].id]
    assert page.next is not None


def reserved(storage: Storage, number: int, owner: str = WORKER) -> list[Job]:
    """So many jobs, enqueued and reserved in one call each."""
    join(storage, owner)
    new = new_jobs(number)
    storage.enqueue(new)
    return storage.reserve(owner, {new[0].queue: 1}, number)


def test_a_page_of_a_jobs_events_is_full_as_long_as_there_are_more(storage: Storage) -> None:
    jobs = reserved(storage, 8)
    storage.finish([Completed(job.token) for job in jobs])
    wanted = ["added", "reserved", "started", "completed"]

    rising: list[Event] = []
    while page := storage.events(EventFilter(job_id=jobs[3].id, after=rising[-1].id if rising else 0), limit=1):
        rising += page
    falling: list[Event] = []
    while page := storage.events(
        EventFilter(job_id=jobs[3].id, before=falling[-1].id if falling else None), limit=1, newest_first=True
    ):
        falling += page

    assert [event.kind for event in rising] == wanted
    assert [event.kind for event in falling] == wanted[::-1]


def test_outcomes_of_several_workers_in_one_call_are_told_of_each(storage: Storage) -> None:
    ann, bob = reserved(storage, 5, owner="ann"), reserved(storage, 5, owner="bob")

    storage.finish([Completed(job.token) for job in [*ann, *bob]])

    for owner, jobs in (("ann", ann), ("bob", bob)):
        told = storage.events(EventFilter(owner=owner, kind=Kind.COMPLETED))
        assert {event.job_id for event in told} == {job.id for job in jobs}


def test_events_of_a_job_that_is_gone_are_found_by_it_as_long_as_they_are_kept(
    storage: Storage, clock: ManualClock
) -> None:
    jobs = reserved(storage, 8)
    storage.finish([Completed(job.token) for job in jobs])
    storage.delete([job.id for job in jobs])
    clock.turn(2 * SECOND)
    keep = Retention(events=SECOND)

    while storage.prune(keep, limit=3).more:
        listed = {event.id for event in storage.events(EventFilter(subject=Subject.JOB), limit=1_000)}
        by_job = {event.id for job in jobs for event in storage.events(EventFilter(job_id=job.id))}
        assert by_job == listed
