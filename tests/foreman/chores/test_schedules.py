"""Ticking schedules: which slots run, which are skipped, which were missed; each exactly once, on every night."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from threading import Barrier, Thread
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from packhorse.client.app import Packhorse
from packhorse.client.schedule import slot_id
from packhorse.conformance.builders import add, find_all, finish, run
from packhorse.core.clock import DAY, HOUR, MINUTE, SECOND, ManualClock, from_datetime, to_datetime
from packhorse.core.cron import Cron
from packhorse.core.job import Job, UniqueLock
from packhorse.core.outcome import Completed
from packhorse.foreman.chores.schedules import TickSchedules, decide, due_slots
from packhorse.storage import open_storage
from packhorse.storage.contract import Storage
from packhorse.storage.memory import Memory
from packhorse.storage.records import ScheduleInfo
from tests.children import PATIENCE
from tests.unchecked import unchecked

LJUBLJANA = ZoneInfo("Europe/Ljubljana")


def put(storage: Storage, cron: str = "@every 1m", name: str = "report", **fields: Any) -> ScheduleInfo:
    fields = {"task": "report", "next_at": Cron(cron, fields.get("tz", "UTC")).next_after(storage.now()), **fields}
    storage.put_schedules([ScheduleInfo(name, cron=cron, **fields)])
    return stored(storage, name)


def stored(storage: Storage, name: str = "report") -> ScheduleInfo:
    (schedule,) = (schedule for schedule in storage.schedules() if schedule.name == name)
    return schedule


def outcomes(storage: Storage, name: str = "report") -> list[str]:
    """What became of the slots, the oldest first."""
    return [tick.outcome for tick in storage.ticks(name, limit=1_000)][::-1]


def local(*moment: int) -> int:
    return from_datetime(datetime(*moment, tzinfo=LJUBLJANA))  # type: ignore[misc, arg-type]


# --- one slot -------------------------------------------------------------------------------------------------------


def test_a_slot_that_is_due_becomes_a_job_and_a_tick(storage: Memory, clock: ManualClock):
    schedule = put(storage, args='{"kind":"daily"}', queue="reports")
    clock.set(schedule.next_at)

    TickSchedules(storage).run()

    (job,) = find_all(storage)
    assert (job.task, job.queue, job.args, job.schedule) == ("report", "reports", '{"kind":"daily"}', "report")
    (tick,) = storage.ticks("report")
    assert (tick.slot, tick.outcome, tick.job_id, tick.at) == (schedule.next_at, "enqueued", job.id, clock())
    assert stored(storage).next_at == schedule.next_at + MINUTE


def test_before_its_slot_nothing_happens(storage: Memory, clock: ManualClock):
    schedule = put(storage)
    clock.set(schedule.next_at - 1)

    TickSchedules(storage).run()

    assert (find_all(storage), storage.ticks("report")) == ([], [])


def test_the_job_has_the_options_of_its_schedule(storage: Memory, clock: ManualClock):
    wanted = {"priority": 7, "max_attempts": 2, "timeout": 5 * SECOND, "meta": '{"a":1}', "created_by": "code"}
    put(storage, options={"job": {**wanted, "unique": {"key": "report:x", "until": "start"}}})
    clock.turn("1m")

    TickSchedules(storage).run()

    (job,) = find_all(storage)
    assert {name: getattr(job, name) for name in wanted} == wanted
    assert (job.queue, job.unique_key) == ("report", "report:x")


def test_a_paused_schedule_does_not_tick(storage: Memory, clock: ManualClock):
    put(storage)
    storage.pause_schedule("report", True)
    clock.turn("1m")

    TickSchedules(storage).run()

    assert find_all(storage) == []


def test_the_id_of_a_job_follows_from_schedule_and_slot(clock: ManualClock):
    ids = [slot_id(name, clock() + second) for name in ("a", "b") for second in (0, SECOND)]

    assert len(set(ids)) == 4
    assert ids == [slot_id(name, clock() + second) for name in ("a", "b") for second in (0, SECOND)]
    for each in ids:
        assert str(uuid.UUID(each)) == each
        assert (uuid.UUID(each).version, uuid.UUID(each).variant) == (7, uuid.RFC_4122)


def test_a_job_that_is_there_already_is_not_made_again(storage: Memory, clock: ManualClock):
    schedule = put(storage)
    add(storage, slot_id("report", schedule.next_at), task="report")
    clock.set(schedule.next_at)

    TickSchedules(storage).run()

    assert len(find_all(storage)) == 1
    assert outcomes(storage) == ["enqueued"]


# --- when it wants to run again -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("ahead", "again"), [(1_500, 0.0015), (SECOND, 1.0), (30 * SECOND, 30.0), (HOUR, None)])
def test_it_runs_again_when_the_next_slot_comes_or_after_its_interval(
    storage: Memory, clock: ManualClock, ahead: int, again: float | None
):
    schedule = put(storage)
    clock.set(schedule.next_at - ahead)

    assert TickSchedules(storage).run() == again
    assert TickSchedules(storage).due_in(storage.poll("foreman", [])) == ahead


def test_after_a_tick_the_next_slot_counts(storage: Memory, clock: ManualClock):
    schedule = put(storage, "* * * * * *")
    clock.set(schedule.next_at + 400_000)

    assert TickSchedules(storage).run() == 0.6


def test_a_paused_schedule_does_not_hurry_it(storage: Memory, clock: ManualClock):
    schedule = put(storage)
    storage.pause_schedule("report", True)
    clock.set(schedule.next_at + 1)

    assert TickSchedules(storage).run() is None


# --- missed slots ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("missed", "expected"),
    [
        ("one", ["missed", "missed", "enqueued"]),
        ("none", ["missed", "missed", "missed"]),
        ("all", ["enqueued", "enqueued", "enqueued"]),
    ],
)
def test_slots_that_passed_while_no_foreman_ran(storage: Memory, clock: ManualClock, missed: str, expected: list[str]):
    schedule = put(storage, "@every 10m", missed=missed)
    clock.set(schedule.next_at + 25 * MINUTE)

    TickSchedules(storage).run()

    assert outcomes(storage) == expected
    assert [job.id for job in by_slot(storage)] == [
        slot_id("report", schedule.next_at + number * 10 * MINUTE)
        for number, outcome in enumerate(expected)
        if outcome == "enqueued"
    ]
    assert stored(storage).next_at == schedule.next_at + 30 * MINUTE


def by_slot(storage: Storage) -> list[Job]:
    return sorted(find_all(storage), key=lambda job: job.seq)


@pytest.mark.parametrize(("late", "expected"), [(MINUTE, "enqueued"), (MINUTE + 1, "missed")])
def test_without_making_up_a_slot_still_runs_when_it_is_nearly_on_time(
    storage: Memory, clock: ManualClock, late: int, expected: str
):
    schedule = put(storage, "@every 1h", missed="none")
    clock.set(schedule.next_at + late)

    TickSchedules(storage).run()

    assert outcomes(storage) == [expected]


def test_a_hundred_slots_are_made_up_for_at_most(storage: Memory, clock: ManualClock):
    schedule = put(storage, "@every 1m", missed="all")
    clock.set(schedule.next_at + 150 * MINUTE)

    TickSchedules(storage).run()

    assert outcomes(storage) == ["missed"] + ["enqueued"] * 100
    jobs = by_slot(storage)
    assert jobs[0].id == slot_id("report", schedule.next_at + 51 * MINUTE)
    assert jobs[-1].id == slot_id("report", schedule.next_at + 150 * MINUTE)


def test_after_years_with_a_slot_each_second_it_is_quick(storage: Memory, clock: ManualClock):
    schedule = put(storage, "* * * * * *")
    clock.set(schedule.next_at + 3_650 * DAY)

    TickSchedules(storage).run()

    assert outcomes(storage) == ["missed"] * 100 + ["enqueued"]
    assert stored(storage).next_at == clock() + SECOND


@pytest.mark.parametrize("slots", [1, 2, 99, 100, 101, 102, 103, 500])
def test_of_many_slots_the_first_and_the_latest_hundred_are_recorded(slots: int):
    first = 1_800_000_000 * SECOND
    now = first + (slots - 1) * MINUTE + 5
    every = [first + number * MINUTE for number in range(slots)]

    assert due_slots(Cron("@every 1m"), first, now) == (every if slots <= 101 else [first, *every[-100:]])


# --- overlap --------------------------------------------------------------------------------------------------------


def test_a_slot_may_be_skipped_while_the_last_job_has_not_ended(storage: Memory, clock: ManualClock):
    put(storage, overlap="skip")
    chore = TickSchedules(storage)
    clock.turn("1m")
    chore.run()
    (job,) = find_all(storage)

    clock.turn("1m")
    chore.run()
    finish(storage, Completed(run(storage, job).token))
    clock.turn("1m")
    chore.run()

    assert outcomes(storage) == ["enqueued", "skipped", "enqueued"]


def test_a_last_job_that_is_gone_holds_nothing_up(storage: Memory, clock: ManualClock):
    put(storage, overlap="skip")
    chore = TickSchedules(storage)
    clock.turn("1m")
    chore.run()
    storage.delete([find_all(storage)[0].id])

    clock.turn("1m")
    chore.run()

    assert outcomes(storage) == ["enqueued", "enqueued"]


def test_slots_that_are_made_up_for_do_not_overlap_each_other(storage: Memory, clock: ManualClock):
    put(storage, overlap="skip", missed="all")
    clock.turn("3m")

    TickSchedules(storage).run()

    assert outcomes(storage) == ["skipped", "skipped", "enqueued"]


def test_overlap_is_allowed_unless_said_otherwise(storage: Memory, clock: ManualClock):
    put(storage)
    chore = TickSchedules(storage)

    for _ in range(3):
        clock.turn("1m")
        chore.run()

    assert outcomes(storage) == ["enqueued"] * 3


# --- left out on purpose --------------------------------------------------------------------------------------------


def test_a_slot_that_was_marked_is_skipped(storage: Memory, clock: ManualClock):
    schedule = put(storage)
    put(storage, options={"skip": schedule.next_at})
    chore = TickSchedules(storage)

    for _ in range(2):
        clock.turn("1m")
        chore.run()

    assert outcomes(storage) == ["skipped", "enqueued"]


def test_the_slots_of_a_pause_are_skipped_and_not_made_up_for(storage: Memory, clock: ManualClock):
    put(storage, missed="all")
    chore = TickSchedules(storage)
    clock.turn("90s")  # one slot is missed before the pause
    storage.pause_schedule("report", True)
    clock.turn("2m")
    storage.pause_schedule("report", False)
    clock.turn("1m")

    chore.run()

    assert outcomes(storage) == ["enqueued", "skipped", "skipped", "enqueued"]


def test_a_resumed_schedule_does_not_run_immediately(storage: Memory, clock: ManualClock):
    put(storage, "@every 1h")
    storage.pause_schedule("report", True)
    clock.turn("5h30m")
    storage.pause_schedule("report", False)

    TickSchedules(storage).run()

    assert outcomes(storage) == ["skipped"] * 5
    assert find_all(storage) == []


def test_a_twin_that_must_be_refused_skips_the_slot(storage: Memory, clock: ManualClock):
    add(storage, unique=UniqueLock("k"))
    put(storage, options={"job": {"unique": {"key": "k", "on_conflict": "reject"}}})
    clock.turn("1m")

    TickSchedules(storage).run()

    assert outcomes(storage) == ["skipped"]
    assert len(find_all(storage)) == 1


@pytest.mark.parametrize("on_conflict", ["keep", "replace", "reject"])
def test_of_slots_that_would_be_unique_twins_the_latest_is_made_up_for(
    storage: Memory, clock: ManualClock, on_conflict: str
):
    put(storage, missed="all", options={"job": {"unique": {"key": "k", "on_conflict": on_conflict}}})
    clock.turn("3m")

    TickSchedules(storage).run()

    assert outcomes(storage) == ["skipped", "skipped", "enqueued"]


# --- decisions, one by one ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("missed", "overlap", "is_busy", "skipped", "expected"),
    [
        ("one", "allow", False, {3}, ["missed", "enqueued", "skipped"]),
        ("one", "skip", True, set(), ["missed", "missed", "skipped"]),
        ("none", "allow", False, {3}, ["missed", "enqueued", "skipped"]),
        ("none", "skip", True, set(), ["missed", "missed", "skipped"]),
        ("all", "allow", False, {1}, ["skipped", "enqueued", "enqueued"]),
        ("all", "skip", False, {3}, ["skipped", "enqueued", "skipped"]),
        ("all", "skip", True, set(), ["skipped", "skipped", "skipped"]),
        ("one", "allow", False, {1, 2, 3}, ["skipped", "skipped", "skipped"]),
    ],
)
def test_what_becomes_of_three_slots(missed: str, overlap: str, is_busy: bool, skipped: set[int], expected: list[str]):
    schedule = ScheduleInfo("report", "report", "* * * * *", missed=missed, overlap=overlap)

    told = decide(schedule, [1, 2, 3], 3, skipped, is_busy=is_busy, is_unique=False)

    assert told == dict(zip([1, 2, 3], expected, strict=True))


# --- what cannot be understood --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "broken",
    [
        {"cron": "every day"},
        {"tz": "Europe/Atlantis"},
        {"options": {"job": {"priority": "high"}}},
        {"options": {"job": 5}},
    ],
)
def test_a_schedule_that_cannot_tick_is_logged_once_and_delays_no_other(
    storage: Memory, clock: ManualClock, caplog: pytest.LogCaptureFixture, broken: dict[str, Any]
):
    unchecked(storage, "put_schedules")(
        [ScheduleInfo("broken", "report", **{"cron": "@every 1m", **broken, "next_at": clock() + SECOND})]
    )
    put(storage)
    chore = TickSchedules(storage)
    clock.turn("1m")

    with caplog.at_level(logging.ERROR, "packhorse.chores"):
        chore.run()
        chore.run()

    assert outcomes(storage) == ["enqueued"]
    assert stored(storage, "broken").next_at <= clock()
    assert len(caplog.records) == 1
    assert "schedule broken cannot tick" in caplog.text


# --- daylight saving ------------------------------------------------------------------------------------------------


def through_the_night(storage: Memory, clock: ManualClock, start: int, end: int) -> list[str]:
    """The slots that were enqueued from `start` to `end`, by Ljubljana's clocks, the chore running every 20 minutes."""
    chore = TickSchedules(storage)
    while clock() < end:
        clock.turn("20m")
        chore.run()
    slots = [tick.slot for tick in storage.ticks("report", limit=1_000) if tick.outcome == "enqueued"]
    assert len(find_all(storage, limit=1_000)) == len(slots)
    return [to_datetime(slot).astimezone(LJUBLJANA).strftime("%d %H:%M %Z") for slot in sorted(slots)]


