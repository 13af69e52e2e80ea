"""What operators do: abort, force start, set priority, set queue, retry, delete, pause and resume."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from packhorse.conformance.builders import (
    FAILURE,
    WORKER,
    add,
    at_once,
    cases,
    finish,
    history,
    in_state,
    join,
    kinds,
    recount,
    reserve_ids,
    run,
    snapshot,
    stored,
    take,
    tallies,
    unique,
)
from packhorse.core.clock import DAY, HOUR, SECOND, ManualClock
from packhorse.core.errors import BadValue
from packhorse.core.event import Kind, Subject
from packhorse.core.job import (
    ABORTED,
    COMPLETED,
    DEAD,
    FINAL,
    HELD,
    QUEUED,
    RANK_FORCED,
    RESERVED,
    RETRYING,
    RUNNING,
    WAITING,
    Operation,
    Reason,
    State,
    Token,
    is_legal,
    rank_of,
)
from packhorse.core.outcome import Completed, Failed, Outcome, Snoozed, Stopped
from packhorse.storage.contract import Storage
from packhorse.storage.records import (
    ActionResult,
    CheckIn,
    EventFilter,
    Filter,
    JobVersion,
    LogLine,
)

# --- abort ----------------------------------------------------------------------------------------------------------


@cases("state", sorted(WAITING))
def test_a_waiting_job_is_aborted_at_once(storage: Storage, clock: ManualClock, state: State) -> None:
    job = in_state(storage, state)
    clock.turn(1)

    (answer,) = storage.abort([job.id], by="olga")

    ended = stored(storage, job.id)
    assert answer == ActionResult(job.id, True, ABORTED)
    assert (ended.state, ended.reason, ended.finished_at) == (ABORTED, Reason.ABORTED, clock())
    assert (ended.due_at, ended.expire_at) == (None, None)
    assert history(storage, job.id)[-1].data == {"reason": "ABORTED", "by": "olga"}
    clock.turn("1d")
    assert storage.promote() == 0


@cases("state", sorted(HELD))
def test_a_held_job_is_asked_to_stop(storage: Storage, clock: ManualClock, state: State) -> None:
    job = in_state(storage, state)
    clock.turn(1)

    (answer,) = storage.abort([job.id], by="olga")

    asked = stored(storage, job.id)
    assert answer == ActionResult(job.id, True, state)
    assert (asked.state, asked.owner, asked.fence) == (state, job.owner, job.fence)
    assert (asked.abort_at, asked.abort_reason) == (clock(), Reason.ABORTED)
    assert kinds(storage, job.id)[-1] is Kind.ABORT_ASKED


@pytest.mark.parametrize("state", [QUEUED, RUNNING])
def test_an_abort_whose_answer_was_lost_can_be_sent_again(storage: Storage, clock: ManualClock, state: State) -> None:
    job = in_state(storage, state)
    first = storage.abort([job.id])
    before = snapshot(storage, job.id)
    clock.turn(1)

    again = storage.abort([job.id], by="another")

    assert snapshot(storage, job.id) == before
    assert [answer.state for answer in again] == [answer.state for answer in first]


ENDINGS: dict[str, Callable[[Token], Outcome]] = {
    "failed": lambda token: Failed(token, FAILURE, retry_in=HOUR),
    "failed to be queued": lambda token: Failed(token, FAILURE, retry_in=0),
    "broken": lambda token: Failed(token, FAILURE),
    "snoozed": lambda token: Snoozed(token, HOUR),
    "stopped": lambda token: Stopped(token),
}


@cases("name", ENDINGS)
@cases("state", sorted(HELD))
def test_a_job_that_was_asked_to_stop_ends_aborted(storage: Storage, name: str, state: State) -> None:
    job = in_state(storage, state)
    storage.abort([job.id])

    ended = finish(storage, ENDINGS[name](job.token))

    assert (ended.state, ended.reason, ended.owner, ended.due_at) == (ABORTED, Reason.ABORTED, None, None)
    assert kinds(storage, job.id)[-1] is Kind.ABORTED


@cases("state", sorted(HELD))
def test_a_job_that_is_released_after_an_abort_ends_aborted(storage: Storage, state: State) -> None:
    job = in_state(storage, state)
    storage.abort([job.id])

    storage.release([job.token], "stopping")

    assert stored(storage, job.id).state is ABORTED


@cases("state", sorted(HELD))
def test_completed_wins_over_an_abort(storage: Storage, state: State) -> None:
    job = in_state(storage, state)
    storage.abort([job.id])

    ended = finish(storage, Completed(job.token, result="1"))

    assert (ended.state, ended.result, ended.reason) == (COMPLETED, "1", None)


# --- force start ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", sorted(WAITING))
def test_a_forced_job_is_next(storage: Storage, clock: ManualClock, state: State) -> None:
    job = in_state(storage, state, queue="mail")
    add(storage, priority=10)
    clock.turn(1)

    storage.force_start([job.id], by="olga")

    forced = stored(storage, job.id)
    assert (forced.state, forced.rank, forced.due_at, forced.is_forced) == (QUEUED, RANK_FORCED, None, True)
    assert forced.queued_at == (job.queued_at if state is QUEUED else clock())
    assert storage.next_due() is None
    assert reserve_ids(storage, limit=1) == [job.id]


# --- retry ----------------------------------------------------------------------------------------------------------


@cases("state", [DEAD, ABORTED])
def test_a_finished_job_gets_all_its_tries_again(storage: Storage, clock: ManualClock, state: State) -> None:
    job = in_state(storage, state, total_timeout=HOUR, max_attempts=2)
    clock.turn("1d")

    storage.retry([job.id], by="olga")

    again = stored(storage, job.id)
    assert (again.state, again.failures, again.halts, again.attempts) == (QUEUED, 0, 0, 1)
    assert (again.reason, again.finished_at, again.abort_at, again.abort_reason) == (None, None, None, None)
    assert (again.queued_at, again.first_queued_at, again.expire_at) == (clock(), clock(), clock() + HOUR)
    assert kinds(storage, job.id)[-2:] == [Kind.RETRIED, Kind.READDED]
    assert storage.expire() == 0
    assert finish(storage, Completed(run(storage, job).token)).state is COMPLETED


def test_an_old_token_is_worthless_after_a_retry_was_reserved(storage: Storage) -> None:
    job = in_state(storage, DEAD)
    storage.retry([job.id])

    taken = take(storage, job)

    assert taken.fence > job.fence


def test_a_retrying_job_keeps_its_failures_when_it_is_retried_now(storage: Storage, clock: ManualClock) -> None:
    job = in_state(storage, RETRYING)
    clock.turn(1)

    storage.retry([job.id])

    again = stored(storage, job.id)
    assert (again.state, again.failures, again.due_at, again.queued_at) == (QUEUED, 1, None, clock())


def test_a_retried_forced_job_has_its_ordinary_rank(storage: Storage) -> None:
    job = add(storage, priority=4)
    storage.force_start([job.id])
    finish(storage, Failed(take(storage, job).token, FAILURE))

    storage.retry([job.id])

    assert stored(storage, job.id).rank == rank_of(4)


# --- delete ---------------------------------------------------------------------------------------------------------


@cases("state", sorted(WAITING | FINAL))
def test_a_deleted_job_goes_with_its_log_and_its_events_stay(storage: Storage, state: State) -> None:
    job = in_state(storage, state, begun=True)
    storage.append_log(Token(job.id, WORKER, job.fence), [LogLine("a line")])

    (answer,) = storage.delete([job.id], by="olga")

    assert answer == ActionResult(job.id, True, state)
    assert (storage.get(job.id), storage.log_lines(job.id)) == (None, [])
    assert kinds(storage, job.id)[0] is Kind.ADDED
    last = history(storage, job.id)[-1]
    assert (last.kind, last.state, last.data) == (Kind.DELETED, state, {"by": "olga"})


def test_a_deleted_job_is_neither_promoted_nor_reserved_nor_expired(storage: Storage, clock: ManualClock) -> None:
    jobs = [in_state(storage, state, total_timeout=SECOND) for state in sorted(WAITING)]

    storage.delete([job.id for job in jobs])
    clock.turn("1d")

    assert (storage.promote(), storage.expire(), storage.next_due()) == (0, 0, None)
    assert reserve_ids(storage, *(job.queue for job in jobs)) == []


def test_deleting_twice_says_that_there_is_no_such_job(storage: Storage) -> None:
    job = add(storage)
    storage.delete([job.id])

    assert storage.delete([job.id]) == [ActionResult(job.id, False, None)]
    assert kinds(storage, job.id).count(Kind.DELETED) == 1


def test_jobs_that_held_one_unique_key_in_turn_are_deleted_in_any_order(storage: Storage) -> None:
    earlier = in_state(storage, COMPLETED, unique=unique("k"))
    later = add(storage, unique=unique("k"))

    answers = [*storage.delete([later.id]), *storage.delete([earlier.id])]

    assert answers == [ActionResult(later.id, True, QUEUED), ActionResult(earlier.id, True, COMPLETED)]
    assert (storage.get(later.id), storage.get(earlier.id)) == (None, None)


def test_an_id_twice_in_one_call_is_steered_once(storage: Storage) -> None:
    aborted, retried, deleted = add(storage).id, in_state(storage, DEAD).id, add(storage).id

    answers = [*storage.abort([aborted] * 2), *storage.retry([retried] * 2), *storage.delete([deleted] * 2)]

    assert [(answer.changed, answer.state) for answer in answers] == [
        (True, ABORTED),
        (False, ABORTED),
        (True, QUEUED),
        (False, QUEUED),
        (True, QUEUED),
        (False, None),
    ]
    assert kinds(storage, aborted).count(Kind.ABORTED) == 1
    assert kinds(storage, retried).count(Kind.RETRIED) == 1


# --- set queue ------------------------------------------------------------------------------------------------------


def test_a_job_that_was_put_in_another_queue_is_reserved_from_there(storage: Storage, clock: ManualClock) -> None:
    job = add(storage)
    clock.turn(1)

    storage.set_queue([job.id], "slow", by="olga")

    moved = stored(storage, job.id)
    assert (moved.queue, moved.state, moved.queued_at, moved.updated_at) == ("slow", QUEUED, clock() - SECOND, clock())
    event = history(storage, job.id)[-1]
    assert (event.kind, event.queue, event.data) == (
        Kind.QUEUE_CHANGED,
        "slow",
        {"from": "mail", "to": "slow", "by": "olga"},
    )
    owner = join(storage)
    assert storage.reserve(owner, {"mail": 1}, 10) == []
    assert [each.id for each in storage.reserve(owner, {"mail": 1, "slow": 1}, 10)] == [job.id]


def test_a_job_in_another_queue_stands_by_its_rank_and_age(storage: Storage) -> None:
    old, urgent = add(storage), add(storage, priority=5)
    there = add(storage, queue="slow")
    young = add(storage)

    storage.set_queue([young.id, old.id, urgent.id], "slow")

    assert reserve_ids(storage, "slow") == [urgent.id, old.id, there.id, young.id]


def test_a_new_queue_is_known_with_its_jobs_counted(storage: Storage) -> None:
    job, other = add(storage), add(storage)

    storage.set_queue([job.id], "slow")

    queues = {queue.name: queue.counts.get(QUEUED, 0) for queue in storage.queues()}
    assert queues == {"mail": 1, "slow": 1}
    assert [each.id for each in storage.find(Filter(queue="slow")).jobs] == [job.id]
    assert [each.id for each in storage.find(Filter(queue="mail")).jobs] == [other.id]


def test_a_job_that_is_in_the_queue_already_is_left_alone(storage: Storage) -> None:
    job = add(storage)
    before = snapshot(storage, job.id)

    assert storage.set_queue([job.id], "mail") == [ActionResult(job.id, False, QUEUED)]
    assert snapshot(storage, job.id) == before


def test_a_queue_that_no_job_is_put_in_is_not_made(storage: Storage) -> None:
    job = in_state(storage, COMPLETED)
    before = storage.queues()

    answers = storage.set_queue([job.id, "missing"], "slow")

    assert answers == [ActionResult(job.id, False, COMPLETED), ActionResult("missing", False)]
    assert storage.queues() == before


def test_a_dead_job_is_retried_in_the_queue_that_it_was_put_in(storage: Storage) -> None:
    job = in_state(storage, DEAD)
    storage.set_queue([job.id], "slow")

    storage.retry([job.id])

    assert reserve_ids(storage, "slow") == [job.id]


def test_a_scheduled_job_comes_into_the_line_that_it_was_put_in(storage: Storage, clock: ManualClock) -> None:
    job = add(storage, delay=SECOND)
    storage.set_queue([job.id], "slow")
    clock.turn(1)

    assert storage.promote() == 1
    assert reserve_ids(storage, "slow") == [job.id]


# --- what was seen ----------------------------------------------------------------------------------------------------

STEPS: dict[Operation, Callable[..., list[ActionResult]]] = {
    Operation.ABORT: lambda storage, ids, **options: storage.abort(ids, **options),
    Operation.FORCE_START: lambda storage, ids, **options: storage.force_start(ids, **options),
    Operation.SET_PRIORITY: lambda storage, ids, **options: storage.set_priority(ids, 7, **options),
    Operation.SET_QUEUE: lambda storage, ids, **options: storage.set_queue(ids, "slow", **options),
    Operation.RETRY: lambda storage, ids, **options: storage.retry(ids, **options),
    Operation.DELETE: lambda storage, ids, **options: storage.delete(ids, **options),
}


@pytest.mark.parametrize("operation", STEPS)
def test_a_job_that_is_as_it_was_seen_is_steered(storage: Storage, clock: ManualClock, operation: Operation) -> None:
    jobs = [in_state(storage, state) for state in State if is_legal(operation, state)]
    clock.turn(1)

    answers = STEPS[operation](storage, [job.id for job in jobs], by="olga", seen=[JobVersion.of(job) for job in jobs])

    assert [(answer.job_id, answer.changed, answer.stale) for answer in answers] == [
        (job.id, True, False) for job in jobs
    ]


@pytest.mark.parametrize("operation", STEPS)
def test_a_job_that_has_changed_since_it_was_seen_is_left_alone(
    storage: Storage, clock: ManualClock, operation: Operation
) -> None:
    jobs = [in_state(storage, state) for state in WAITING | {DEAD, ABORTED} if is_legal(operation, state)]
    clock.turn(1)
    storage.set_queue([job.id for job in jobs], "elsewhere")
    before = [snapshot(storage, job.id) for job in jobs]

    answers = STEPS[operation](storage, [job.id for job in jobs], seen=[JobVersion.of(job) for job in jobs])

    assert answers == [ActionResult(job.id, False, job.state, stale=True) for job in jobs]
    assert [snapshot(storage, job.id) for job in jobs] == before


@pytest.mark.parametrize("ending", [Completed, lambda token: Failed(token, FAILURE)], ids=["completed", "dead"])
def test_what_has_ended_since_it_was_seen_to_wait_is_not_deleted(
    storage: Storage, ending: Callable[[Token], Outcome]
) -> None:
    seen, other = add(storage), add(storage)
    ended = finish(storage, ending(take(storage, seen).token))  # all in one moment: the state says it, too

    answers = storage.delete([seen.id, other.id], seen=[JobVersion.of(seen), JobVersion.of(other)])

    assert answers == [ActionResult(seen.id, False, ended.state, stale=True), ActionResult(other.id, True, QUEUED)]
    assert (storage.get(seen.id), storage.get(other.id)) == (ended, None)


def test_a_job_that_goes_on_in_the_same_hands_is_as_it_was_seen(storage: Storage, clock: ManualClock) -> None:
    seen = take(storage, add(storage))
    clock.turn(1)
    storage.start([seen.token])
    storage.check_in([CheckIn(seen.token, "half way", 50)])

    assert storage.abort([seen.id], seen=[JobVersion.of(seen)]) == [ActionResult(seen.id, True, RUNNING)]


def test_a_job_that_came_into_other_hands_is_not_as_it_was_seen(storage: Storage, clock: ManualClock) -> None:
    seen = run(storage, add(storage))
    storage.release([seen.token], "handed back")
    clock.turn(1)
    again = run(storage, stored(storage, seen.id))

    assert storage.abort([seen.id], seen=[JobVersion.of(seen)]) == [ActionResult(seen.id, False, RUNNING, stale=True)]
    assert stored(storage, seen.id) == again


def test_a_job_that_is_gone_since_it_was_seen_is_told_as_gone(storage: Storage) -> None:
    seen = add(storage)
    storage.delete([seen.id])

    assert storage.delete([seen.id], seen=[JobVersion.of(seen)]) == [ActionResult(seen.id, False, None)]


def test_of_a_worker_and_a_purge_one_gets_the_job(storage: Storage) -> None:
    jobs = [add(storage) for _ in range(20)]
    join(storage)

    def work() -> int:
        taken = storage.reserve(WORKER, {"mail": 1}, 10)
        storage.finish([Completed(job.token, result="1") for job in taken])
        return len(taken)

    def purge() -> int:
        answers = storage.delete([job.id for job in jobs], seen=[JobVersion.of(job) for job in jobs])
        return sum(answer.changed for answer in answers)

    worked, purged = at_once([work, purge])

    assert worked + purged == len(jobs)
    assert storage.count(Filter(states=frozenset({COMPLETED}))).number == worked


# --- pause and resume -----------------------------------------------------------------------------------------------


def test_pausing_and_resuming_answer_whether_they_changed_anything(storage: Storage) -> None:
    answers = [storage.pause("mail"), storage.pause("mail"), storage.resume("mail"), storage.resume("mail")]

    assert answers == [True, False, True, False]
    about = storage.events(EventFilter(subject=Subject.QUEUE, queue="mail"))
    assert [event.kind for event in about] == [Kind.PAUSED, Kind.RESUMED]


def test_a_pause_says_who_and_why(storage: Storage, clock: ManualClock) -> None:
    storage.pause("mail", by="olga", why="the server is down")
    storage.pause("mail", by="another", why="for nothing")

    (queue,) = storage.queues()
    assert (queue.name, queue.is_paused, queue.paused_at) == ("mail", True, clock())
    assert (queue.paused_by, queue.paused_why) == ("olga", "the server is down")
    storage.resume("mail", by="olga")
    (queue,) = storage.queues()
    assert (queue.is_paused, queue.paused_by, queue.paused_why) == (False, None, None)


def test_a_pause_does_not_touch_jobs_in_hand(storage: Storage, clock: ManualClock) -> None:
    job = run(storage, add(storage))
    storage.pause("mail")
    clock.turn(DAY / SECOND)

    assert finish(storage, Completed(job.token)).state is COMPLETED


def test_jobs_still_come_into_a_paused_queue(storage: Storage, clock: ManualClock) -> None:
    storage.pause("mail")
    now, later = add(storage), add(storage, delay=SECOND)
    clock.turn(1)

    assert storage.promote() == 1
    assert [stored(storage, job.id).state for job in (now, later)] == [QUEUED, QUEUED]
    assert storage.reserve(join(storage), {"mail": 1}, 10) == []


def test_a_pause_may_have_an_end_of_which_it_tells(storage: Storage, clock: ManualClock) -> None:
    storage.pause("mail", by="olga", why="a storm", duration=HOUR)

    (queue,) = storage.queues()
    assert (queue.paused_at, queue.paused_until) == (clock(), clock() + HOUR)
    assert [queue.is_over(clock() + late) for late in (HOUR - 1, HOUR)] == [False, True]
    (event,) = storage.events(EventFilter(kind=Kind.PAUSED))
    assert event.data == {"by": "olga", "why": "a storm", "until": clock() + HOUR}


def test_a_pause_is_ended_when_its_time_is_over_and_not_before(storage: Storage, clock: ManualClock) -> None:
    job = add(storage)
    storage.pause("mail", duration=HOUR)
    clock.turn("59m")
    assert not storage.resume("mail", over=True)
    assert reserve_ids(storage, "mail") == []

    clock.turn("1m")

    assert [storage.resume("mail", over=True) for _ in range(2)] == [True, False]
    (queue,) = storage.queues()
    assert (queue.is_paused, queue.paused_until) == (False, None)
    (event,) = storage.events(EventFilter(kind=Kind.RESUMED))
    assert (event.queue, event.data) == ("mail", {"why": "its time is over"})
    assert reserve_ids(storage, "mail") == [job.id]


def test_a_pause_without_an_end_is_never_over(storage: Storage, clock: ManualClock) -> None:
    storage.pause("mail", duration=HOUR)
    storage.resume("mail")
    storage.pause("mail")
    clock.turn("9d")

    assert not storage.resume("mail", over=True)
    (queue,) = storage.queues()
    assert (queue.is_paused, queue.paused_until) == (True, None)


def test_a_pause_takes_the_place_of_one_whose_time_is_over(storage: Storage, clock: ManualClock) -> None:
    job = add(storage)
    storage.pause("mail", by="ann", duration=HOUR)
    clock.turn("1h")  # no foreman has ended it yet

    assert storage.pause("mail", by="bob", why="a storm", duration=DAY)

    assert not storage.resume("mail", over=True)
    (queue,) = storage.queues()
    assert (queue.paused_by, queue.paused_why, queue.paused_at) == ("bob", "a storm", clock())
    assert queue.paused_until == clock() + DAY
    assert [event.data for event in storage.events(EventFilter(kind=Kind.PAUSED))][1:] == [
        {"by": "bob", "why": "a storm", "until": clock() + DAY}
    ]
    assert reserve_ids(storage, "mail") == []
    assert storage.resume("mail")
    assert reserve_ids(storage, "mail") == [job.id]


def test_a_pause_without_an_end_takes_the_place_of_one_that_has_one(storage: Storage, clock: ManualClock) -> None:
    job = add(storage)
    storage.pause("mail", by="ann", duration=HOUR)
    clock.turn(1)

    answers = [storage.pause("mail", by="bob"), storage.pause("mail", by="cem"), storage.pause("mail", duration=DAY)]

    assert answers == [True, False, False]
    clock.turn("9d")
    assert not storage.resume("mail", over=True)
    (queue,) = storage.queues()
    assert (queue.paused_by, queue.paused_until) == ("bob", None)
    assert reserve_ids(storage, "mail") == []
    assert storage.resume("mail")
    assert reserve_ids(storage, "mail") == [job.id]


def test_a_pause_that_has_an_end_is_not_changed_by_another_that_has_one(storage: Storage, clock: ManualClock) -> None:
    storage.pause("mail", by="ann", duration=HOUR)
    before = storage.queues()
    clock.turn(1)

    assert not storage.pause("mail", by="bob", duration=DAY)
    assert storage.queues() == before


@pytest.mark.parametrize("state", [RESERVED, RUNNING])
def test_the_priority_of_a_held_job_counts_for_its_next_attempt(storage: Storage, state: State) -> None:
    job = in_state(storage, state)

    answer = storage.set_priority([job.id], 9, by="olga")[0]

    assert (answer.changed, answer.state) == (True, state)
    again = finish(storage, Failed(job.token, FAILURE, retry_in=0))
    assert (again.state, again.priority, again.rank) == (QUEUED, 9, rank_of(9))
    assert tallies(storage) == recount(storage)


@cases("state", sorted(FINAL))
def test_the_priority_of_a_job_that_has_ended_stays(storage: Storage, state: State) -> None:
    job = in_state(storage, state)

    assert not storage.set_priority([job.id], 9)[0].changed

    assert stored(storage, job.id) == job


def test_options_are_set_in_the_same_step_as_the_queue(storage: Storage) -> None:
    job = add(storage, queue="a", priority=2)

    (answer,) = storage.set_queue([job.id], "a", by="its task", options={"priority": 5, "expires": 60, "max_halts": 1})
    (again,) = storage.set_queue([job.id], "a", options={"priority": 5})

    left = storage.get(job.id)
    assert left is not None
    assert (left.priority, left.rank, left.expires, left.max_halts) == (5, rank_of(5), 60, 1)
    assert left.expire_at == (left.queued_at or 0) + 60
    assert (answer.changed, again.changed) == (True, False)
    (event,) = storage.events(EventFilter(job_id=job.id, kind=Kind.QUEUE_CHANGED))
    assert (event.data or {})["before"] == {"priority": 2, "expires": None, "max_halts": 3}


@cases("options", [{"priority": 11}, {"max_halts": 0}, {"queue": "b"}, {"state": "dead"}])
def test_options_that_no_job_may_have_are_refused(storage: Storage, options: dict[str, Any]) -> None:
    job = add(storage)

    with pytest.raises(BadValue):
        storage.set_queue([job.id], job.queue, options=options)


def test_forcing_a_queued_job_wakes_a_worker(storage: Storage) -> None:
    job = add(storage)
    join(storage)
    storage.pause(job.queue)
    storage.reserve(WORKER, {job.queue: 1}, 1)

    storage.force_start([job.id])

    assert storage.wait(60, [job.queue])
    assert stored(storage, job.id).rank == RANK_FORCED
