"""The chores: promote, expire, rescue, prune and roll up; safe to run from every process at the same time."""

from __future__ import annotations

import pytest

from packhorse.conformance.builders import (
    FAILURE,
    LEASE,
    WORKER,
    add,
    cases,
    find_all,
    finish,
    history,
    ids,
    in_every_state,
    in_state,
    join,
    kinds,
    new_job,
    new_jobs,
    recount,
    reserve_ids,
    run,
    snapshot,
    stored,
    take,
    tallies,
    unique,
)
from packhorse.core.clock import DAY, HOUR, MINUTE, SECOND, ManualClock
from packhorse.core.errors import WorkerExists
from packhorse.core.event import Kind, Subject
from packhorse.core.job import (
    ABORTED,
    COMPLETED,
    DEAD,
    FINAL,
    HELD,
    QUEUED,
    RANK_HALTED,
    RANK_RECOVERED,
    RESERVED,
    RETRYING,
    RUNNING,
    SCHEDULED,
    Reason,
    State,
    Token,
)
from packhorse.core.outcome import Completed, Failed, Failure, Snoozed, Verdict
from packhorse.storage import BATCH
from packhorse.storage.contract import Storage
from packhorse.storage.records import (
    ClientInfo,
    EventFilter,
    Filter,
    LogLine,
    Pruned,
    Rescued,
    Retention,
    WorkerInfo,
)

MICROSECOND = 1 / SECOND

# --- promote --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", [SCHEDULED, RETRYING])
def test_a_job_is_due_at_its_microsecond_and_not_before(storage: Storage, clock: ManualClock, state: State) -> None:
    job = in_state(storage, state)
    assert job.due_at is not None

    clock.set(job.due_at - 1)
    assert (storage.promote(), storage.next_due()) == (0, 1)
    clock.set(job.due_at)
    assert (storage.next_due(), storage.promote(), storage.next_due()) == (0, 1, None)

    promoted = stored(storage, job.id)
    assert (promoted.state, promoted.due_at, promoted.queued_at) == (QUEUED, None, clock())
    assert kinds(storage, job.id)[-1] is (Kind.QUEUED if state is SCHEDULED else Kind.READDED)


@pytest.mark.parametrize("state", [SCHEDULED, RETRYING])
def test_reserving_promotes_by_itself(storage: Storage, clock: ManualClock, state: State) -> None:
    job = in_state(storage, state, queue="mail")
    assert job.due_at is not None

    clock.set(job.due_at - 1)
    assert reserve_ids(storage) == []
    clock.set(job.due_at)
    assert reserve_ids(storage) == [job.id]


def test_next_due_is_the_nearest(storage: Storage, clock: ManualClock) -> None:
    assert storage.next_due() is None
    add(storage, delay=HOUR)
    add(storage, delay=MINUTE)
    add(storage)

    assert storage.next_due() == MINUTE
    clock.turn("2m")
    assert storage.next_due() == 0


def test_promote_stops_at_its_limit_and_takes_the_longest_due_first(storage: Storage, clock: ManualClock) -> None:
    jobs = [add(storage, delay=delay) for delay in (5, 3, 4, 1, 2)]
    clock.turn(1)

    numbers = [storage.promote(limit=2)]
    assert {job.id for job in jobs if stored(storage, job.id).state is QUEUED} == {jobs[3].id, jobs[4].id}
    numbers += [storage.promote(limit=2), storage.promote(limit=2), storage.promote(limit=2)]

    assert numbers == [2, 2, 1, 0]


def test_time_in_the_schedule_is_not_time_in_line(storage: Storage, clock: ManualClock) -> None:
    job = add(storage, delay=HOUR, expires=MINUTE, total_timeout=2 * MINUTE)
    assert job.expire_at is None

    clock.turn("1h")
    storage.promote()

    assert stored(storage, job.id).expire_at == clock() + MINUTE


# --- expire ---------------------------------------------------------------------------------------------------------


