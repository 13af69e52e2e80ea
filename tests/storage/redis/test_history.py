"""Records: what is read in parts is read whole, whatever lies where the parts meet."""

from __future__ import annotations

import contextlib
from typing import Any

import msgspec
import pytest

from packhorse.conformance.builders import add, finish, history, join, kinds, new_job, new_jobs, run, take, unique
from packhorse.core.clock import DAY, HOUR, MINUTE, ManualClock
from packhorse.core.event import Kind, Subject
from packhorse.core.metrics import LEVELS
from packhorse.core.outcome import Completed, Failed, Failure, Snoozed
from packhorse.storage.engine.history import record_about
from packhorse.storage.records import EventFilter, LogLine, Pruned, Retention, Span
from packhorse.storage.redis import Redis, pruner
from packhorse.storage.redis import history as redis_history
from packhorse.storage.redis.address import Address
from tests.redis_server import fresh_url
from tests.storage.redis.audit import audit


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def storage(clock: ManualClock) -> Redis:
    return Redis.from_url(fresh_url(), now=clock)


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything is read in parts of three or four."""
    monkeypatch.setattr(redis_history, "_FEWEST_ENTRIES", 3)
    monkeypatch.setattr(redis_history, "_MOST_ENTRIES", 4)
    monkeypatch.setattr(redis_history, "_LINES_AT_ONCE", 3)
    for module in (redis_history, pruner):
        monkeypatch.setattr(module, "_FAILURES_AT_ONCE", 3)
        monkeypatch.setattr(module, "_BUCKETS_AT_ONCE", 3)


# --- events ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def busy(storage: Redis, short: None) -> Redis:
    """Entries with many events, and with one, of jobs and of others."""
    join(storage)
    for number in range(4):
        storage.enqueue(new_jobs(70))
        storage.finish([Completed(job.token) for job in storage.reserve("ann", {"mail": 1}, 60)])
        storage.pause(f"queue {number}")
        add(storage, queue="letters")
    return storage


def test_events_are_read_completely_from_every_place_in_either_direction(busy: Redis) -> None:
    every = busy.events(EventFilter(), limit=10_000)
    numbers = [event.id for event in every]

    assert numbers == list(range(1, len(every) + 1))
    assert busy.events(EventFilter(), limit=10_000, newest_first=True) == every[::-1]
    for place in (0, 1, 49, 50, 51, 70, 71, 200, len(every) - 1, len(every), len(every) + 5):
        assert busy.events(EventFilter(after=place), limit=10_000) == every[place:]
        before = every[: max(0, place - 1)]
        assert busy.events(EventFilter(before=place), limit=10_000, newest_first=True) == before[::-1]
        assert busy.events(EventFilter(after=place, before=place + 60)) == every[place : place + 59]


@pytest.mark.parametrize("newest_first", [False, True])
@pytest.mark.parametrize(
    "where",
    [
        EventFilter(subject=Subject.QUEUE),
        EventFilter(kind=Kind.COMPLETED),
        EventFilter(queue="letters"),
        EventFilter(owner="ann", kind=Kind.RESERVED),
        EventFilter(subject=Subject.JOB, kind=Kind.ADDED, queue="letters"),
        EventFilter(subject=Subject.QUEUE, after=100, before=600),
        EventFilter(kind=Kind.DIED),
    ],
)
def test_a_filter_leaves_out_only_what_does_not_fit(busy: Redis, where: EventFilter, newest_first: bool) -> None:
    every = busy.events(EventFilter(), limit=10_000, newest_first=newest_first)
    expected = [event for event in every if where.matches(event)]

    assert busy.events(where, limit=10_000, newest_first=newest_first) == expected
    assert busy.events(where, limit=2, newest_first=newest_first) == expected[:2]
    assert busy.events(where, limit=0, newest_first=newest_first) == []


def test_a_job_with_a_long_history_has_all_of_its_events(storage: Redis, clock: ManualClock, short: None) -> None:
    job = add(storage)
    for _ in range(60):
        finish(storage, Snoozed(run(storage, job).token, 1))
        clock.turn("1s")
        storage.promote()

    expected = [Kind.ADDED, *[Kind.RESERVED, Kind.STARTED, Kind.SNOOZED, Kind.QUEUED] * 60]
    assert kinds(storage, job.id) == expected
    found = history(storage, job.id)
    for place in (0, 1, 31, 32, 33, 100, 239, 240):
        after = EventFilter(job_id=job.id, after=found[place].id)
        before = EventFilter(job_id=job.id, before=found[place].id)
        assert storage.events(after, limit=1_000) == found[place + 1 :]
        assert storage.events(before, limit=1_000, newest_first=True) == found[:place][::-1]


def test_a_deleted_job_keeps_its_events_and_a_new_job_with_its_id_adds_to_them(storage: Redis, short: None) -> None:
    for _ in range(5):
        job = add(storage, "phoenix")
        finish(storage, Completed(take(storage, job).token))
        storage.delete(["phoenix"])

    life = [Kind.ADDED, Kind.RESERVED, Kind.STARTED, Kind.COMPLETED, Kind.DELETED]
    assert kinds(storage, "phoenix") == life * 5


def test_pruned_events_are_in_no_query(storage: Redis, clock: ManualClock, short: None) -> None:
    old = add(storage, "old")
    storage.pause("mail")
    clock.turn("2h")
    young = add(storage, "young")
    clock.turn("1s")
    keep = Retention(events=HOUR)

    while storage.prune(keep, limit=1).more:
        pass

    assert [event.job_id for event in storage.events(EventFilter())] == ["young"]
    assert storage.events(EventFilter(after=0, before=100), newest_first=True)[0].job_id == young.id
    assert kinds(storage, old.id) == []
    assert storage.events(EventFilter(subject=Subject.QUEUE)) == []
    assert kinds(storage, "young") == [Kind.ADDED]


def test_no_more_replaced_calls_are_remembered_than_events(url: str) -> None:
    with contextlib.closing(Redis(Address.parse(url)._replace(events=2))) as storage:
        holder = add(storage, unique=unique())
        twins = [new_job(f"twin {number}", unique=unique(on_conflict="replace")) for number in range(5)]
        for twin in twins:
            storage.enqueue([twin])
        storage.delete([holder.id])

        storage.prune(Retention())

        assert [one.job_id for one in storage.enqueue(twins[3:])] == [holder.id] * 2
        assert storage.enqueue(twins[2:3])[0].is_new
        audit(storage)


@pytest.mark.parametrize("subject", [subject for subject in Subject if subject is not Subject.JOB])
def test_pruned_events_are_gone_from_the_index_of_their_subject(
    storage: Redis, clock: ManualClock, subject: Subject
) -> None:
    storage._write("test", lambda tx: record_about(tx, subject, Kind.ORDERED, owner="ann", queue="mail"))
    index = ("ZCARD", storage._keys.about(subject.value))
    assert storage._server.send("test", index) == [1]
    clock.turn(DAY)
    add(storage)

    storage.prune(Retention(events=HOUR))

    assert storage._server.send("test", index) == [0]


def test_two_concurrent_prunes_leave_as_many_events_as_may_be_kept(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    address = Address.parse(url)._replace(events=6)
    with contextlib.closing(Redis(address)) as storage, contextlib.closing(Redis(address)) as other:
        for _ in range(10):
            add(storage)
        look = storage._pruner._oldest_events

        def late(floor: int, number: int) -> Any:
            other.prune(Retention())
            return look(floor, number)

        monkeypatch.setattr(storage._pruner, "_oldest_events", late)

        assert storage.prune(Retention()) == Pruned(more=True)
        assert [event.id for event in storage.events(EventFilter())] == [5, 6, 7, 8, 9, 10]
        assert storage.prune(Retention()) == Pruned()


# --- log lines ------------------------------------------------------------------------------------------------------


def test_a_log_is_read_completely_and_from_every_line(storage: Redis, short: None) -> None:
    token = run(storage, add(storage)).token
    for number in range(5):
        storage.append_log(token, [LogLine(f"{number} {line}") for line in range(4)])
        storage.append_log(run(storage, add(storage)).token, [LogLine("of another")])

    log = storage.log_lines(token.job_id)

    assert [line.message for line in log] == [f"{number} {line}" for number in range(5) for line in range(4)]
    for place, line in enumerate(log):
        assert storage.log_lines(token.job_id, after=line.id) == log[place + 1 :]
    assert storage.log_lines(token.job_id, limit=7) == log[:7]
    assert storage.log_lines(token.job_id, after=log[2].id, limit=4) == log[3:7]
    assert storage.log_lines(token.job_id, after=log[-1].id + 1_000) == []


# --- failures and charts ----------------------------------------------------------------------------------------------


def test_failures_are_read_and_pruned_completely(storage: Redis, clock: ManualClock, short: None) -> None:
    for letter in "ABCDEFGHIJ":
        finish(storage, Failed(run(storage, add(storage)).token, Failure(letter, "")))
        clock.turn("1m")

    assert [group.pattern for group in storage.failures()] == list("JIHGFEDCBA")
    assert len(storage.failures(limit=7)) == 7
    clock.turn("1h")
    storage.prune(Retention(events=HOUR + 4 * MINUTE))
    assert [group.pattern for group in storage.failures()] == list("JIH")


def test_a_chart_is_complete_even_without_a_roll_up_for_days(storage: Redis, clock: ManualClock, short: None) -> None:
    clock.set(clock() - clock() % DAY)
    for _ in range(40):
        storage.enqueue(new_jobs(2))
        clock.turn("30m")

    found = [[sum(point.values["added"] for point in storage.series(span)) for span in Span]]
    storage.roll_up()
    found.append([sum(point.values["added"] for point in storage.series(span)) for span in Span])
    clock.turn("200d")
    storage.roll_up()

    assert found == [[8, 80, 80], [8, 80, 80]]
    assert storage.totals() == {"added": 80}
    assert storage.series(Span.NINETY_DAYS) == []
    buckets = [storage._keys.measures(level.name) for level in LEVELS]
    assert storage._server.send("test", *(("ZCARD", key) for key in buckets)) == [0, 0, 0, 1]


def test_a_pause_with_an_end_looks_to_older_programs_like_any(storage: Redis, clock: ManualClock) -> None:
    storage.pause("mail", by="olga", why="a storm", duration=HOUR)

    (packed,) = storage._server.send("test", ("HGET", storage._keys.queues, "mail"))

    assert msgspec.json.decode(packed) == [clock(), "olga", "a storm"]
