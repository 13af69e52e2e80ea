"""Programs of an earlier version beside this one: they know of no ends of pauses, not every kind of event, and do not
write how long a job ran."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from packhorse.conformance.builders import FAILURE, add, finish, run, stored
from packhorse.core.clock import HOUR, MINUTE, SECOND, ManualClock
from packhorse.core.event import Event, Kind, Subject, kind_of
from packhorse.core.job import COMPLETED, Job
from packhorse.core.outcome import Failed
from packhorse.core.transitions import Transition
from packhorse.storage.records import Count, EventFilter, Filter
from packhorse.storage.redis import Redis
from packhorse.storage.redis.keys import PAUSED
from packhorse.storage.transfer import Section
from tests.storage.conftest import chosen_storages

SHARED = [name for name in chosen_storages() if name != "memory"]  # there is but one program in a process

pytestmark = pytest.mark.parametrize("address", SHARED, indirect=True)


def put_pause(storage: Any, queue: str, at: int | None) -> None:
    """What an earlier version writes when it pauses a queue that it knows, or resumes it."""
    if isinstance(storage, Redis):
        keys = storage._keys

        def work(tx: Any) -> None:
            tx.do("HSET", keys.queues, queue, "" if at is None else msgspec.json.encode([at, None, "for good"]))
            tx.do("HINCRBY", keys.open, queue, -PAUSED if at is None else PAUSED)

        storage._write("pause", work)
        return
    dialect, why = storage._dialect, None if at is None else "for good"
    sql = f"UPDATE {dialect.prefix}queue SET paused_at = ?, paused_by = NULL, paused_why = ? WHERE name = ?"
    storage._write("pause", lambda tx: tx.execute(dialect.say(sql), (at, why, queue)))


def test_the_end_of_a_pause_goes_with_it_also_if_another_version_has_resumed(storage: Any, clock: ManualClock) -> None:
    storage.pause("mail", duration=MINUTE)
    put_pause(storage, "mail", None)
    clock.turn("2m")

    (queue,) = storage.queues()
    assert (queue.is_paused, queue.paused_until, queue.is_over(clock())) == (False, None, False)
    assert storage.poll("foreman", []).resumes_in is None
    assert not storage.resume("mail", over=True)


def test_the_pause_of_another_version_has_not_the_end_of_an_earlier_one(storage: Any, clock: ManualClock) -> None:
    storage.pause("mail", duration=HOUR)
    clock.turn("1m")
    put_pause(storage, "mail", None)
    put_pause(storage, "mail", clock())

    (queue,) = storage.queues()
    assert (queue.paused_at, queue.paused_why, queue.paused_until) == (clock(), "for good", None)
    assert [each.paused_until for each in storage.dump(Section.QUEUES).rows] == [None]
    assert storage.poll("foreman", []).resumes_in is None
    clock.turn("2h")
    assert not storage.resume("mail", over=True)
    assert storage.resume("mail")


def test_a_pause_after_those_of_another_version_has_its_own_end(storage: Any, clock: ManualClock) -> None:
    storage.pause("mail", duration=HOUR)
    put_pause(storage, "mail", None)
    clock.turn("1m")

    storage.pause("mail", duration=MINUTE)

    assert storage.poll("foreman", []).resumes_in == MINUTE
    assert [each.paused_until for each in storage.dump(Section.QUEUES).rows] == [clock() + MINUTE]
    clock.turn("1m")
    assert storage.resume("mail", over=True)


def test_an_event_of_a_kind_that_only_newer_programs_know_is_told_as_it_is(storage: Any) -> None:
    storage.pause("mail")
    storage._write("test", lambda tx: tx.record([Event(kind_of("dreamt_of"), tx.now, Subject.QUEUE, queue="mail")]))
    storage.resume("mail")

    events = storage.events(EventFilter(queue="mail"))

    assert [event.kind for event in events] == [Kind.PAUSED, "dreamt_of", Kind.RESUMED]
    assert [event.kind in Kind.__members__.values() for event in events] == [True, False, True]
    assert msgspec.to_builtins(events[1])["kind"] == f"{events[1].kind}" == "dreamt_of"
    assert b'"dreamt_of"' in msgspec.json.encode(events[1])


def test_an_attempt_that_another_version_ended_has_not_the_measure_of_one_before(
    storage: Any, clock: ManualClock
) -> None:
    job = finish(storage, Failed(run(storage, add(storage)).token, FAILURE, retry_in=0, ran=SECOND))
    clock.turn("1m")
    job = run(storage, job)
    clock.turn("9s")

    end_as_before(storage, job, clock())

    ended = stored(storage, job.id)
    assert (ended.state, ended.ran, ended.took(None)) == (COMPLETED, None, 9 * SECOND)
    assert storage.count(Filter(min_took=9 * SECOND, max_took=9 * SECOND)) == Count(1)


def end_as_before(storage: Any, job: Job, now: int) -> None:
    """What an earlier version writes of a job that has ended: all that it knows of it."""
    ended = replace(job, state=COMPLETED, owner=None, last_owner=job.owner, finished_at=now, updated_at=now)
    assert ended.ran_until is not None
    if isinstance(storage, Redis):
        storage._write("finish", lambda tx: tx.jobs([job.id]) and tx.keep(job, Transition(ended, [])))
        return
    storage._write("finish", lambda tx: tx.keep(job, Transition(ended, [])))


def test_a_failure_that_another_version_counts_leaves_versions_and_silence_as_they_are(storage: Any) -> None:
    finish(storage, Failed(run(storage, add(storage)).token, replace(FAILURE, version="v1")))
    (group,) = storage.failures()
    storage.silence_failure(group.cause, None, version="v1", by="ann")

    count_as_before(storage, group.cause)

    (told,) = storage.failures()
    assert (told.number, told.first_version, told.last_version) == (2, "v1", "v1")
    assert (told.silenced_version, told.silenced_by) == ("v1", "ann")


def count_as_before(storage: Any, cause: str) -> None:
    """What an earlier version writes when it counts one more failure of a cause."""
    if isinstance(storage, Redis):
        storage._write("finish", lambda tx: tx.do("HINCRBY", storage._keys.failure(cause), "number", 1))
        return
    dialect = storage._dialect
    sql = f"UPDATE {dialect.prefix}failure SET number = number + 1, place = NULL WHERE cause = ?"
    storage._write("finish", lambda tx: tx.execute(dialect.say(sql), (cause,)))
