"""A worker's calls: reserve, start, finish, release, check in and log, each with its token."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial

import pytest
from msgspec.structs import replace

from packhorse.conformance.builders import (
    FAILURE,
    WORKER,
    add,
    at_once,
    cases,
    finish,
    history,
    ids,
    in_state,
    join,
    kinds,
    new_jobs,
    recount,
    run,
    snapshot,
    stored,
    take,
    tallies,
)
from packhorse.core.clock import HOUR, SECOND, ManualClock
from packhorse.core.errors import WorkerNotFound
from packhorse.core.event import Kind
from packhorse.core.job import (
    ABORTED,
    COMPLETED,
    DEAD,
    QUEUED,
    RANK_HALTED,
    RESERVED,
    RETRYING,
    RUNNING,
    SCHEDULED,
    WAITING,
    Job,
    Reason,
    State,
    Token,
    rank_of,
)
from packhorse.core.outcome import Completed, Failed, Failure, Outcome, Overrun, Released, Snoozed, Stopped, Verdict
from packhorse.storage.contract import BATCH, Storage
from packhorse.storage.records import (
    CheckIn,
    CheckInAnswer,
    Enqueued,
    EventFilter,
    LogKind,
    LogLine,
    TaskInfo,
    dropped_lines,
)

OUTCOMES: dict[str, Callable[[Token], Outcome]] = {
    "completed": lambda token: Completed(token, result="1", ran=SECOND),
    "failed": lambda token: Failed(token, FAILURE, retry_in=HOUR),
    "failed to be queued": lambda token: Failed(token, FAILURE, retry_in=0),
    "broken": lambda token: Failed(token, FAILURE),
    "snoozed": lambda token: Snoozed(token, HOUR),
    "stopped": lambda token: Stopped(token),
}

# --- reserve --------------------------------------------------------------------------------------------------------


def test_a_reserved_job_belongs_to_one_worker(storage: Storage, clock: ManualClock) -> None:
    job = add(storage)
    clock.turn(2)

    taken = take(storage, job, "ann")
    again = storage.reserve(join(storage, "bob"), {"mail": 1}, 10)

    assert (taken.state, taken.owner, taken.fence, taken.updated_at) == (RESERVED, "ann", 1, clock())
    assert (taken.attempts, taken.started_at, taken.queued_at) == (0, None, job.queued_at)
    assert again == []


def test_a_sleeping_worker_gets_the_job_for_which_it_is_woken(storage: Storage, neighbour: Storage) -> None:
    join(storage, "ann")

    def give() -> None:
        jobs.extend(neighbour.enqueue(new_jobs(1)))

    jobs: list[Enqueued] = []
    giver = threading.Timer(0.05, give)
    giver.start()
    taken: list[Job] = []
    while not taken:  # who sleeps may wake for nothing
        taken = storage.wait_and_reserve("ann", {"mail": 1}, 10, 5.0)
    giver.join()

    assert ids(taken) == [job.job_id for job in jobs]
    assert (taken[0].state, taken[0].owner) == (RESERVED, "ann")


def test_whoever_reserves_a_job_again_is_told_of_its_last_failure(storage: Storage) -> None:
    failure = replace(FAILURE, goes_on=15 * SECOND, worker=WORKER)
    job = add(storage)
    ended = finish(storage, Stopped(run(storage, job).token, failure=failure))
    storage.retry([job.id])

    taken = take(storage, job, "bob")

    assert taken.error is not None
    assert taken.error == ended.error
    assert Failure.goes_on_in(taken.error) == WORKER


def test_a_worker_that_did_not_join_gets_nothing(storage: Storage) -> None:
    job = add(storage)

    with pytest.raises(WorkerNotFound):
        storage.reserve("stranger", {"mail": 1}, 1)

    assert stored(storage, job.id) == job


@pytest.mark.parametrize("end", ["leaves", "dies"])
def test_a_worker_that_is_gone_gets_nothing(storage: Storage, end: str) -> None:
    add(storage)
    join(storage)
    storage.leave(WORKER) if end == "leaves" else storage.rescue_owner(WORKER, foreman=WORKER, why="signal 9")

    with pytest.raises(WorkerNotFound):
        storage.reserve(WORKER, {"mail": 1}, 1)


@pytest.mark.parametrize("limit", [0, 1, 100, BATCH])
def test_no_more_is_reserved_than_asked_for(storage: Storage, limit: int) -> None:
    storage.enqueue(new_jobs(BATCH))
    storage.enqueue(new_jobs(5))

    taken = storage.reserve(join(storage), {"mail": 1}, limit)

    assert len(taken) == limit
    assert storage.get_many(ids(taken)) == taken


def test_the_fence_rises_whenever_the_job_changes_hands(storage: Storage) -> None:
    job = add(storage)

    fences = []
    for owner in ("ann", "bob", "ann"):
        taken = take(storage, job, owner)
        fences.append(taken.fence)
        storage.release([taken.token], "stopping")

    assert fences == sorted(set(fences))


# --- start and finish -----------------------------------------------------------------------------------------------


def test_starting_counts_the_attempt_once(storage: Storage, clock: ManualClock) -> None:
    token = take(storage, add(storage)).token
    clock.turn(3)

    verdicts = storage.start([token]) + storage.start([token])

    job = stored(storage, token.job_id)
    assert verdicts == [Verdict.ACCEPTED, Verdict.REPEATED]
    assert (job.state, job.attempts, job.started_at) == (RUNNING, 1, clock())
    assert kinds(storage, job.id) == [Kind.ADDED, Kind.RESERVED, Kind.STARTED]


def test_a_job_that_is_marked_late_began_when_its_worker_says(storage: Storage, clock: ManualClock) -> None:
    first, second, third = (take(storage, add(storage)).token for _ in range(3))
    clock.turn(10)

    storage.start([first, second, third], [4 * SECOND, 0, 60 * SECOND])

    began = [stored(storage, token.job_id).started_at for token in (first, second, third)]
    told = [history(storage, token.job_id)[-1].at for token in (first, second, third)]
    assert began == told == [clock() - 4 * SECOND, clock(), clock() - 10 * SECOND]  # never before it was in line
    assert stored(storage, first.job_id).updated_at == clock()
    finish(storage, Completed(first, ran=4 * SECOND))
    assert storage.totals()["waited"] == 6 * SECOND


def test_a_job_that_was_not_started_is_marked_on_the_way(storage: Storage, clock: ManualClock) -> None:
    token = take(storage, add(storage)).token
    clock.turn(10)

    job = finish(storage, Completed(token, result="1", ran=4 * SECOND, ago=SECOND))

    assert (job.state, job.attempts, job.result) == (COMPLETED, 1, "1")
    assert (job.started_at, job.finished_at) == (clock() - 5 * SECOND, clock())
    assert kinds(storage, job.id) == [Kind.ADDED, Kind.RESERVED, Kind.STARTED, Kind.COMPLETED]


@cases("held", [RESERVED, RUNNING])
@cases("name", OUTCOMES)
def test_what_a_worker_measured_stays_with_the_job(
    storage: Storage, clock: ManualClock, name: str, held: State
) -> None:
    token = in_state(storage, held).token
    clock.turn(10)

    job = finish(storage, replace(OUTCOMES[name](token), ran=2 * SECOND, ago=SECOND))

    assert job.started_at == clock() - (3 if held is RESERVED else 10) * SECOND
    assert (job.ran_until, job.ran) == (job.started_at + 2 * SECOND, 2 * SECOND)
    assert job.took(clock()) == (None if job.state in WAITING - {RETRYING} else 2 * SECOND)
    assert [event.data["ran"] for event in history(storage, job.id) if event.data and "ran" in event.data] == [
        2 * SECOND
    ]


def test_a_job_that_nobody_measured_took_until_its_end_was_written_down(storage: Storage, clock: ManualClock) -> None:
    job = run(storage, in_state(storage, QUEUED))
    clock.turn(10)

    job = finish(storage, Completed(job.token))

    assert (job.ran_until, job.ran, job.took(None)) == (None, None, 10 * SECOND)


@pytest.mark.parametrize("ran", [0, 7])
def test_each_attempt_has_its_own_measure_or_none(storage: Storage, clock: ManualClock, ran: int) -> None:
    job = finish(storage, Failed(run(storage, add(storage)).token, FAILURE, retry_in=0, ran=SECOND))
    assert job.ran == SECOND
    clock.turn(2)

    job = run(storage, job)
    assert (job.ran, job.took(clock() + 3)) == (None, 3)
    clock.turn(10)
    job = finish(storage, Completed(job.token, ran=ran))

    assert job.ran == (ran or None)
    assert job.took(None) == (ran or 10 * SECOND)


def test_a_lost_attempt_has_not_the_measure_of_the_one_before(storage: Storage, clock: ManualClock) -> None:
    job = add(storage, max_halts=1)
    job = finish(storage, Failed(run(storage, job).token, FAILURE, retry_in=0, ran=SECOND))
    clock.turn(2)
    job = run(storage, job, "bob")
    clock.turn(10)

    storage.rescue_owner("bob", foreman="bob", why="signal 9")

    job = stored(storage, job.id)
    assert (job.state, job.ran_until, job.took(None)) == (DEAD, None, 10 * SECOND)


def test_a_job_that_is_taken_back_before_it_began_keeps_the_measure_of_its_attempt(
    storage: Storage, clock: ManualClock
) -> None:
    job = finish(storage, Failed(run(storage, add(storage)).token, FAILURE, retry_in=0, ran=SECOND))
    clock.turn(2)
    take(storage, job)
    storage.rescue_owner(WORKER, foreman=WORKER, why="signal 9")

    storage.abort([job.id])

    job = stored(storage, job.id)
    assert (job.state, job.ran, job.took(None)) == (ABORTED, SECOND, SECOND)


def test_a_failed_job_waits_for_its_next_attempt(storage: Storage, clock: ManualClock) -> None:
    token = run(storage, add(storage)).token
    clock.turn(1)

    job = finish(storage, Failed(token, FAILURE, retry_in=HOUR))

    assert (job.state, job.failures, job.attempt, job.due_at) == (RETRYING, 1, 2, clock() + HOUR)
    assert (job.reason, job.error) == (Reason.FAILED, FAILURE.to_json())
    assert (job.owner, job.last_owner, job.finished_at) == (None, WORKER, None)


def test_a_failed_job_without_tries_is_dead(storage: Storage, clock: ManualClock) -> None:
    job = finish(storage, Failed(run(storage, add(storage)).token, FAILURE))

    assert (job.state, job.failures, job.reason, job.finished_at) == (DEAD, 1, Reason.FAILED, clock())
    assert kinds(storage, job.id)[-1] is Kind.BROKEN


def test_a_job_that_ran_too_long_and_has_no_tries_is_aborted(storage: Storage) -> None:
    job = finish(storage, Failed(run(storage, add(storage)).token, FAILURE, reason=Reason.JOB_TIMEOUT))

    assert (job.state, job.reason, job.failures) == (ABORTED, Reason.JOB_TIMEOUT, 1)


@pytest.mark.parametrize("retry_in", [0, HOUR])
def test_no_worker_can_have_more_attempts_than_the_job_has(storage: Storage, retry_in: int) -> None:
    job = add(storage, max_attempts=2)

    failed = finish(storage, Failed(run(storage, job).token, FAILURE, retry_in=0))
    dead = finish(storage, Failed(run(storage, job).token, FAILURE, retry_in=retry_in))

    assert (failed.state, dead.state, dead.failures) == (QUEUED, DEAD, 2)
    assert kinds(storage, job.id)[-1] is Kind.BROKEN


def test_a_task_may_allow_more_attempts_for_an_error(storage: Storage) -> None:
    job = add(storage, max_attempts=1)
    # A manager lets workers elsewhere have no more than was announced.
    storage.announce([TaskInfo(job.task, job.queue, {"max_attempts": 1, "most_attempts": 3})])
    states = [
        finish(storage, Failed(run(storage, job).token, FAILURE, retry_in=0, max_attempts=3)).state for _ in range(3)
    ]

    assert states == [QUEUED, QUEUED, DEAD]


def test_a_job_whose_time_was_over_is_no_longer_its_workers(storage: Storage) -> None:
    job = in_state(storage, RUNNING)

    left = finish(storage, Overrun(job.token, "it ran for longer than 3 s", retry_in=HOUR))

    assert (left.state, left.reason, left.failures, left.fence) == (RETRYING, Reason.JOB_TIMEOUT, 1, job.fence + 1)
    assert storage.finish([Completed(job.token, result="1")]) == [Verdict.STALE]
    assert storage.check_in([CheckIn(job.token)]) == [CheckInAnswer.STALE]
    assert stored(storage, job.id) == left


def test_a_snoozed_job_comes_back_and_no_failure_is_counted(storage: Storage, clock: ManualClock) -> None:
    job = finish(storage, Snoozed(run(storage, add(storage)).token, 30 * SECOND))

    assert (job.state, job.due_at, job.snoozes, job.failures) == (SCHEDULED, clock() + 30 * SECOND, 1, 0)
    clock.turn(30)
    assert take(storage, job).id == job.id


def test_a_job_can_fail_until_its_tries_are_over(storage: Storage, clock: ManualClock) -> None:
    job = add(storage, max_attempts=3)

    for retry_in in (SECOND, SECOND, None):
        job = finish(storage, Failed(run(storage, job).token, FAILURE, retry_in=retry_in))
        clock.turn(1)

    assert (job.state, job.attempts, job.failures, job.attempts_left) == (DEAD, 3, 3, 0)


@cases("name", OUTCOMES)
@cases("held", [RESERVED, RUNNING])
def test_an_outcome_whose_answer_was_lost_can_be_sent_again(storage: Storage, name: str, held: State) -> None:
    outcome = OUTCOMES[name](in_state(storage, held).token)
    finish(storage, outcome)
    before, totals = snapshot(storage, outcome.token.job_id), storage.totals()

    verdicts = storage.finish([outcome])

    assert verdicts == [Verdict.REPEATED]
    assert snapshot(storage, outcome.token.job_id) == before
    assert storage.totals() == totals


def test_a_second_outcome_for_the_same_attempt_changes_nothing(storage: Storage) -> None:
    token = in_state(storage, RUNNING).token
    job = finish(storage, Completed(token, result="1"))

    verdicts = storage.finish([Failed(token, FAILURE), Snoozed(token, 1), Completed(token, result="2")])

    assert Verdict.ACCEPTED not in verdicts
    assert stored(storage, job.id) == job


def test_a_release_whose_answer_was_lost_can_be_sent_again(storage: Storage) -> None:
    token = in_state(storage, RUNNING).token
    storage.release([token], "stopping")
    before = snapshot(storage, token.job_id)

    verdicts = storage.release([token], "stopping")

    assert verdicts == [Verdict.STALE]
    assert snapshot(storage, token.job_id) == before


@cases("name", OUTCOMES)
def test_a_late_outcome_after_a_release_is_stale_not_repeated(storage: Storage, name: str) -> None:
    token = in_state(storage, RUNNING).token
    storage.release([token], "stopping")
    before = snapshot(storage, token.job_id)

    verdicts = storage.finish([OUTCOMES[name](token)])

    assert verdicts == [Verdict.STALE]
    assert snapshot(storage, token.job_id) == before


@cases("name", OUTCOMES)
def test_a_late_outcome_after_the_rescue_is_stale_not_repeated(storage: Storage, name: str) -> None:
    token = in_state(storage, RUNNING).token
    storage.rescue_owner(WORKER, foreman=WORKER, why="silence")
    before = snapshot(storage, token.job_id)

    verdicts = storage.finish([OUTCOMES[name](token)]) + storage.start([token]) + storage.release([token], "stopping")

    assert verdicts == [Verdict.STALE] * 3
    assert snapshot(storage, token.job_id) == before


@cases("name", OUTCOMES)
def test_a_late_outcome_does_not_disturb_the_next_worker(storage: Storage, name: str) -> None:
    old = in_state(storage, RUNNING)
    storage.rescue_owner(WORKER, foreman=WORKER, why="silence")
    held = run(storage, old, "bob")

    assert storage.finish([OUTCOMES[name](old.token)]) == [Verdict.STALE]
    assert stored(storage, old.id) == held
    assert storage.finish([Completed(held.token)]) == [Verdict.ACCEPTED]


def test_an_old_token_of_the_same_worker_is_stale(storage: Storage) -> None:
    first = in_state(storage, RUNNING)
    storage.release([first.token], "stopping")
    second = run(storage, first)

    assert storage.finish([Completed(first.token)]) == [Verdict.STALE]
    assert stored(storage, first.id) == second


def test_an_outcome_of_a_deleted_job_is_stale(storage: Storage) -> None:
    job = in_state(storage, COMPLETED)
    storage.delete([job.id])

    assert storage.finish([Completed(Token(job.id, WORKER, job.fence))]) == [Verdict.STALE]
    assert storage.get(job.id) is None


# --- batches --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [0, 1, 100, BATCH])
def test_whole_batches_are_worked_off(storage: Storage, number: int) -> None:
    storage.enqueue(new_jobs(number))
    taken = storage.reserve(join(storage), {"mail": 1}, number)
    tokens = [job.token for job in taken]

    verdicts = storage.start(tokens) + storage.finish([Completed(token) for token in tokens])

    assert verdicts == [Verdict.ACCEPTED] * (2 * number)
    assert all(job.state is COMPLETED for job in storage.get_many(ids(taken)))
    assert tallies(storage) == recount(storage)


def test_a_stale_outcome_harms_none_of_the_others(storage: Storage) -> None:
    good, bad, other = (in_state(storage, RUNNING) for _ in range(3))

    verdicts = storage.finish(
        [
            Completed(good.token),
            Completed(replace(bad.token, fence=99)),
            Completed(Token("unknown", WORKER, 1)),
            Failed(other.token, FAILURE),
        ]
    )

    assert verdicts == [Verdict.ACCEPTED, Verdict.STALE, Verdict.STALE, Verdict.ACCEPTED]
    assert [stored(storage, job.id).state for job in (good, bad, other)] == [COMPLETED, RUNNING, DEAD]
    assert kinds(storage, bad.id)[-1] is Kind.STARTED


def test_a_token_twice_in_one_batch_counts_once(storage: Storage) -> None:
    started, finished, released = (take(storage, add(storage)).token for _ in range(3))

    verdicts = [
        storage.start([started, started]),
        storage.finish([Failed(finished, FAILURE, retry_in=HOUR), Failed(finished, FAILURE, retry_in=HOUR)]),
        storage.release([released, released], "stopping"),
    ]

    assert verdicts == [[Verdict.ACCEPTED, Verdict.REPEATED]] * 2 + [[Verdict.ACCEPTED, Verdict.STALE]]
    assert stored(storage, started.job_id).attempts == 1
    assert stored(storage, finished.job_id).failures == 1
    assert kinds(storage, released.job_id) == [Kind.ADDED, Kind.RESERVED, Kind.READDED]


def test_the_first_of_two_outcomes_in_one_batch_counts(storage: Storage) -> None:
    first, second = in_state(storage, RUNNING).token, in_state(storage, RESERVED).token

    verdicts = storage.finish([Completed(first), Failed(second, FAILURE), Failed(first, FAILURE), Completed(second)])

    assert verdicts == [Verdict.ACCEPTED] * 2 + [Verdict.REPEATED] * 2
    assert [stored(storage, token.job_id).state for token in (first, second)] == [COMPLETED, DEAD]
    assert tallies(storage) == recount(storage)


@pytest.mark.parametrize("picked", [slice(None), slice(None, None, -1), slice(0, None, 3), slice(7, 2, -2)])
def test_each_job_of_a_batch_gets_its_own_result(storage: Storage, picked: slice) -> None:
    join(storage)
    storage.enqueue(new_jobs(12))
    jobs = storage.reserve(WORKER, {"mail": 1}, 12)
    ended = jobs[picked]

    verdicts = storage.finish([Completed(job.token, result=str(job.seq), ran=job.seq) for job in ended])

    assert verdicts == [Verdict.ACCEPTED] * len(ended)
    for job in jobs:
        now = stored(storage, job.id)
        assert (now.state, now.result) == ((COMPLETED, str(job.seq)) if job in ended else (RESERVED, None))
        assert (now.finished_at is not None) is (job in ended)
        assert now.ran == (job.seq if job in ended else None)
    assert tallies(storage) == recount(storage)


@pytest.mark.parametrize("picked", [slice(None), slice(0, None, 3)])
def test_a_batch_has_its_results_and_measures_also_where_they_are_alike_or_missing(
    storage: Storage, picked: slice
) -> None:
    join(storage)
    for results in (["null"] * 12, [None] * 12, ["null", None] * 6):
        storage.enqueue(new_jobs(12))
        jobs = storage.reserve(WORKER, {"mail": 1}, 12)
        told = dict(zip([job.id for job in jobs[picked]], results, strict=False))

        storage.finish([Completed(job.token, told[job.id], ran=0 if job.seq % 2 else 5) for job in jobs[picked]])

        for job in jobs[picked]:
            now = stored(storage, job.id)
            assert (now.state, now.result, now.ran) == (COMPLETED, told[job.id], None if job.seq % 2 else 5)


def test_only_an_attempt_that_had_begun_counts_when_it_is_handed_back(storage: Storage) -> None:
    begun, waiting = in_state(storage, RESERVED), in_state(storage, RESERVED)

    verdicts = storage.finish([Released(begun.token, "cut short", ran=1), Released(waiting.token, "not begun")])

    assert verdicts == [Verdict.ACCEPTED] * 2
    assert [stored(storage, job.id).state for job in (begun, waiting)] == [QUEUED] * 2
    assert [stored(storage, job.id).attempts for job in (begun, waiting)] == [1, 0]
    assert kinds(storage, begun.id)[-2:] == [Kind.STARTED, Kind.READDED]
    assert kinds(storage, waiting.id)[-2:] == [Kind.RESERVED, Kind.READDED]


def test_a_job_that_was_taken_away_costs_its_neighbours_nothing(storage: Storage) -> None:
    join(storage)
    storage.enqueue(new_jobs(9))
    jobs = storage.reserve(WORKER, {"mail": 1}, 9)
    storage.finish([Released(jobs[4].token, "given back")])

    verdicts = storage.finish([Completed(job.token, result="1") for job in jobs])

    assert verdicts == [Verdict.ACCEPTED] * 4 + [Verdict.STALE] + [Verdict.ACCEPTED] * 4
    assert stored(storage, jobs[4].id).state is QUEUED
    assert {stored(storage, job.id).state for job in jobs if job is not jobs[4]} == {COMPLETED}


def test_finish_and_reserve_does_both(storage: Storage) -> None:
    token = take(storage, add(storage)).token
    waiting = add(storage)

    verdicts, jobs = storage.finish_and_reserve([Completed(token), Completed(token)], WORKER, {"mail": 1}, 5)

    assert verdicts == [Verdict.ACCEPTED, Verdict.REPEATED]
    assert ids(jobs) == [waiting.id]
    assert stored(storage, token.job_id).state is COMPLETED


def test_a_job_that_goes_straight_back_into_line_can_be_reserved_in_the_same_step(storage: Storage) -> None:
    job = take(storage, add(storage))

    verdicts, jobs = storage.finish_and_reserve([Failed(job.token, FAILURE, retry_in=0)], WORKER, {"mail": 1}, 1)

    assert verdicts == [Verdict.ACCEPTED]
    assert [(one.id, one.fence, one.failures) for one in jobs] == [(job.id, job.fence + 1, 1)]


# --- release --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("held", [RESERVED, RUNNING])
def test_a_released_job_is_in_line_again_and_nothing_is_counted(
    storage: Storage, clock: ManualClock, held: State
) -> None:
    before = in_state(storage, held)
    clock.turn(4)

    storage.release([before.token], "stopping")

    job = stored(storage, before.id)
    assert (job.state, job.rank, job.queued_at, job.owner) == (QUEUED, before.rank, clock(), None)
    assert (job.failures, job.halts, job.losses, job.fence) == (0, 0, 0, before.fence + 1)


@pytest.mark.parametrize("all_died", [False, True])
def test_a_halted_job_that_ran_again_and_was_released_is_an_ordinary_one(storage: Storage, all_died: bool) -> None:
    job = in_state(storage, RUNNING, priority=3)
    storage.rescue_owner(WORKER, foreman=WORKER, why="signal 9", recovered=all_died)

    storage.release([run(storage, job).token], "stopping")

    back = stored(storage, job.id)
    assert (back.state, back.is_halted, back.reason, back.rank, back.halts) == (QUEUED, False, None, rank_of(3), 1)


def test_a_halted_job_that_was_released_before_it_began_is_halted_still(storage: Storage) -> None:
    job = in_state(storage, RUNNING)
    storage.rescue_owner(WORKER, foreman=WORKER, why="signal 9")

    storage.release([take(storage, job).token], "stopping")

    back = stored(storage, job.id)
    assert (back.state, back.is_halted, back.rank) == (QUEUED, True, RANK_HALTED)


def test_a_forced_job_that_is_released_is_forced_still(storage: Storage) -> None:
    job = add(storage)
    storage.force_start([job.id])

    storage.release([run(storage, job).token], "stopping")

    assert stored(storage, job.id).is_forced


def test_a_halted_job_that_snoozed_is_halted_no_more(storage: Storage, clock: ManualClock) -> None:
    job = in_state(storage, RUNNING)
    storage.rescue_owner(WORKER, foreman=WORKER, why="signal 9")

    finish(storage, Snoozed(run(storage, job).token, SECOND))
    clock.turn(2)
    storage.promote()

    back = stored(storage, job.id)
    assert (back.state, back.is_halted, back.reason) == (QUEUED, False, None)


# --- check-ins and log lines ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("held", [RESERVED, RUNNING])
def test_a_check_in_is_kept_with_the_job_and_in_its_log(storage: Storage, clock: ManualClock, held: State) -> None:
    token = in_state(storage, held).token
    clock.turn(5)

    answers = storage.check_in([CheckIn(token, "half way", 50, "of 200 pages"), CheckIn(token)])

    job = stored(storage, token.job_id)
    assert answers == [CheckInAnswer.GO_ON, CheckInAnswer.GO_ON]
    assert (job.checkin, job.checkin_at, job.progress, job.progress_text) == ("half way", clock(), 50, "of 200 pages")
    assert job.state is held
    lines = storage.log_lines(job.id)
    assert {line.kind for line in lines} == {LogKind.CHECKIN, LogKind.PROGRESS}
    assert {line.at for line in lines} == {clock()}


def test_a_check_in_without_a_word_is_a_sign_of_life(storage: Storage, clock: ManualClock) -> None:
    token = in_state(storage, RUNNING).token
    storage.check_in([CheckIn(token, "half way", 50, "pages")])
    clock.turn(5)

    assert storage.check_in([CheckIn(token, is_logged=True)]) == [CheckInAnswer.GO_ON]

    job = stored(storage, token.job_id)
    assert (job.checkin, job.checkin_at, job.progress, job.progress_text) == ("half way", clock(), 50, "pages")
    assert len(storage.log_lines(job.id)) == 2


def test_a_check_in_is_told_to_stop_after_an_abort(storage: Storage) -> None:
    asked, other = in_state(storage, RUNNING), in_state(storage, RUNNING)
    storage.abort([asked.id])

    answers = storage.check_in([CheckIn(asked.token, "a"), CheckIn(other.token, "b"), CheckIn(Token("no", "ann", 1))])

    assert answers == [CheckInAnswer.STOP, CheckInAnswer.GO_ON, CheckInAnswer.STALE]


def test_the_next_attempt_begins_without_the_progress_of_the_last(storage: Storage) -> None:
    job = in_state(storage, RUNNING)
    storage.check_in([CheckIn(job.token, "half way", 50, "pages")])
    storage.release([job.token], "stopping")

    taken = take(storage, job)

    assert (taken.progress, taken.progress_text, taken.checkin, taken.checkin_at) == (None, None, None, None)


def test_log_lines_are_kept_in_order_with_the_attempt(storage: Storage, clock: ManualClock) -> None:
    job = in_state(storage, RUNNING)
    storage.append_log(job.token, [LogLine("one"), LogLine("oh", LogKind.ERROR)])
    finish(storage, Failed(job.token, FAILURE, retry_in=0))
    clock.turn(1)
    again = run(storage, job, "bob")

    verdict = storage.append_log(again.token, [LogLine("three")])

    lines = storage.log_lines(job.id)
    assert verdict is Verdict.ACCEPTED
    assert [(line.message, line.kind, line.attempt) for line in lines] == [
        ("one", LogKind.LOG, 1),
        ("oh", LogKind.ERROR, 1),
        ("three", LogKind.LOG, 2),
    ]
    assert [line.at for line in lines] == [clock() - SECOND, clock() - SECOND, clock()]
    assert [line.message for line in storage.log_lines(job.id, after=lines[0].id, limit=1)] == ["oh"]


@cases("state", [QUEUED, SCHEDULED, RETRYING, COMPLETED, DEAD, ABORTED])
def test_lines_that_come_just_after_the_end_are_kept(storage: Storage, state: State) -> None:
    job = in_state(storage, state, begun=True)

    verdict = storage.append_log(Token(job.id, WORKER, job.fence), [LogLine("last words")])

    assert verdict is Verdict.ACCEPTED
    assert [(line.message, line.attempt) for line in storage.log_lines(job.id)] == [("last words", 1)]


def test_above_the_limit_the_oldest_lines_go(storage: Storage) -> None:
    token = in_state(storage, RUNNING).token

    storage.append_log(token, [LogLine(str(number)) for number in range(8)], keep=5)
    storage.append_log(token, [LogLine("8"), LogLine("9")], keep=5)

    assert [line.message for line in storage.log_lines(token.job_id)] == [dropped_lines(6), "6", "7", "8", "9"]


def test_a_line_that_stands_for_others_is_counted_as_those(storage: Storage) -> None:
    token = in_state(storage, RUNNING).token

    storage.append_log(token, [LogLine("0"), LogLine(dropped_lines(100)), LogLine("101")], keep=3)
    storage.append_log(token, [LogLine("102"), LogLine("103")], keep=3)

    assert [line.message for line in storage.log_lines(token.job_id)] == [dropped_lines(102), "102", "103"]


def test_a_log_that_keeps_no_lines_has_none(storage: Storage) -> None:
    token = in_state(storage, RUNNING).token

    storage.append_log(token, [LogLine("0"), LogLine("1")], keep=0)

    assert storage.log_lines(token.job_id) == []


def test_appending_no_lines_changes_nothing(storage: Storage) -> None:
    token = in_state(storage, RUNNING).token
    storage.append_log(token, [LogLine("0"), LogLine("1")])

    verdict = storage.append_log(token, [], keep=0)

    assert verdict is Verdict.ACCEPTED
    assert [line.message for line in storage.log_lines(token.job_id)] == ["0", "1"]


def test_a_line_has_the_time_at_which_it_was_said_and_the_attempt_that_its_worker_names(
    storage: Storage, clock: ManualClock
) -> None:
    job = in_state(storage, RESERVED)  # a short one: its start is stored with its end

    storage.append_log(job.token, [LogLine("a", attempt=1, ago=2 * SECOND), LogLine("b", ago=SECOND), LogLine("c")])
    finish(storage, Failed(job.token, FAILURE, retry_in=0))
    storage.append_log(job.token, [LogLine("late", attempt=1)])

    lines = storage.log_lines(job.id)
    assert [line.message for line in lines] == ["a", "b", "c", "late"]
    assert [clock() - line.at for line in lines] == [2 * SECOND, SECOND, 0, 0]
    assert [line.attempt for line in lines] == [1, 1, 1, 1]


def test_a_halt_does_not_raise_the_attempt_of_lines(storage: Storage) -> None:
    job = in_state(storage, RUNNING, owner="bob")
    storage.rescue_owner("bob", foreman="bob", why="signal 9")

    storage.append_log(run(storage, job).token, [LogLine("again")])

    assert [line.attempt for line in storage.log_lines(job.id)] == [1]


def test_a_checkin_that_is_in_the_log_already_adds_no_line(storage: Storage) -> None:
    job = in_state(storage, RUNNING)
    storage.append_log(job.token, [LogLine("40 %", LogKind.PROGRESS)] * 3)

    storage.check_in([CheckIn(job.token, "on", 40, None, is_logged=True)])

    assert (stored(storage, job.id).progress, stored(storage, job.id).checkin) == (40, "on")
    assert [line.message for line in storage.log_lines(job.id)] == ["40 %"] * 3


def test_a_very_long_line_is_cut(storage: Storage) -> None:
    token = in_state(storage, RUNNING).token

    storage.append_log(token, [LogLine("x" * 50_000)])

    assert [len(line.message) for line in storage.log_lines(token.job_id)] == [10_000]


# --- many threads ---------------------------------------------------------------------------------------------------


def test_eight_threads_share_two_thousand_jobs_and_finish_each_once(storage: Storage, neighbour: Storage) -> None:
    jobs = new_jobs(2 * BATCH)
    storage.enqueue(jobs[:BATCH])
    storage.enqueue(jobs[BATCH:])

    def work(mine: Storage, owner: str) -> tuple[list[tuple[str, int]], list[Verdict]]:
        without_broken, verdicts = [], []
        taken = mine.reserve(join(mine, owner), {"mail": 1}, 50)
        while taken:
            without_broken += [(job.id, job.fence) for job in taken]
            told, taken = mine.finish_and_reserve([Completed(job.token) for job in taken], owner, {"mail": 1}, 50)
            verdicts += told
        return without_broken, verdicts

    shares = at_once([partial(work, (storage, neighbour)[number % 2], f"worker-{number}") for number in range(8)])

    assert sorted(job for without_broken, _ in shares for job in without_broken) == [(job.id, 1) for job in jobs]
    assert [verdict for _, verdicts in shares for verdict in verdicts] == [Verdict.ACCEPTED] * len(jobs)
    assert storage.totals()["completed"] == len(jobs)
    assert [(tally.state, tally.number) for tally in tallies(storage)] == [(COMPLETED, len(jobs))]


def test_an_outcome_sent_by_two_at_once_is_accepted_once(storage: Storage, neighbour: Storage) -> None:
    token = in_state(storage, RUNNING).token

    verdicts = at_once([partial(each.finish, [Completed(token)]) for each in (storage, neighbour) * 4])

    assert sorted(verdict for (verdict,) in verdicts) == [Verdict.ACCEPTED] + [Verdict.REPEATED] * 7
    assert kinds(storage, token.job_id).count(Kind.COMPLETED) == 1


def test_what_one_process_writes_another_reads(storage: Storage, neighbour: Storage) -> None:
    job = in_state(storage, RUNNING)

    assert neighbour.get(job.id) == job
    assert neighbour.finish([Completed(job.token)]) == [Verdict.ACCEPTED]
    assert stored(storage, job.id).state is COMPLETED


def reserved(storage: Storage, number: int, owner: str = WORKER) -> list[Job]:
    """So many jobs, enqueued and reserved in one call each."""
    join(storage, owner)
    new = new_jobs(number)
    storage.enqueue(new)
    return storage.reserve(owner, {new[0].queue: 1}, number)


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


def test_a_log_of_no_lines_keeps_none(storage: Storage) -> None:
    token = in_state(storage, RUNNING).token

    storage.append_log(token, [LogLine("gone")], keep=0)

    assert storage.log_lines(token.job_id) == []


def test_outcomes_of_several_workers_in_one_call_are_told_of_each(storage: Storage) -> None:
    ann, bob = reserved(storage, 5, owner="ann"), reserved(storage, 5, owner="bob")

    storage.finish([Completed(job.token) for job in [*ann, *bob]])

    for owner, jobs in (("ann", ann), ("bob", bob)):
        told = storage.events(EventFilter(owner=owner, kind=Kind.COMPLETED))
        assert {event.job_id for event in told} == {job.id for job in jobs}
