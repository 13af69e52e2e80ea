"""Schedules: stored by name, ticked once, and their ticks."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from packhorse.conformance.builders import add, at_once, find_all, ids, new_job, recount, stored, tallies, unique
from packhorse.core.clock import HOUR, MINUTE, SECOND, ManualClock
from packhorse.core.event import Kind, Subject
from packhorse.storage.contract import Storage
from packhorse.storage.records import EventFilter, Placement, ScheduleInfo, Tick


def put(storage: Storage, name: str = "nightly", **options: Any) -> ScheduleInfo:
    options = {"task": "send", "cron": "0 7 * * *", "next_at": storage.now() + HOUR, **options}
    storage.put_schedules([ScheduleInfo(name, **options)])
    return one(storage, name)


def one(storage: Storage, name: str) -> ScheduleInfo:
    (schedule,) = (schedule for schedule in storage.schedules() if schedule.name == name)
    return schedule


def tick_of(schedule: ScheduleInfo, outcome: str = "enqueued", job_id: str | None = None) -> Tick:
    return Tick(schedule.name, schedule.next_at, outcome, at=0, job_id=job_id)


# --- writing --------------------------------------------------------------------------------------------------------


def test_a_schedule_is_kept_as_it_was_written(storage: Storage, clock: ManualClock) -> None:
    written = put(
        storage,
        tz="Europe/Ljubljana",
        args='{"n": 1}',
        queue="mail",
        options={"priority": 5, "unique": True},
        missed="all",
        overlap="skip",
    )

    assert (written.cron, written.tz, written.args, written.queue) == (
        "0 7 * * *",
        "Europe/Ljubljana",
        '{"n": 1}',
        "mail",
    )
    assert (written.options, written.missed, written.overlap) == ({"priority": 5, "unique": True}, "all", "skip")
    assert (written.next_at, written.last_at, written.paused_at) == (clock() + HOUR, None, None)
    assert written.updated_at == clock()


def test_the_next_one_comes_first(storage: Storage) -> None:
    now = storage.now()
    for name, wait in (("c", 3), ("a", 1), ("b", 2)):
        put(storage, name, next_at=now + wait)

    assert [schedule.name for schedule in storage.schedules()] == ["a", "b", "c"]


def test_writing_again_keeps_the_next_slot_and_the_pause_when_the_times_are_the_same(
    storage: Storage, clock: ManualClock
) -> None:
    first = put(storage)
    storage.pause_schedule("nightly", True, by="olga")
    clock.turn(1)

    again = put(storage, next_at=clock() + 5, args='{"new": 1}')

    assert (again.next_at, again.args) == (first.next_at, '{"new": 1}')
    assert (again.paused_at, again.paused_by) == (clock() - SECOND, "olga")


@pytest.mark.parametrize("changed", [{"cron": "0 8 * * *"}, {"tz": "Europe/Ljubljana"}])
def test_writing_other_times_sets_the_next_slot(storage: Storage, clock: ManualClock, changed: dict[str, str]) -> None:
    put(storage)

    again = put(storage, next_at=clock() + 5, **changed)

    assert again.next_at == clock() + 5


def test_writing_again_keeps_what_was_ticked_last(storage: Storage, clock: ManualClock) -> None:
    schedule = put(storage, next_at=clock())
    storage.tick("nightly", schedule.next_at, clock() + HOUR, [new_job("j")], [tick_of(schedule)])

    again = put(storage, next_at=clock())

    assert (again.last_at, again.last_job_id, again.next_at) == (schedule.next_at, "j", clock() + HOUR)


def test_writing_is_recorded(storage: Storage) -> None:
    put(storage)

    (event,) = storage.events(EventFilter(subject=Subject.SCHEDULE))
    assert event.kind is Kind.PUT


# --- ticking --------------------------------------------------------------------------------------------------------


def test_a_tick_turns_the_schedule_and_enqueues_its_job(storage: Storage, clock: ManualClock) -> None:
    schedule = put(storage, next_at=clock() + MINUTE)
    clock.turn("2m")

    answers = storage.tick(
        "nightly",
        schedule.next_at,
        clock() + HOUR,
        [new_job("j", schedule="nightly")],
        [tick_of(schedule, job_id="j")],
    )

    assert answers is not None
    assert [(answer.job_id, answer.placement) for answer in answers] == [("j", Placement.ADDED)]
    turned = one(storage, "nightly")
    assert (turned.next_at, turned.last_at, turned.last_job_id) == (clock() + HOUR, schedule.next_at, "j")
    assert stored(storage, "j").schedule == "nightly"
    assert storage.ticks("nightly") == [Tick("nightly", schedule.next_at, "enqueued", clock(), "j")]
    assert len(storage.events(EventFilter(kind=Kind.TICKED))) == 1


def test_the_second_to_tick_a_slot_is_told_so(storage: Storage, clock: ManualClock) -> None:
    schedule = put(storage, next_at=clock())
    storage.tick("nightly", schedule.next_at, clock() + HOUR, [new_job("first")], [tick_of(schedule)])

    second = storage.tick("nightly", schedule.next_at, clock() + HOUR, [new_job("second")], [tick_of(schedule)])

    assert second is None
    assert ids(find_all(storage)) == ["first"]
    assert len(storage.ticks("nightly")) == 1


def test_of_many_who_tick_at_once_one_is_first(storage: Storage, neighbour: Storage, clock: ManualClock) -> None:
    schedule = put(storage, next_at=clock())
    calls = [
        partial(each.tick, "nightly", schedule.next_at, clock() + HOUR, [new_job()], [tick_of(schedule)])
        for each in (storage, neighbour) * 4
    ]

    answers = at_once(calls)

    assert len([answer for answer in answers if answer is not None]) == 1
    assert (len(find_all(storage)), len(storage.ticks("nightly"))) == (1, 1)


@pytest.mark.parametrize("why", ["not due", "paused", "unknown", "another slot"])
def test_a_schedule_that_cannot_tick_stays_as_it_is(storage: Storage, clock: ManualClock, why: str) -> None:
    schedule = put(storage, next_at=clock() + (1 if why == "not due" else 0))
    storage.pause_schedule("nightly", why == "paused")
    before = storage.schedules()

    answer = storage.tick(
        "stranger" if why == "unknown" else "nightly",
        schedule.next_at - (SECOND if why == "another slot" else 0),
        clock() + HOUR,
        [new_job("j")],
        [tick_of(schedule)],
    )

    assert answer is None
    assert (storage.get("j"), storage.ticks("nightly"), storage.schedules()) == (None, [], before)


def test_a_slot_is_due_at_its_microsecond(storage: Storage, clock: ManualClock) -> None:
    put(storage, next_at=clock() + 1)
    slot = clock() + 1

    early = storage.tick("nightly", slot, slot + HOUR, [], [])
    clock.set(slot)
    late = storage.tick("nightly", slot, slot + HOUR, [], [])

    assert (early, late) == (None, [])


def test_a_tick_whose_job_is_refused_is_skipped_and_the_schedule_goes_on(storage: Storage, clock: ManualClock) -> None:
    schedule = put(storage, next_at=clock())
    add(storage, "holder", unique=unique())

    enqueued = storage.tick(
        "nightly",
        schedule.next_at,
        clock() + HOUR,
        [new_job("j"), new_job(unique=unique(on_conflict="reject"))],
        [tick_of(schedule)],
    )

    assert enqueued == []
    assert one(storage, "nightly").next_at == clock() + HOUR
    assert [tick.outcome for tick in storage.ticks("nightly")] == ["skipped"]
    assert ids(find_all(storage)) == ["holder"]
    assert tallies(storage) == recount(storage)
    assert storage.events(EventFilter(job_id="j")) == []


def test_the_newest_tick_comes_first(storage: Storage, clock: ManualClock) -> None:
    slot = clock()
    put(storage, next_at=slot)
    put(storage, "other", next_at=slot)
    storage.tick("other", slot, slot + HOUR, [], [Tick("other", slot, "skipped", 0)])

    for number, outcome in enumerate(["missed", "skipped", "enqueued"]):
        at = slot + number
        clock.set(at)
        storage.tick("nightly", at, at + 1, [], [Tick("nightly", at, outcome, 0)])

    assert [tick.outcome for tick in storage.ticks("nightly")] == ["enqueued", "skipped", "missed"]
    assert [tick.slot for tick in storage.ticks("nightly", limit=2)] == [slot + 2, slot + 1]


def test_many_missed_slots_are_one_tick(storage: Storage, clock: ManualClock) -> None:
    slot = clock()
    put(storage, next_at=slot)
    clock.turn("3h")
    missed = [Tick("nightly", slot + number * HOUR, "missed", 0) for number in range(3)]

    answers = storage.tick("nightly", slot, slot + 4 * HOUR, [new_job("a"), new_job("b")], missed)

    assert answers is not None
    assert [answer.job_id for answer in answers] == ["a", "b"]
    assert [tick.slot for tick in storage.ticks("nightly")] == [slot + 2 * HOUR, slot + HOUR, slot]
    assert one(storage, "nightly").last_job_id == "b"


# --- pausing and removing -------------------------------------------------------------------------------------------


def test_pausing_a_schedule_answers_whether_it_changed_anything(storage: Storage, clock: ManualClock) -> None:
    put(storage)

    answers = [storage.pause_schedule(name, paused) for name in ("nightly", "stranger") for paused in (True, True)]

    assert answers == [True, False, False, False]
    assert one(storage, "nightly").paused_at == clock()
    assert [storage.pause_schedule("nightly", False) for _ in range(2)] == [True, False]
    assert (one(storage, "nightly").paused_at, one(storage, "nightly").paused_by) == (None, None)
    kinds = [event.kind for event in storage.events(EventFilter(subject=Subject.SCHEDULE))]
    assert kinds == [Kind.PUT, Kind.PAUSED, Kind.RESUMED]


def test_what_an_operator_did_with_a_schedule_is_an_event_and_changes_nothing_else(storage: Storage) -> None:
    put(storage)
    before = storage.schedules()

    storage.record_operator_event("nightly", Kind.RUN_NOW, job="j", by="olga")
    storage.record_operator_event("nightly", Kind.SKIPPED, slot=7, by="olga")

    assert storage.schedules() == before
    _, ran, skipped = storage.events(EventFilter(subject=Subject.SCHEDULE, queue="nightly"))
    assert (ran.kind, ran.job_id, ran.data) == (Kind.RUN_NOW, None, {"job": "j", "by": "olga"})
    assert (skipped.kind, skipped.data) == (Kind.SKIPPED, {"slot": 7, "by": "olga"})


def test_a_schedule_goes_and_its_jobs_stay(storage: Storage, clock: ManualClock) -> None:
    schedule = put(storage, next_at=clock())
    storage.tick("nightly", clock(), clock() + HOUR, [new_job("j", schedule="nightly")], [tick_of(schedule)])

    answers = [storage.remove_schedule("nightly", by="olga") for _ in range(2)]

    assert answers == [True, False]
    assert storage.schedules() == []
    assert stored(storage, "j").schedule == "nightly"
    assert len(storage.events(EventFilter(subject=Subject.SCHEDULE, kind=Kind.DELETED))) == 1