def test_a_job_that_waits_too_long_in_line_is_aborted(storage: Storage, clock: ManualClock) -> None:
    job = add(storage, expires=MINUTE)

    clock.turn(60 - MICROSECOND)
    assert storage.expire() == 0
    clock.turn(MICROSECOND)
    assert storage.expire() == 1

    ended = stored(storage, job.id)
    assert (ended.state, ended.reason, ended.finished_at) == (ABORTED, Reason.JOB_TIMEOUT, clock())
    assert history(storage, job.id)[-1].data == {"reason": "JOB_TIMEOUT"}
    assert storage.expire() == 0


def test_the_wait_in_line_counts_anew_whenever_the_job_comes_into_line(storage: Storage, clock: ManualClock) -> None:
    job = add(storage, expires=MINUTE)
    clock.turn(50)
    token = take(storage, job).token
    clock.turn(50)
    assert storage.expire() == 0  # a held job does not wait

    storage.release([token], "stopping")

    clock.turn(59)
    assert storage.expire() == 0
    clock.turn(1)
    assert storage.expire() == 1


@pytest.mark.parametrize("state", [QUEUED, SCHEDULED, RETRYING])
def test_a_job_that_lives_too_long_is_aborted_while_it_waits(
    storage: Storage, clock: ManualClock, state: State
) -> None:
    born = clock()
    job = add(storage, total_timeout=MINUTE)
    clock.turn(20)
    token = take(storage, job).token
    if state is QUEUED:
        storage.release([token], "stopping")
    else:
        finish(storage, Snoozed(token, HOUR) if state is SCHEDULED else Failed(token, FAILURE, retry_in=HOUR))

    clock.set(born + MINUTE - 1)
    assert storage.expire() == 0
    clock.set(born + MINUTE)
    assert storage.expire() == 1

    ended = stored(storage, job.id)
    assert (ended.state, ended.reason, ended.due_at) == (ABORTED, Reason.JOB_TIMEOUT, None)


@pytest.mark.parametrize("state", sorted(HELD))
def test_a_held_job_that_lives_too_long_is_asked_to_stop_once(
    storage: Storage, clock: ManualClock, state: State
) -> None:
    job = in_state(storage, state, total_timeout=MINUTE)
    clock.turn(60)

    assert (storage.expire(), storage.expire()) == (1, 0)

    asked = stored(storage, job.id)
    assert (asked.state, asked.abort_at, asked.abort_reason) == (state, clock(), Reason.JOB_TIMEOUT)
    (stop,) = storage.heartbeat({WORKER: {}}).stops
    assert (stop.token, stop.reason) == (job.token, Reason.JOB_TIMEOUT)
    ended = finish(storage, Failed(job.token, FAILURE, retry_in=0))
    assert (ended.state, ended.reason) == (ABORTED, Reason.JOB_TIMEOUT)


def test_expire_stops_at_its_limit_and_goes_on_next_time(storage: Storage, clock: ManualClock) -> None:
    storage.enqueue(new_jobs(5, expires=SECOND))
    clock.turn(1)

    assert [storage.expire(limit=2) for _ in range(4)] == [2, 2, 1, 0]


# --- rescue ---------------------------------------------------------------------------------------------------------


@cases(
    ("age", "is_rescued"),
    [
        (0, False),
        (LEASE, False),
        (LEASE + 1, True),
        (-2 * LEASE, False),
        (-2 * LEASE - 1, True),  # its clock was wrong: it would look alive indefinitely
    ],
)
def test_a_silent_worker_loses_its_jobs(storage: Storage, clock: ManualClock, age: int, is_rescued: bool) -> None:
    job = in_state(storage, RUNNING)
    beat_at = clock()
    storage.heartbeat({WORKER: {}})
    clock.set(beat_at + age)

    rescued = storage.rescue(lease=LEASE, why="silence")

    assert rescued == ([Rescued(job.id, WORKER, QUEUED)] if is_rescued else [])
    assert [worker.id for worker in storage.workers()] == ([] if is_rescued else [WORKER])
    storage.rescue_owner(WORKER, foreman=WORKER, why="the case is over")


