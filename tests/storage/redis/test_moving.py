"""Moving into Redis: every key is as if the jobs had lived here from the beginning."""

from __future__ import annotations

import pytest

from packhorse.clock import TurnedClock
from packhorse.copying import End, copy_storage
from packhorse.errors import StorageFull
from packhorse.storage import open_storage
from packhorse.storage.records import EventFilter, Retention
from packhorse.storage.redis import Redis
from tests.redis_server import RedisServer, fresh_url
from tests.storage.estate import everything, furnish
from tests.storage.redis.audit import audit


def test_every_key_agrees_after_a_move_and_after_all_is_pruned() -> None:
    clock = TurnedClock()
    source = open_storage("memory://", now=clock)
    furnish(source, clock)
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
    clock = TurnedClock()
    source = open_storage("memory://", now=clock)
    furnish(source, clock)
    source._events = [event for event in source._events if event.id % 7 and not 40 < event.id < 60]  # type: ignore[attr-defined]
    storage = Redis.from_url(fresh_url(), now=clock)
    copy_storage(End(source, "there"), End(storage, "here"), patience=0)
    clock.turn(1)

    while storage.prune(Retention(events=0)).more:
        pass
    storage.prune(Retention(events=0))  # what the first one has told of

    (entries, holes) = storage._server.ask("test", ("XLEN", storage._keys.events), ("ZCARD", storage._keys.holes))
    assert (entries, holes) == (1, 0)
    storage.close()


def test_a_full_server_stops_the_copy_and_it_goes_on_when_there_is_room(own_server: RedisServer) -> None:
    clock = TurnedClock()
    source = open_storage("memory://", now=clock)
    furnish(source, clock)
    before = everything(source)
    storage = Redis.from_url(f"{own_server.url}?patience=100ms", now=clock)
    storage.tallies()
    own_server.command("CONFIG", "SET", "maxmemory", str(int(own_server.info("used_memory")) + 150_000))

    with pytest.raises(StorageFull):
        copy_storage(End(source, "there"), End(storage, "here"), patience=0)
    own_server.command("CONFIG", "SET", "maxmemory", "0")
    copy_storage(End(source, "there"), End(storage, "here"), patience=0)

    assert everything(storage) == before
    audit(storage)
    storage.close()
