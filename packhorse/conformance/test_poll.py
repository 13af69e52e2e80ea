"""The outlook: what a foreman has to see to, and when, in one read."""

from __future__ import annotations

from typing import Any

import pytest

from packhorse.conformance.builders import WORKER, add, in_every_state, in_state, join, run
from packhorse.core.clock import HOUR, MINUTE, SECOND, ManualClock
from packhorse.core.event import ForemanAction, ForemanOrder, Kind, Subject
from packhorse.core.job import HELD, QUEUED, RUNNING, State
from packhorse.core.outcome import Completed
from packhorse.storage.contract import Storage
from packhorse.storage.records import EventFilter, PollResult, ScheduleInfo, WorkerInfo
from packhorse.storage.transfer import Move, Stage

FOREMAN = "foreman"


def look(storage: Storage, *owners: str, after: int = 0) -> PollResult:
    return storage.poll(FOREMAN, owners, after=after)


def schedule(storage: Storage, name: str = "nightly", next_in: int = HOUR) -> None:
    storage.put_schedules([ScheduleInfo(name, "send", "0 7 * * *", next_at=storage.now() + next_in)])


def order(storage: Storage, foreman: str = FOREMAN) -> int:
    """Leave an order; its number."""
    storage.order(foreman, ForemanOrder(ForemanAction.QUIET))
    return storage.events(EventFilter(kind=Kind.ORDERED), limit=1, newest_first=True)[0].id


def test_nothing_lies_ahead_in_an_empty_storage(storage: Storage, clock: ManualClock) -> None:
    assert look(storage) == look(storage, WORKER, "bob") == PollResult(clock())


def test_looking_changes_nothing(storage: Storage, clock: ManualClock) -> None:
    in_every_state(storage)
    clock.turn("1d")
    before = storage.events(EventFilter()), storage.tallies()

    assert look(storage, WORKER) == look(storage, WORKER)
    assert (storage.events(EventFilter()), storage.tallies()) == before


# --- stops ----------------------------------------------------------------------------------------------------------


def test_a_held_job_that_should_stop_is_seen_until_it_has_ended(storage: Storage) -> None:
    job = in_state(storage, RUNNING)
    assert not look(storage, WORKER).stops

    storage.abort([job.id])

    assert look(storage, "bob", WORKER).stops
    assert look(storage, WORKER).stops
    storage.finish([Completed(job.token)])
    assert not look(storage, WORKER).stops


def test_what_others_hold_is_theirs_to_stop(storage: Storage) -> None:
    storage.abort([in_state(storage, RUNNING).id])

    assert not look(storage, "bob").stops
    assert not look(storage).stops


@pytest.mark.parametrize("state", State)
def test_that_anybody_holds_a_job_is_seen(storage: Storage, state: State) -> None:
    in_state(storage, state, owner="ruby-1")

    assert look(storage).held == (state in HELD)
    storage.leave("ruby-1")
    assert not look(storage).held


# --- jobs in line ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", State)
def test_only_a_job_in_line_is_seen_as_one(storage: Storage, state: State) -> None:
    in_state(storage, state)

    assert look(storage, WORKER).queued == (state is QUEUED)


def test_a_line_that_emptied_is_empty(storage: Storage) -> None:
    jobs = [add(storage, queue=queue, priority=priority) for queue, priority in (("mail", 1), ("pics", 10))]
    assert look(storage).queued

    storage.abort([jobs[0].id])
    assert look(storage).queued
    storage.delete([jobs[1].id])
    assert not look(storage).queued


def test_a_paused_line_has_jobs_all_the_same(storage: Storage) -> None:
    storage.pause("mail")
    assert not look(storage).queued

    add(storage)

    assert look(storage).queued


# --- pauses ---------------------------------------------------------------------------------------------------------


def test_the_next_end_of_a_pause_is_foreseen(storage: Storage, clock: ManualClock) -> None:
    storage.pause("without an end")
    assert look(storage).resumes_in is None

    storage.pause("long", duration=HOUR)
    storage.pause("short", duration=MINUTE)
    assert look(storage).resumes_in == MINUTE
    clock.turn("2m")
    assert look(storage).resumes_in == 0
    storage.resume("short")
    assert look(storage).resumes_in == 58 * MINUTE
    storage.resume("long", by="olga")

    assert look(storage).resumes_in is None


