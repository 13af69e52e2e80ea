"""Moving into Redis: every key is as if the jobs had lived here from the beginning."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from packhorse.conformance.builders import new_job
from packhorse.conformance.sample_data import fill, read_everything
from packhorse.core.clock import DAY, ManualClock
from packhorse.core.errors import StorageFull
from packhorse.core.job import NewJob
from packhorse.storage import open_storage
from packhorse.storage.copy_store import End, copy_storage
from packhorse.storage.records import EventFilter, Placement, Pruned, Retention
from packhorse.storage.redis import Redis
from packhorse.storage.redis.address import Address
from packhorse.storage.transfer import Move, Stage
from tests.redis_server import RedisServer, fresh_url
from tests.storage.redis.audit import audit

MARK = Move("copy", Stage.CLOSING, "sqlite://elsewhere", 1)
FOR_LONG = Retention(*[1_000 * DAY] * 5)


def test_every_key_agrees_after_a_move_and_after_all_is_pruned() -> None:
    clock = ManualClock()
    source = open_storage("memory://", now=clock)
    fill(source, clock)
    storage = Redis.from_url(fresh_url(), now=clock)
    copy_storage(End(source, "there"), End(storage, "here"), patience=0)

    audit(storage)
    clock.turn(1)
    while storage.prune(Retention(0, 0, 0, 0, 0)).more:
        audit(storage)
    storage.prune(Retention(0, 0, 0, 0, 0))

    audit(storage)
    assert len(storage.events(EventFilter())) <= 1
    storage.close()


def test_a_gap_in_the_numbers_of_events_does_not_keep_the_older_ones_alive() -> None:
    clock = ManualClock()
    source = open_storage("memory://", now=clock)
    fill(source, clock)
    events = source._tables.events  # type: ignore[attr-defined]
    for number in [number for number in events if number % 7 == 0 or 40 < number < 60]:
        del events[number]
    storage = Redis.from_url(fresh_url(), now=clock)
    copy_storage(End(source, "there"), End(storage, "here"), patience=0)
    clock.turn(1)

    while storage.prune(Retention(events=0)).more:
        pass
    storage.prune(Retention(events=0))  # the events of the first prune

    (entries, holes) = storage._server.send("test", ("XLEN", storage._keys.events), ("ZCARD", storage._keys.holes))
    assert (entries, holes) == (1, 0)
    storage.close()


def test_events_whose_ids_have_gaps_are_counted_one_by_one() -> None:
    """As they come from PostgreSQL, whose numbers rise by a thousand."""
    clock = ManualClock()
    source = open_storage("memory://", now=clock)
    fill(source, clock)
    tables = source._tables  # type: ignore[attr-defined]
    tables.events = {1_000 * number: replace(event, id=1_000 * number) for number, event in tables.events.items()}
    found = source.events(EventFilter(), limit=10_000)
    address = Address.parse(fresh_url())
    storage = Redis(address._replace(events=len(found) - 1), now=clock)
    copy_storage(End(source, "there"), End(storage, "here"), patience=0)
    (holes,) = storage._server.send("test", ("ZCARD", storage._keys.holes))
    assert holes == 0

    assert storage.prune(FOR_LONG).events == 1
    assert storage.prune(FOR_LONG, at=clock()).events == 0
    assert storage.events(EventFilter(), limit=10_000) == found[1:]
    storage.enqueue([NewJob(f"new {number}", "mail", "mail") for number in range(7)])
    assert storage.prune(FOR_LONG, at=clock(), limit=5) == Pruned(events=5, more=True)
    assert storage.prune(FOR_LONG, at=clock(), limit=5) == Pruned(events=2)

    left = storage.events(EventFilter(), limit=10_000)
    assert left[:-7] == found[8:]
    assert storage.events(EventFilter(after=found[20].id), limit=5) == found[21:26]
    job_id = left[0].job_id
    assert storage.events(EventFilter(job_id=job_id)) == [event for event in left if event.job_id == job_id]
    clock.turn(1)
    storage.prune(Retention(events=0))
    assert storage._server.send("test", ("GET", storage._keys.unused)) == [None]
    audit(storage)
    storage.close()


def test_a_full_server_stops_the_copy_and_it_continues_when_there_is_room(own_server: RedisServer) -> None:
    clock = ManualClock()
    source = open_storage("memory://", now=clock)
    fill(source, clock)
    before = read_everything(source)
    storage = Redis.from_url(f"{own_server.url}?patience=100ms", now=clock)
    storage.tallies()
    own_server.command("CONFIG", "SET", "maxmemory", str(int(own_server.info("used_memory")) + 150_000))

    with pytest.raises(StorageFull):
        copy_storage(End(source, "there"), End(storage, "here"), patience=0)
    own_server.command("CONFIG", "SET", "maxmemory", "0")
    copy_storage(End(source, "there"), End(storage, "here"), patience=0)

    assert read_everything(storage) == before
    audit(storage)
    storage.close()


@pytest.mark.parametrize("number", [1, 3])
def test_a_job_that_came_just_when_the_storage_was_opened_again_is_stored(
    monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    url = fresh_url()
    storage, mover = Redis.from_url(url), Redis.from_url(url)
    mover.set_move(MARK, expected=None)
    run = storage._server.run

    def run_and_open(*words: Any) -> Any:
        answer = run(*words)
        if mover.move() is not None:
            assert answer is None, "it was refused"
            mover.set_move(None, expected=MARK)
        return answer

    monkeypatch.setattr(storage._server, "run", run_and_open)
    jobs = [new_job() for _ in range(number)]

    assert {one.placement for one in storage.enqueue(jobs)} == {Placement.ADDED}

    assert len(storage.get_many([job.id for job in jobs])) == number
    storage.close()
    mover.close()