@pytest.mark.parametrize(
    ("cron", "expected"),
    [
        ("30 2 * * *", ["26 03:00 CEST", "27 02:30 CEST"]),
        ("0 7 * * *", ["26 07:00 CEST", "27 07:00 CEST"]),
        ("0 0-4 26 3 *", ["26 00:00 CET", "26 01:00 CET", "26 03:00 CEST", "26 04:00 CEST"]),
        ("0 */2 26 3 *", [f"26 {hour:02}:00 {'CET' if hour < 2 else 'CEST'}" for hour in (0, *range(4, 24, 2))]),
    ],
)
def test_in_spring_a_time_that_is_skipped_runs_once_after_the_gap(
    storage: Memory, clock: ManualClock, cron: str, expected: list[str]
):
    clock.set(local(2034, 3, 25, 23, 0))
    put(storage, cron, tz="Europe/Ljubljana", missed="all")

    assert through_the_night(storage, clock, clock(), local(2034, 3, 27, 12, 0)) == expected


@pytest.mark.parametrize(
    ("cron", "expected"),
    [
        ("30 2 * * *", ["29 02:30 CEST", "30 02:30 CET"]),
        ("0 7 * * *", ["29 07:00 CET", "30 07:00 CET"]),
        ("0 1-3 29 10 *", ["29 01:00 CEST", "29 02:00 CEST", "29 03:00 CET"]),
        ("*/30 2 29 10 *", ["29 02:00 CEST", "29 02:30 CEST", "29 02:00 CET", "29 02:30 CET"]),
    ],
)
def test_in_autumn_a_time_that_comes_twice_runs_once_unless_it_follows_the_clock(
    storage: Memory, clock: ManualClock, cron: str, expected: list[str]
):
    clock.set(local(2034, 10, 28, 23, 0))
    put(storage, cron, tz="Europe/Ljubljana", missed="all")

    assert through_the_night(storage, clock, clock(), local(2034, 10, 30, 12, 0)) == expected