@pytest.mark.parametrize("step", ["1h", -3_600])
def test_silence_is_judged_by_the_time_that_the_caller_made_sure_of(
    storage: Storage, clock: ManualClock, step: int | str
) -> None:
    job = in_state(storage, RUNNING)
    sure = clock()
    clock.turn(step)  # the clock is set before the call is done

    assert storage.rescue(lease=LEASE, why="silence", at=sure) == []
    assert stored(storage, job.id).state is RUNNING
    assert [worker.id for worker in storage.workers()] == [WORKER]


def test_who_was_silent_at_the_time_that_the_caller_made_sure_of_loses_its_jobs(
    storage: Storage, clock: ManualClock
) -> None:
    job = in_state(storage, RUNNING)
    clock.turn("1m")

    assert storage.rescue(lease=LEASE, why="silence", at=clock()) == [Rescued(job.id, WORKER, QUEUED)]


@cases(
    ("own", "age", "is_rescued"),
    [
        (4.0, 4 * LEASE, True),  # shorter than the caller's own, which counts then
        (4.0, LEASE, False),
        (90.0, 90 * SECOND, False),
        (90, 90 * SECOND + 1, True),
        (90.5, 90 * SECOND + SECOND // 2, False),
        (90.0, -180 * SECOND, False),
        (90.0, -180 * SECOND - 1, True),
        (1e300, DAY, False),
        (1e300, DAY + 1, True),  # no lease is longer
        (None, LEASE, False),
        (None, LEASE + 1, True),
        ("90", LEASE + 1, True),
        ({}, LEASE + 1, True),
        (-1e308, LEASE, False),
        (-1e308, LEASE + 1, True),
    ],
)
def test_a_worker_has_its_own_lease_if_that_is_longer(
    storage: Storage, clock: ManualClock, own: object, age: int, is_rescued: bool
) -> None:
    storage.join(WorkerInfo(WORKER, info={"lease_s": own, "python": "3.11"}))
    job = in_state(storage, RUNNING)
    beat_at = clock()
    storage.heartbeat({WORKER: {}})
    clock.set(beat_at + age)

    rescued = storage.rescue(lease=LEASE, why="silence")

    assert rescued == ([Rescued(job.id, WORKER, QUEUED)] if is_rescued else [])
    assert [worker.id for worker in storage.workers()] == ([] if is_rescued else [WORKER])
    storage.rescue_owner(WORKER, foreman=WORKER, why="the case is over")


def test_the_long_lease_of_one_worker_keeps_no_other_alive(storage: Storage, clock: ManualClock) -> None:
    storage.join(WorkerInfo("bob", info={"lease_s": 90.0}))
    kept, lost = in_state(storage, RUNNING, owner="bob"), in_state(storage, RUNNING)
    clock.turn("1m")

    assert storage.rescue(lease=LEASE, why="silence") == [Rescued(lost.id, WORKER, QUEUED)]
    assert stored(storage, kept.id) == kept
    assert [worker.id for worker in storage.workers()] == ["bob"]


def test_a_job_that_had_begun_counts_a_halt(storage: Storage, clock: ManualClock) -> None:
    before = in_state(storage, RUNNING)
    clock.turn("1m")

    storage.rescue(lease=LEASE, why="silence")

    job = stored(storage, before.id)
    assert (job.state, job.halts, job.losses, job.failures) == (QUEUED, 1, 1, 0)
    assert (job.rank, job.reason, job.is_halted) == (RANK_HALTED, Reason.RUNNER_TIMEOUT, True)
    assert (job.owner, job.last_owner, job.queued_at) == (None, WORKER, clock())
    assert job.fence > before.fence
    assert job.error is not None
    assert Failure.from_json(job.error).message == "silence"
    assert kinds(storage, job.id)[-2:] == [Kind.HALTED, Kind.READDED]


def test_a_job_that_had_not_begun_is_not_blamed(storage: Storage, clock: ManualClock) -> None:
    before = in_state(storage, RESERVED)
    clock.turn("1m")

    storage.rescue(lease=LEASE, why="silence")

    job = stored(storage, before.id)
    assert (job.state, job.halts, job.losses, job.rank, job.reason) == (QUEUED, 0, 1, before.rank, None)
    assert job.fence > before.fence
    assert kinds(storage, job.id)[-1] is Kind.READDED


def test_a_job_that_had_begun_unknown_to_the_storage_is_blamed(storage: Storage) -> None:
    ran, waited = in_state(storage, RESERVED), in_state(storage, RESERVED)

    storage.rescue_owner(WORKER, foreman=WORKER, why="signal 9", ran=[ran.id])

    assert [(stored(storage, job.id).halts, stored(storage, job.id).attempts) for job in (ran, waited)] == [
        (1, 1),
        (0, 0),
    ]


def test_jobs_of_a_dead_application_come_back_first(storage: Storage, clock: ManualClock) -> None:
    begun, reserved = in_state(storage, RUNNING), in_state(storage, RESERVED)
    clock.turn("1m")

    storage.rescue(lease=LEASE, why="restart", recovered=True)

    assert stored(storage, begun.id).rank == RANK_RECOVERED
    assert stored(storage, reserved.id).rank == reserved.rank


def test_a_job_that_halts_too_often_is_dead(storage: Storage, clock: ManualClock) -> None:
    job = add(storage, max_halts=2)

    states = []
    for owner in ("w1", "w2"):
        run(storage, job, owner)
        clock.turn("1m")
        states += [rescued.state for rescued in storage.rescue(lease=LEASE, why="silence")]

    ended = stored(storage, job.id)
    assert states == [QUEUED, DEAD]
    assert (ended.halts, ended.failures, ended.reason, ended.finished_at) == (2, 0, Reason.RUNNER_TIMEOUT, clock())
    assert kinds(storage, job.id)[-1] is Kind.BROKEN


@pytest.mark.parametrize("state", sorted(HELD))
def test_a_rescued_job_that_was_asked_to_stop_is_aborted(storage: Storage, clock: ManualClock, state: State) -> None:
    job = in_state(storage, state)
    storage.abort([job.id])
    clock.turn("1m")

    assert storage.rescue(lease=LEASE, why="silence") == [Rescued(job.id, WORKER, ABORTED)]
    assert storage.finish([Completed(job.token)]) == [Verdict.STALE]


def test_rescue_stops_at_its_limit_and_strikes_the_worker_off_last(storage: Storage, clock: ManualClock) -> None:
    for _ in range(5):
        in_state(storage, RUNNING)
    clock.turn("1m")

    numbers, died = [], []
    for _ in range(4):
        numbers.append(len(storage.rescue(lease=LEASE, why="silence", limit=2)))
        died.append(len(storage.events(EventFilter(kind=Kind.DIED))))

    assert numbers == [2, 2, 1, 0]
    assert died == [0, 0, 1, 1]
    (event,) = storage.events(EventFilter(kind=Kind.DIED))
    assert (event.subject, event.owner, (event.data or {})["why"]) == (Subject.WORKER, WORKER, "silence")


def test_rescuing_one_owner_stops_at_its_limit_and_leaves_the_others_alone(storage: Storage) -> None:
    mine = [in_state(storage, RUNNING) for _ in range(3)]
    other = in_state(storage, RUNNING, owner="bob")

    first = storage.rescue_owner(WORKER, foreman=WORKER, why="signal 9", limit=2)
    assert {worker.id for worker in storage.workers()} == {WORKER, "bob"}
    second = storage.rescue_owner(WORKER, foreman=WORKER, why="signal 9", limit=2)

    assert sorted(one.job_id for one in first + second) == sorted(ids(mine))
    assert [worker.id for worker in storage.workers()] == ["bob"]
    assert stored(storage, other.id) == other
    assert storage.rescue_owner(WORKER, foreman=WORKER, why="signal 9") == []
    assert len(storage.events(EventFilter(kind=Kind.DIED))) == 1


def test_only_its_foreman_and_itself_give_up_a_worker_that_beats(storage: Storage, clock: ManualClock) -> None:
    storage.join(WorkerInfo("ann", foreman="fm"))
    added = [add(storage) for _ in range(2)]
    taken = storage.reserve("ann", {"mail": 1}, 2)
    before = storage.events(EventFilter(), limit=100)

    for stranger in (None, "bob", "another"):
        with pytest.raises(WorkerExists):
            storage.rescue_owner("ann", foreman=stranger, why="impatience")

    assert storage.get_many(ids(taken)) == taken
    assert storage.events(EventFilter(), limit=100) == before
    assert [worker.id for worker in storage.workers()] == ["ann"]
    (first,) = storage.rescue_owner("ann", foreman="fm", why="signal 9", limit=1)
    clock.turn(LEASE / SECOND + 1)
    (second,) = storage.rescue_owner("ann", foreman="bob", why="silence")
    assert {first.job_id, second.job_id} == set(ids(added))
    assert storage.workers() == []


def test_a_silent_worker_that_holds_nothing_is_struck_off(storage: Storage, clock: ManualClock) -> None:
    join(storage)
    storage.join(WorkerInfo(id="f", subject=Subject.FOREMAN))
    clock.turn("1m")
    join(storage, "young")

    assert storage.rescue(lease=LEASE, why="silence") == []

    assert [worker.id for worker in storage.workers()] == ["young"]
    assert {event.subject for event in storage.events(EventFilter(kind=Kind.DIED))} == {
        Subject.WORKER,
        Subject.FOREMAN,
    }


def test_a_late_beat_does_not_revive_a_worker_that_was_struck_off(storage: Storage, clock: ManualClock) -> None:
    job = in_state(storage, RUNNING)
    clock.turn("1m")
    storage.rescue(lease=LEASE, why="silence")

    beat = storage.heartbeat({WORKER: {}})

    assert (beat.unknown, beat.stops, storage.workers()) == ([WORKER], [], [])
    assert stored(storage, job.id).state is QUEUED


# --- prune ----------------------------------------------------------------------------------------------------------

KEEP = Retention(completed=HOUR, dead=2 * HOUR, aborted=3 * HOUR, events=DAY, clients=DAY)


def test_each_final_state_has_its_own_retention(storage: Storage, clock: ManualClock) -> None:
    jobs = in_every_state(storage)

    left = []
    for _ in range(4):
        storage.prune(KEEP)
        left.append({job.state for job in find_all(storage)} & FINAL)
        clock.turn(HOUR / SECOND + 1)

    assert left == [FINAL, {DEAD, ABORTED}, {ABORTED}, set()]
    assert len(find_all(storage)) == len(jobs) - 3
    assert tallies(storage) == recount(storage)


def test_a_job_is_kept_to_the_end_of_its_retention(storage: Storage, clock: ManualClock) -> None:
    in_state(storage, COMPLETED)

    clock.turn(3_600 - MICROSECOND)
    assert storage.prune(KEEP) == Pruned()
    clock.turn(2 * MICROSECOND)
    assert storage.prune(KEEP) == Pruned(jobs=1)


def test_a_pruned_job_goes_with_its_log_and_its_last_event_stays(storage: Storage, clock: ManualClock) -> None:
    job = in_state(storage, COMPLETED)
    storage.append_log(Token(job.id, WORKER, job.fence), [LogLine("a line")])
    clock.turn("2h")

    storage.prune(KEEP)

    assert (storage.get(job.id), storage.log_lines(job.id)) == (None, [])
    assert kinds(storage, job.id)[0] is Kind.ADDED
    assert kinds(storage, job.id)[-1] is Kind.DELETED


def test_persistent_jobs_stay(storage: Storage, clock: ManualClock) -> None:
    for state in FINAL:
        in_state(storage, state, persistent=True)
    clock.turn("10d")

    assert storage.prune(KEEP).jobs == 0


def test_jobs_with_subscribers_stay_until_the_last_has_gone(storage: Storage, clock: ManualClock) -> None:
    storage.join_client(ClientInfo("carl"))
    job = in_state(storage, COMPLETED, subscriber="carl")
    clock.turn("2h")

    assert storage.prune(KEEP).jobs == 0
    storage.leave_client("carl")
    assert storage.prune(KEEP).jobs == 1
    assert storage.get(job.id) is None


def test_holders_of_a_key_whose_period_runs_stay(storage: Storage, clock: ManualClock) -> None:
    job = in_state(storage, COMPLETED, unique=unique(period=4 * HOUR))
    clock.turn("2h")

    assert storage.prune(KEEP).jobs == 0
    assert storage.enqueue([new_job(unique=unique())])[0].job_id == job.id
    clock.turn("2h")
    assert storage.prune(KEEP).jobs == 1


def test_old_events_go_and_young_ones_stay(storage: Storage, clock: ManualClock) -> None:
    old = add(storage)
    clock.turn(DAY / SECOND - 1)
    young = add(storage)
    clock.turn(2)

    pruned = storage.prune(KEEP)

    assert (pruned.jobs, pruned.events, pruned.more) == (0, 1, False)
    assert (kinds(storage, old.id), kinds(storage, young.id)) == ([], [Kind.ADDED])
    assert stored(storage, old.id) == old


def test_prune_stops_at_its_limit_and_says_that_there_is_more(storage: Storage, clock: ManualClock) -> None:
    for _ in range(5):
        in_state(storage, COMPLETED)
    clock.turn("2h")

    rounds = [storage.prune(KEEP, limit=2)]
    while rounds[-1].more:
        rounds.append(storage.prune(KEEP, limit=2))

    assert sum(one.jobs for one in rounds) == 5
    assert max(one.jobs for one in rounds) == 2
    assert storage.prune(KEEP, limit=2) == Pruned()


def test_events_too_are_pruned_in_bounded_steps_all_but_the_newest(storage: Storage, clock: ManualClock) -> None:
    for _ in range(6):
        add(storage)
    clock.turn("2d")

    rounds = [storage.prune(KEEP, limit=2)]
    while rounds[-1].more:
        rounds.append(storage.prune(KEEP, limit=2))

    assert sum(one.events for one in rounds) == 5
    assert max(one.events for one in rounds) == 2


def test_clients_that_are_silent_for_too_long_are_forgotten(storage: Storage, clock: ManualClock) -> None:
    for name in ("quiet", "lively"):
        storage.join_client(ClientInfo(name))
    job = in_state(storage, COMPLETED, subscriber="quiet")
    clock.turn(DAY / SECOND - 1)
    storage.join_client(ClientInfo("lively"))
    clock.turn(2)

    pruned = storage.prune(KEEP)

    assert pruned.clients == 1
    assert [client.id for client in storage.clients()] == ["lively"]
    assert storage.subscribers(job.id) == []
    assert [event.owner for event in storage.events(EventFilter(kind=Kind.TIMED_OUT))] == ["quiet"]
    storage.prune(KEEP)
    assert storage.get(job.id) is None


def test_whoever_comes_later_knows_the_clients_and_forgets_those_that_stay_silent(
    storage: Storage, neighbour: Storage, clock: ManualClock
) -> None:
    """As a manager that was restarted: who was there, and when each was last heard of, is not only in a process."""
    for name in ("quiet", "lively"):
        storage.join_client(ClientInfo(name))
    joined_at = clock()
    clock.turn(DAY / SECOND - 1)

    found = {client.id: client.beat_at for client in neighbour.clients()}
    too_soon = neighbour.prune(KEEP).clients
    neighbour.join_client(ClientInfo("lively"))
    clock.turn(2)

    assert found == {"quiet": joined_at, "lively": joined_at}
    assert (too_soon, neighbour.prune(KEEP).clients) == (0, 1)
    assert [client.id for client in storage.clients()] == ["lively"]


def test_upkeep_of_an_empty_storage_does_nothing(storage: Storage) -> None:
    assert (storage.promote(), storage.expire(), storage.rescue(lease=LEASE, why="-")) == (0, 0, [])
    assert storage.prune(Retention()) == Pruned()
    storage.roll_up()
    assert snapshot(storage, "unknown") == (None, [], [])


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
