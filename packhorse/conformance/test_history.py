"""Records: events, failures by cause, and the counts behind the charts."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from msgspec.structs import replace

from packhorse.conformance.builders import (
    FAILURE,
    WORKER,
    add,
    find_all,
    finish,
    history,
    ids,
    in_every_state,
    in_state,
    join,
    new_jobs,
    run,
    stored,
    take,
)
from packhorse.core.clock import DAY, HOUR, MINUTE, SECOND, ManualClock
from packhorse.core.event import Event, Kind, Subject
from packhorse.core.job import (
    ABORTED,
    COMPLETED,
    DEAD,
    QUEUED,
    RESERVED,
    RETRYING,
    RUNNING,
    UNFINISHED,
    Job,
)
from packhorse.core.metrics import CAME, LIMITS, STEPS, WENT, step_of
from packhorse.core.outcome import Completed, Failed, Failure, Halted, Snoozed
from packhorse.storage.contract import Storage
from packhorse.storage.records import (
    EventFilter,
    FailureGroup,
    Filter,
    Point,
    Retention,
    Span,
)
from packhorse.storage.transfer import Section

# --- what no storage holds ------------------------------------------------------------------------------------------


def test_nothing_is_found_under_a_name_with_a_nul_character(storage: Storage) -> None:
    job = add(storage)
    name = job.id + "\0"

    assert storage.get(name) is None
    assert ids(storage.get_many([name, job.id])) == [job.id]
    for where in (EventFilter(job_id=name), EventFilter(queue=name), EventFilter(owner=name)):
        assert storage.events(where) == []
    assert storage.log_lines(name) == []
    assert storage.subscribers(name) == []
    assert storage.outcomes_for(name) == []


# --- events ---------------------------------------------------------------------------------------------------------


def test_a_life_is_told_by_its_events(storage: Storage, clock: ManualClock) -> None:
    job = add(storage, queue="letters", delay=SECOND)
    clock.turn(1)
    finish(storage, Failed(run(storage, job).token, FAILURE, retry_in=SECOND))
    clock.turn(1)
    finish(storage, Completed(run(storage, job, "bob").token, ran=5))

    told = [(event.kind, event.state, event.owner, event.fence) for event in history(storage, job.id)]
    assert told == [
        (Kind.ADDED, "scheduled", None, None),
        (Kind.QUEUED, "queued", None, None),
        (Kind.RESERVED, "reserved", WORKER, 1),
        (Kind.STARTED, "running", WORKER, 1),
        (Kind.FAILED, "retrying", WORKER, 1),
        (Kind.READDED, "queued", None, 1),
        (Kind.RESERVED, "reserved", "bob", 2),
        (Kind.STARTED, "running", "bob", 2),
        (Kind.COMPLETED, "completed", "bob", 2),
    ]
    events = history(storage, job.id)
    assert {(event.queue, event.subject) for event in events} == {("letters", Subject.JOB)}
    assert [event.id for event in events] == sorted({event.id for event in events})
    assert events[4].data == {"reason": "FAILED", "error": "ValueError: no such address", "retry_in": SECOND}


def test_events_can_be_filtered(storage: Storage) -> None:
    job, other = in_state(storage, RUNNING, queue="letters"), in_state(storage, RESERVED, owner="bob")
    storage.pause("mail", by="olga")

    def told(**where: object) -> list[tuple[str | None, Kind]]:
        return [(event.job_id, event.kind) for event in storage.events(EventFilter(**where))]  # type: ignore[arg-type]

    assert told(job_id=other.id) == [(other.id, Kind.ADDED), (other.id, Kind.RESERVED)]
    assert told(kind=Kind.RESERVED) == [(job.id, Kind.RESERVED), (other.id, Kind.RESERVED)]
    both = frozenset((Kind.PAUSED, Kind.STARTED))
    assert [kind for _, kind in told(kinds=both)] == [Kind.STARTED, Kind.STARTED, Kind.STARTED, Kind.PAUSED]
    assert told(kinds=both, job_id=job.id) == [(job.id, Kind.STARTED)]
    assert told(kinds=both, subject=Subject.QUEUE) == [(None, Kind.PAUSED)]
    assert told(kinds=frozenset((Kind.DELETED, Kind.RETRIED))) == []
    assert told(queue="letters") == [(job.id, Kind.ADDED), (job.id, Kind.RESERVED), (job.id, Kind.STARTED)]
    assert told(owner="bob") == [(None, Kind.STARTED), (other.id, Kind.RESERVED)]
    assert told(subject=Subject.QUEUE) == [(None, Kind.PAUSED)]
    assert told(subject=Subject.WORKER) == [(None, Kind.STARTED), (None, Kind.STARTED)]
    assert told(job_id=job.id, kind=Kind.STARTED, owner=WORKER, subject=Subject.JOB) == [(job.id, Kind.STARTED)]
    assert told(job_id="unknown") == []


def test_events_can_be_read_from_either_end_and_continued(storage: Storage) -> None:
    storage.enqueue(new_jobs(10))
    every = storage.events(EventFilter())
    numbers = [event.id for event in every]

    assert numbers == sorted(set(numbers))
    assert storage.events(EventFilter(), newest_first=True) == every[::-1]
    assert storage.events(EventFilter(), limit=3) == every[:3]
    assert storage.events(EventFilter(), limit=3, newest_first=True) == every[:-4:-1]
    assert storage.events(EventFilter(after=numbers[2]), limit=3) == every[3:6]
    assert storage.events(EventFilter(before=numbers[6]), limit=3, newest_first=True) == every[5:2:-1]
    assert storage.events(EventFilter(after=numbers[2], before=numbers[6])) == every[3:6]


def test_the_ids_of_events_rise_also_after_the_oldest_were_pruned(storage: Storage, clock: ManualClock) -> None:
    job = add(storage)
    last = storage.events(EventFilter())[-1].id
    clock.turn("60d")
    storage.prune(Retention())

    storage.abort([job.id])

    assert [event.id > last for event in storage.events(EventFilter())] == [False, True]


# --- failures -------------------------------------------------------------------------------------------------------


def test_failures_of_one_cause_are_one_group(storage: Storage, clock: ManualClock) -> None:
    first_at = clock()
    jobs = [add(storage) for _ in range(3)]
    for number, job in enumerate(jobs):
        finish(storage, Failed(run(storage, job).token, Failure("KeyError", f"user {number} is gone", place="a.py:3")))
        clock.turn(1)
    other = add(storage, task="print")
    finish(
        storage, Failed(run(storage, other).token, Failure("KeyError", "user 7 is gone", place="a.py:3"), retry_in=1)
    )

    groups = storage.failures()

    assert [(group.task, group.number, group.last_job_id) for group in groups] == [
        ("print", 1, other.id),
        ("send", 3, jobs[-1].id),
    ]
    group = groups[1]
    assert (group.first_at, group.last_at, group.place) == (first_at, first_at + 2 * SECOND, "a.py:3")
    assert group.pattern == Failure("KeyError", "user 1 is gone").pattern()
    assert sorted(ids(find_all(storage, Filter(cause=group.cause)))) == sorted(ids(jobs))
    assert len(storage.failures(limit=1)) == 1


def test_a_cause_shows_the_line_where_it_was_last_seen(storage: Storage) -> None:
    for place in ("a.py:3", "a.py:5"):
        failure = Failure("KeyError", "gone", place=place, function="send")
        finish(storage, Failed(run(storage, add(storage)).token, failure))

    (group,) = storage.failures()

    assert (group.number, group.place) == (2, "a.py:5")


def test_a_failure_that_is_sent_again_is_counted_once(storage: Storage) -> None:
    outcome = Failed(in_state(storage, RUNNING).token, FAILURE, retry_in=HOUR)

    storage.finish([outcome])
    storage.finish([outcome])

    assert [group.number for group in storage.failures()] == [1]


def test_a_worker_that_dies_is_a_cause_too(storage: Storage) -> None:
    in_state(storage, RUNNING)

    storage.rescue_owner(WORKER, foreman=WORKER, why="killed by signal 9")

    assert [group.number for group in storage.failures()] == [1]


# --- charts ---------------------------------------------------------------------------------------------------------

COUNTS = ("added", "completed", "failed", "dead", "aborted", "halted")


def busy_minute(storage: Storage, **options: str) -> dict[str, int]:
    """Something of everything, and the counts that it should leave."""
    in_every_state(storage, **options)  # one each: retrying, completed, dead, aborted
    storage.rescue_owner(WORKER, foreman=WORKER, why="signal 9")  # the reserved one is not blamed
    return {"added": 8, "completed": 1, "failed": 2, "dead": 1, "aborted": 1, "halted": 1}  # who died failed too


def summed(points: list[Point]) -> dict[str, int]:
    return {name: sum(point.values.get(name, 0) for point in points) for name in COUNTS}


@pytest.mark.parametrize("span", Span)
def test_every_span_counts_what_happened_just_now(storage: Storage, clock: ManualClock, span: Span) -> None:
    expected = busy_minute(storage)

    points = storage.series(span)

    width = {Span.TWO_HOURS: MINUTE, Span.TWO_DAYS: HOUR, Span.NINETY_DAYS: DAY}[span]
    assert summed(points) == expected
    assert {point.at for point in points} == {clock() - clock() % width}
    assert {name: storage.totals().get(name, 0) for name in COUNTS} == expected


def test_charts_can_be_narrowed_to_a_queue_or_a_task(storage: Storage) -> None:
    storage.enqueue(new_jobs(3, queue="mail", task="send"))
    storage.enqueue(new_jobs(2, queue="mail", task="print"))
    storage.enqueue(new_jobs(1, queue="scans", task="scan"))

    def added(**where: str) -> int:
        return summed(storage.series(Span.TWO_HOURS, **where))["added"]

    assert (added(), added(queue="mail"), added(task="print"), added(queue="scans", task="send")) == (6, 5, 2, 0)
    assert {(point.queue, point.task) for point in storage.series(Span.TWO_HOURS, queue="mail")} == {
        ("mail", "send"),
        ("mail", "print"),
    }


def test_the_time_that_attempts_waited_and_ran_is_summed(storage: Storage, clock: ManualClock) -> None:
    job = add(storage)
    clock.turn(2)
    token = run(storage, job).token
    clock.turn(0.25)
    finish(storage, Completed(token, ran=250_000))

    (values,) = (point.values for point in storage.series(Span.TWO_HOURS) if point.values.get("completed"))

    assert (values["waited"], values["ran"]) == (2 * SECOND, 250_000)
    assert {name: values[name] for name in values if name.startswith(("wait_", "run_"))} == {
        "wait_2s": 1,
        "run_300ms": 1,
    }


@pytest.mark.parametrize("is_started", [True, False])
def test_attempts_are_counted_by_how_long_they_waited_and_ran(
    storage: Storage, clock: ManualClock, is_started: bool
) -> None:
    """In steps. A limit belongs to its step, and what is longer by a microsecond to the next one."""
    durations = sorted([0, *LIMITS, *(limit + 1 for limit in LIMITS)], reverse=True)
    end = clock() + durations[0]
    for duration in durations:
        clock.set(end - duration)
        storage.enqueue(new_jobs(1))
    jobs = storage.reserve(join(storage, WORKER), {"mail": 1}, len(durations))
    if is_started:
        storage.start([job.token for job in jobs])

    storage.finish([Completed(job.token, ran=end - job.created_at if is_started else 0) for job in jobs])

    totals = storage.totals()
    expected = Counter(map(step_of, durations))
    assert Counter({step: totals.get(f"wait_{step}", 0) for step in STEPS}) == expected
    ran = expected if is_started else Counter({"1ms": len(durations)})
    assert Counter({step: totals.get(f"run_{step}", 0) for step in STEPS}) == ran


def test_an_attempt_that_failed_is_counted_by_how_long_it_waited_and_ran(storage: Storage, clock: ManualClock) -> None:
    job = add(storage)
    clock.turn(7)
    finish(storage, Failed(run(storage, job).token, FAILURE, ran=3_500_000))

    assert {name: storage.totals().get(name) for name in ("wait_8s", "run_4s")} == {"wait_8s": 1, "run_4s": 1}


def test_a_snooze_counts_neither_as_completed_nor_as_failed(storage: Storage) -> None:
    finish(storage, Snoozed(in_state(storage, RUNNING).token, HOUR))

    assert summed(storage.series(Span.TWO_HOURS)) == dict.fromkeys(COUNTS, 0) | {"added": 1}


def test_a_job_that_halted_too_often_counts_as_dead_and_as_halted(storage: Storage) -> None:
    in_state(storage, RUNNING, max_halts=1)

    storage.rescue_owner(WORKER, foreman=WORKER, why="signal 9")

    assert summed(storage.series(Span.TWO_HOURS)) == dict.fromkeys(COUNTS, 0) | {"added": 1, "dead": 1, "halted": 1}


def test_a_job_comes_as_often_as_it_goes(storage: Storage) -> None:
    job = in_state(storage, DEAD)
    for _ in range(2):
        storage.retry([job.id])
        finish(storage, Failed(run(storage, job).token, FAILURE))
    storage.retry([in_state(storage, RETRYING).id, in_state(storage, ABORTED).id])
    storage.delete([in_state(storage, QUEUED).id, in_state(storage, COMPLETED).id, job.id])

    totals = storage.totals()

    assert (totals["retried"], totals["deleted"]) == (3, 1)
    left = storage.count(Filter(states=UNFINISHED)).number
    assert left == sum(totals.get(name, 0) for name in CAME) - sum(totals.get(name, 0) for name in WENT) == 2


def test_a_job_that_is_moved_goes_from_one_queue_and_comes_to_the_other(storage: Storage) -> None:
    moved = [in_state(storage, state) for state in (QUEUED, RETRYING, DEAD)]
    add(storage)
    storage.set_queue(ids(moved), "slow")
    storage.set_queue([moved[0].id], "slower")
    storage.set_queue([moved[0].id], "slower")

    left: Counter[str] = Counter()
    for point in storage.series(Span.TWO_HOURS):
        left[point.queue] += sum(point.values.get(name, 0) for name in CAME)
        left[point.queue] -= sum(point.values.get(name, 0) for name in WENT)

    assert left == {queue: storage.count(Filter(queue=queue, states=UNFINISHED)).number for queue in left}
    assert +left == {"mail": 1, "slow": 1, "slower": 1}
    assert (storage.totals()["moved_out"], storage.totals()["moved_in"]) == (3, 3)


def test_each_minute_has_its_point(storage: Storage, clock: ManualClock) -> None:
    clock.set(clock() - clock() % DAY + 12 * HOUR)
    starts = []
    for _ in range(3):
        starts.append(clock())
        add(storage)
        clock.turn(60)

    assert [point.at for point in storage.series(Span.TWO_HOURS)] == starts
    assert [point.values["added"] for point in storage.series(Span.TWO_DAYS)] == [3]


def test_minutes_fold_into_hours_and_days_and_the_totals_survive(storage: Storage, clock: ManualClock) -> None:
    clock.set(clock() - clock() % DAY + 12 * HOUR)
    expected = busy_minute(storage)
    totals = storage.totals()
    nothing = dict.fromkeys(COUNTS, 0)

    told = {}
    for passed in ("0s", "4h", "4d", "100d"):
        clock.turn(passed)
        storage.roll_up()
        storage.roll_up()
        told[passed] = [summed(storage.series(span)) for span in Span]
        assert storage.totals() == totals

    assert told == {
        "0s": [expected, expected, expected],
        "4h": [nothing, expected, expected],
        "4d": [nothing, nothing, expected],
        "100d": [nothing, nothing, nothing],
    }


def test_what_is_folded_joins_what_was_folded_before(storage: Storage, clock: ManualClock) -> None:
    clock.set(clock() - clock() % DAY)

    for number in range(48):
        storage.enqueue(new_jobs(1 if number < 8 else 0))
        clock.turn("30m")
        storage.roll_up()
    hours = [point.values["added"] for point in storage.series(Span.TWO_DAYS)]
    for _ in range(8):
        clock.turn("12h")
        storage.roll_up()

    assert hours == [2, 2, 2, 2]
    assert [point.values["added"] for point in storage.series(Span.NINETY_DAYS)] == [8]


def test_pruning_jobs_does_not_change_what_was_counted(storage: Storage) -> None:
    job = in_state(storage, COMPLETED)
    before = storage.totals()

    storage.delete([job.id])

    assert storage.totals() == before


def test_totals_of_an_empty_storage_are_nothing(storage: Storage) -> None:
    assert not any(storage.totals().values())
    assert (storage.series(Span.TWO_HOURS), storage.failures(), storage.events(EventFilter())) == ([], [], [])


def test_a_job_that_failed_and_went_straight_back_is_one_failure(storage: Storage) -> None:
    job = finish(storage, Failed(in_state(storage, RUNNING).token, FAILURE, retry_in=0))

    assert stored(storage, job.id).state is QUEUED
    assert storage.totals()["failed"] == 1
    assert [event.state for event in history(storage, job.id)][-2:] == [RETRYING, QUEUED]


def test_a_failure_is_silenced_for_a_while_and_counted_as_ever(storage: Storage, clock: ManualClock) -> None:
    finish(storage, Failed(run(storage, add(storage)).token, FAILURE))
    (group,) = storage.failures()
    assert (group.silenced_until, group.silenced_by, group.is_silenced(clock())) == (None, None, False)

    assert storage.silence_failure(group.cause, HOUR, by="anna")
    finish(storage, Failed(run(storage, add(storage)).token, FAILURE))
    (silenced,) = storage.failures()
    assert (silenced.number, silenced.silenced_by) == (2, "anna")
    assert silenced.silenced_until is not None
    assert silenced.is_silenced(silenced.silenced_until - 1)
    assert not silenced.is_silenced(silenced.silenced_until)

    assert storage.silence_failure(group.cause, None)
    (loud,) = storage.failures()
    assert (loud.silenced_until, loud.silenced_by) == (None, None)
    assert not storage.silence_failure("nothing fails so", HOUR)


def test_who_silenced_a_failure_and_for_how_long_is_an_event(storage: Storage) -> None:
    job = add(storage)
    finish(storage, Failed(run(storage, job).token, FAILURE))
    (group,) = storage.failures()
    about = EventFilter(subject=Subject.FAILURE)

    storage.silence_failure(group.cause, None, by="ann")
    storage.silence_failure("nothing fails so", HOUR, by="ann")
    assert storage.events(about) == []

    for duration, by in ((HOUR, "ann"), (2 * HOUR, "bob"), (None, "eve"), (None, "eve"), (HOUR, None)):
        storage.silence_failure(group.cause, duration, by=by)

    events = storage.events(about)
    assert {(event.queue, event.job_id, event.owner) for event in events} == {(group.cause, None, None)}
    assert [(event.kind, event.data) for event in events] == [
        (Kind.SILENCED, {"task": job.task, "duration": HOUR, "by": "ann"}),
        (Kind.SILENCED, {"task": job.task, "duration": 2 * HOUR, "by": "bob"}),
        (Kind.UNSILENCED, {"task": job.task, "by": "eve"}),
        (Kind.SILENCED, {"task": job.task, "duration": HOUR}),
    ]


# --- versions of the code -------------------------------------------------------------------------------------------


def fail(storage: Storage, version: str | None = None, *, task: str = "send") -> FailureGroup:
    """One more failure, of this version; its group."""
    job = finish(storage, Failed(run(storage, add(storage, task=task)).token, replace(FAILURE, version=version)))
    (group,) = [group for group in storage.failures() if group.cause == job.cause]
    return group


def test_a_failure_tells_with_which_versions_it_was_first_and_last_seen(storage: Storage) -> None:
    told = [fail(storage, version) for version in ("v1", "v1", "v2", None)]

    assert len({group.cause for group in told}) == 1
    assert [group.first_version for group in told] == ["v1"] * 4
    assert [group.last_version for group in told] == ["v1", "v1", "v2", "v2"]


def test_a_cause_that_was_first_seen_without_a_version_has_no_first_one(storage: Storage) -> None:
    fail(storage)
    group = fail(storage, "v1")

    assert (group.first_version, group.last_version, group.number) == (None, "v1", 2)


def test_a_halt_tells_the_version_too(storage: Storage) -> None:
    finish(storage, Halted(run(storage, add(storage)).token, "signal 9", version="v1"))

    (group,) = storage.failures()
    assert (group.first_version, group.last_version) == ("v1", "v1")


def test_the_event_of_a_failed_attempt_has_its_version(storage: Storage) -> None:
    job = add(storage)
    for version, wait in (("v1", 0), (None, 0), ("v2", None)):
        finish(storage, Failed(run(storage, job).token, replace(FAILURE, version=version), retry_in=wait))

    told = [event.data or {} for event in history(storage, job.id) if event.kind in (Kind.FAILED, Kind.BROKEN)]
    assert [facts.get("version") for facts in told] == ["v1", None, "v2"]


def test_a_silence_until_the_next_version_ends_with_its_first_failure(storage: Storage, clock: ManualClock) -> None:
    cause = fail(storage, "v1").cause

    assert storage.silence_failure(cause, None, version="v1", by="anna")
    group = fail(storage, "v1")
    assert (group.silenced_version, group.silenced_until, group.silenced_by) == ("v1", None, "anna")
    assert group.is_silenced(clock() + 1_000 * DAY)
    assert fail(storage).is_silenced(clock())  # it tells no version

    loud = [fail(storage, version) for version in ("v2", "v1")]
    for group in loud:
        assert not group.is_silenced(clock())
        assert (group.silenced_version, group.silenced_until, group.silenced_by) == (None, None, None)


def test_a_silence_may_end_with_the_next_version_or_with_its_time(storage: Storage, clock: ManualClock) -> None:
    cause = fail(storage, "v1").cause

    storage.silence_failure(cause, HOUR, version="v1")
    assert fail(storage, "v1").is_silenced(clock())
    clock.turn("2h")
    assert not fail(storage, "v1").is_silenced(clock())

    storage.silence_failure(cause, HOUR, version="v1")
    assert not fail(storage, "v2").is_silenced(clock())


def test_a_silence_for_a_while_outlasts_a_version(storage: Storage, clock: ManualClock) -> None:
    storage.silence_failure(fail(storage, "v1").cause, HOUR)

    assert fail(storage, "v2").is_silenced(clock())


def test_a_silence_until_the_next_version_is_taken_back(storage: Storage, clock: ManualClock) -> None:
    cause = fail(storage, "v1").cause
    storage.silence_failure(cause, None, version="v1", by="ann")

    assert storage.silence_failure(cause, None, by="eve")

    assert not fail(storage, "v1").is_silenced(clock())
    assert [(event.kind, event.data) for event in storage.events(EventFilter(subject=Subject.FAILURE))] == [
        (Kind.SILENCED, {"task": "send", "version": "v1", "by": "ann"}),
        (Kind.UNSILENCED, {"task": "send", "by": "eve"}),
    ]


def test_failures_of_a_cause_are_counted_over_time(storage: Storage, clock: ManualClock) -> None:
    clock.set(clock() - clock() % DAY + 12 * HOUR)
    start = clock()
    for task, number in (("send", 2), ("resize", 1)):
        for _ in range(number):
            fail(storage, task=task)
        clock.turn("1m")

    def told(span: Span) -> dict[str, dict[int, int]]:
        return {group.task: group.counts for group in storage.failures(span=span)}

    assert told(Span.TWO_HOURS) == {"send": {start: 2}, "resize": {start + MINUTE: 1}}
    assert told(Span.TWO_DAYS) == {"send": {start: 2}, "resize": {start: 1}}
    assert told(Span.NINETY_DAYS) == {task: {start - 12 * HOUR: count} for task, count in (("send", 2), ("resize", 1))}
    assert [group.counts for group in storage.failures()] == [{}, {}]


def test_counts_of_causes_fold_and_go_and_are_no_part_of_the_charts(storage: Storage, clock: ManualClock) -> None:
    clock.set(clock() - clock() % DAY + 12 * HOUR)
    fail(storage)
    totals, queues = storage.totals(), storage.queues()

    told = []
    for passed in ("0s", "4h", "4d", "100d"):
        clock.turn(passed)
        storage.roll_up()
        storage.roll_up()
        told.append([sum(group.counts.values()) for span in Span for group in storage.failures(span=span)])
        assert storage.totals() == totals

    assert told == [[1, 1, 1], [0, 1, 1], [0, 0, 1], [0, 0, 0]]
    assert totals.keys().isdisjoint({"caused"})
    assert [queue.name for queue in storage.queues()] == [queue.name for queue in queues] == ["mail"]
    counted = {row.counted for row in all_rows(storage, Section.MEASURES)}
    assert "failed" in counted
    assert "caused" not in counted


def all_rows(storage: Storage, section: Section) -> list[Any]:
    """All rows of a section."""
    page = storage.dump(section)
    rows = list(page.rows)
    while page.next is not None:
        page = storage.dump(section, cursor=page.next)
        rows += page.rows
    return rows


def reserved(storage: Storage, number: int, owner: str = WORKER) -> list[Job]:
    """So many jobs, enqueued and reserved in one call each."""
    join(storage, owner)
    new = new_jobs(number)
    storage.enqueue(new)
    return storage.reserve(owner, {new[0].queue: 1}, number)


def test_the_chart_shows_how_long_a_job_ran_not_how_late_it_was_told(storage: Storage, clock: ManualClock) -> None:
    job = take(storage, add(storage))
    clock.turn(300)

    finish(storage, Completed(job.token, "1", ran=1_000, ago=299 * SECOND))

    assert sum(point.values.get("ran", 0) for point in storage.series(Span.TWO_HOURS)) == 1_000


def test_causes_of_long_ago_are_forgotten(storage: Storage, clock: ManualClock) -> None:
    finish(storage, Failed(in_state(storage, RUNNING).token, FAILURE))
    clock.turn("40d")

    storage.prune(Retention(events=30 * DAY))

    assert storage.failures() == []


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