def test_of_a_storage_that_is_moved_no_pause_ends(storage: Storage, clock: ManualClock) -> None:
    storage.pause("short", duration=MINUTE)
    storage.set_move(Move("copy", Stage.FROZEN, "redis://elsewhere", 1), expected=None)
    clock.turn("2m")

    assert look(storage).resumes_in is None


# --- orders ---------------------------------------------------------------------------------------------------------


def test_an_order_is_seen_from_before_it(storage: Storage) -> None:
    for foreman in (FOREMAN, "another"):
        storage.join(WorkerInfo(foreman, subject=Subject.FOREMAN))
    assert not look(storage).ordered

    order(storage, "another")
    assert not look(storage).ordered
    number = order(storage)

    assert look(storage).ordered
    assert look(storage, after=number - 1).ordered
    assert not look(storage, after=number).ordered
    assert not look(storage, after=number + 1_000).ordered


def test_the_last_of_several_orders_is_seen(storage: Storage) -> None:
    storage.join(WorkerInfo(FOREMAN, subject=Subject.FOREMAN))
    numbers = [order(storage) for _ in range(3)]

    assert [look(storage, after=number).ordered for number in numbers] == [True, True, False]


def test_a_foreman_that_came_is_no_order(storage: Storage) -> None:
    for number in range(5):
        storage.join(WorkerInfo(f"foreman-{number}", subject=Subject.FOREMAN))
    storage.join(WorkerInfo(FOREMAN, subject=Subject.FOREMAN))
    storage.record_stat(FOREMAN, {"ordered": FOREMAN})

    assert not look(storage).ordered


# --- times ----------------------------------------------------------------------------------------------------------


def times(storage: Storage) -> tuple[int | None, int | None, int | None]:
    seen = look(storage)
    return seen.due_in, seen.expires_in, seen.ticks_in


def test_the_next_due_job_is_the_nearest(storage: Storage, clock: ManualClock) -> None:
    add(storage, delay=HOUR)
    add(storage, delay=MINUTE)

    assert times(storage) == (MINUTE, None, None)
    clock.set(clock() + MINUTE - 1)
    assert look(storage).due_in == 1
    clock.turn(1)
    assert look(storage).due_in == 0


def test_the_next_to_expire_is_the_nearest_and_held_jobs_count(storage: Storage, clock: ManualClock) -> None:
    join(storage)
    add(storage, expires=HOUR)
    run(storage, add(storage, queue="pics", total_timeout=MINUTE))

    assert times(storage) == (None, MINUTE, None)
    clock.turn(61)
    assert look(storage).expires_in == 0
    storage.expire()
    assert look(storage, WORKER).stops
    assert look(storage).expires_in == HOUR - 61 * SECOND


def test_the_next_slot_is_the_nearest_of_those_that_are_not_paused(storage: Storage, clock: ManualClock) -> None:
    schedule(storage)
    schedule(storage, "hourly", MINUTE)
    assert times(storage) == (None, None, MINUTE)

    storage.pause_schedule("hourly", True)
    assert look(storage).ticks_in == HOUR
    storage.pause_schedule("hourly", False)
    assert look(storage).ticks_in == MINUTE
    clock.turn(90)
    assert look(storage).ticks_in == 0
    storage.tick("hourly", clock() - 30 * SECOND, clock() + 2 * HOUR, [], [])
    assert look(storage).ticks_in == HOUR - 90 * SECOND
    storage.remove_schedule("nightly")
    assert look(storage).ticks_in == 2 * HOUR
    storage.pause_schedule("hourly", True)
    assert look(storage).ticks_in is None
    storage.remove_schedule("hourly")
    assert look(storage).ticks_in is None


@pytest.mark.parametrize(
    ("stage", "expected"),
    [
        (None, (0, 0, 0)),
        (Stage.CLOSING, (None, 0, None)),
        (Stage.FROZEN, (None, None, None)),
        (Stage.MOVED, (None, None, None)),
        (Stage.FILLING, (None, None, None)),
    ],
)
def test_of_a_storage_that_is_moved_only_what_may_be_done_is_told(
    storage: Storage, clock: ManualClock, stage: Stage | None, expected: Any
) -> None:
    add(storage, delay=SECOND)
    add(storage, queue="pics", expires=SECOND)
    schedule(storage, next_in=SECOND)
    if stage is not None:
        storage.set_move(Move("copy", stage, "redis://elsewhere", 1), expected=None)
    assert times(storage) == (SECOND, SECOND, SECOND)

    clock.turn(2)

    assert times(storage) == expected
    assert look(storage).moved == (stage is not None)