@pytest.mark.parametrize("night", [(2034, 3, 26), (2034, 10, 29)])
def test_every_foreman_makes_up_for_the_same_slots(storage: Memory, clock: ManualClock, night: tuple[int, int, int]):
    clock.set(local(*night, 0, 1) - 2 * HOUR)
    put(storage, "*/15 * * * *", tz="Europe/Ljubljana", missed="all")
    first = stored(storage).next_at
    clock.set(first + 8 * HOUR)

    TickSchedules(storage).run()

    slots = sorted(tick.slot for tick in storage.ticks("report", limit=100))
    assert slots == [first + number * 15 * MINUTE for number in range(33)]


# --- many at once ---------------------------------------------------------------------------------------------------


@pytest.fixture
def file(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'jobs.db'}"


@pytest.fixture
def foremen(file: str, clock: ManualClock) -> Iterator[list[Storage]]:
    """Two storages on one file, as two processes have them."""
    storages = [open_storage(file, now=clock) for _ in range(2)]
    yield storages
    for storage in storages:
        storage.close()


def test_however_many_tick_each_slot_is_enqueued_once(foremen: list[Storage], clock: ManualClock):
    names, rounds = [f"report-{number}" for number in range(5)], 12
    for name in names:
        put(foremen[0], "@every 1m", name, missed="all")
    start, end = Barrier(3), Barrier(3)

    def tick(storage: Storage) -> None:
        chore = TickSchedules(storage)
        for _ in range(rounds):
            start.wait(timeout=PATIENCE)
            chore.run()
            end.wait(timeout=PATIENCE)

    threads = [Thread(target=tick, args=(storage,)) for storage in foremen]
    for thread in threads:
        thread.start()
    for number in range(rounds):
        clock.turn("2m" if number % 3 == 0 else "1m")
        start.wait(timeout=PATIENCE)
        end.wait(timeout=PATIENCE)
    for thread in threads:
        thread.join(timeout=PATIENCE)

    for name in names:
        ticks = foremen[0].ticks(name, limit=1_000)
        assert len({tick.slot for tick in ticks}) == len(ticks) == 16
        assert {tick.outcome for tick in ticks} == {"enqueued"}
    jobs = find_all(foremen[1])
    assert {job.id for job in jobs} == {tick.job_id for name in names for tick in foremen[1].ticks(name, limit=1_000)}
    assert len(jobs) == 80


def test_a_foreman_ticks_what_it_has_never_seen_the_code_of(file: str, foremen: list[Storage], clock: ManualClock):
    with Packhorse(foremen[0]) as app:

        @app.schedule("0 7 * * *", tz="Europe/Ljubljana", args={"kind": "daily"}, priority=4, meta={"by": "clock"})
        @app.task(queue="reports", retries=1, timeout="1m")
        def report(kind: str) -> None: ...

        app.put_schedules()
        clock.set(stored(foremen[1]).next_at)
        TickSchedules(foremen[1]).run()

        (job,) = app.jobs()
        record = job.record
        assert (job.task, job.queue, job.args, job.meta) == ("report", "reports", {"kind": "daily"}, {"by": "clock"})
        assert (record.priority, job.effective.max_attempts, job.effective.timeout) == (4, 2, MINUTE)
        assert to_datetime(clock()).astimezone(LJUBLJANA).hour == 7
        assert to_datetime(clock()).tzinfo is UTC
