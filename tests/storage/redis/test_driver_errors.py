"""A server that dies, freezes or is full: what is lost, which errors callers get, and that workers continue."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from packhorse.conformance.builders import (
    FAILURE,
    WORKER,
    add,
    find_all,
    ids,
    join,
    new_job,
    new_jobs,
    recount,
    stored,
    tallies,
)
from packhorse.core.errors import StorageFull, StorageUnavailable, WorkerNotFound
from packhorse.core.job import COMPLETED, QUEUED, RESERVED
from packhorse.core.outcome import Completed, Failed, Verdict
from packhorse.storage.records import CheckIn, EventFilter, Filter, LogLine, Retention
from packhorse.storage.redis import Redis
from tests.children import ROOT, until
from tests.redis_server import RedisServer, redis_server, shared_server
from tests.storage.invariants import check_history
from tests.storage.redis.load import load_on, stored_ids

QUEUES = {"mail": 1}


def opened(server: RedisServer, query: str = "patience=60s") -> Redis:
    return Redis.from_url(f"{server.url}?{query}")


# --- the server dies and comes back ---------------------------------------------------------------------------------


def test_a_killed_server_with_an_append_only_file_loses_nothing_that_was_acknowledged(tmp_path: Path):
    # With `everysec` a write may wait in the server's own memory while the disk is busy, for up to two seconds.
    options = ("--appendonly", "yes", "--appendfsync", "always")
    with redis_server(tmp_path, *options) as own, load_on(f"{own.url}?patience=60s") as load:
        for _ in range(3):
            load.until_acknowledged(300)
            own.kill()
            own.start()
        load.until_acknowledged(300)
        load.drain()

        there = stored_ids(load.storage)
        assert load.acknowledged <= there
        assert there <= load.acknowledged | load.unsure
        completed = find_all(load.storage, Filter(states=frozenset({COMPLETED})), limit=1_000)
        assert {job.id for job in completed} == there
        assert max(load.accepted.values()) == 1
        assert load.rejoined == 0
        assert tallies(load.storage) == recount(load.storage)
        for job in completed[:200]:
            check_history(job, load.storage.events(EventFilter(job_id=job.id)))
        load.storage.close()


def test_without_persistence_a_killed_server_loses_all_jobs_and_workers_continue_with_new_ones(
    own_server: RedisServer,
):
    with load_on(f"{own_server.url}?patience=60s") as load:
        load.until_acknowledged(300)
        own_server.kill()
        until(lambda: load.storage._server.losses >= 10, "every thread misses the server")
        before = set(load.acknowledged)
        own_server.start()
        load.until_acknowledged(300)
        load.drain()

        there = stored_ids(load.storage)
        # At the moment of the death an enqueueing may have been under way, and was repeated into the empty server.
        assert len(before & there) <= 10
        assert load.acknowledged - before <= there
        assert load.rejoined == 2
        assert tallies(load.storage) == recount(load.storage)
        load.storage.close()


def test_with_snapshots_only_a_killed_server_goes_back_to_the_last_one(own_server: RedisServer):
    own_server.command("CONFIG", "SET", "save", "3600 1000000")
    storage = opened(own_server)
    join(storage)
    storage.enqueue([new_job("waiting"), new_job("ended")])
    (held,) = storage.reserve(WORKER, QUEUES, 1)
    own_server.command("SAVE")
    storage.enqueue([new_job("late")])
    assert storage.finish([Completed(held.token, ran=1)]) == [Verdict.ACCEPTED]
    own_server.kill()
    own_server.start()

    assert storage.get("late") is None
    assert {job.id: job.state for job in find_all(storage)} == {held.id: RESERVED, "ended": QUEUED}
    assert storage.finish([Completed(held.token, ran=1)]) == [Verdict.ACCEPTED]
    storage.close()


def test_a_worker_that_an_empty_server_does_not_know_gets_an_error(own_server: RedisServer):
    storage = opened(own_server)
    join(storage)
    add(storage, "lost")
    (held,) = storage.reserve(WORKER, QUEUES, 1)
    own_server.kill()
    own_server.start()

    assert storage.finish([Completed(held.token)]) == [Verdict.STALE]
    assert storage.heartbeat({WORKER: {}}).unknown == [WORKER]
    with pytest.raises(WorkerNotFound):
        storage.reserve(WORKER, QUEUES, 1)
    storage.close()


def test_a_server_that_loads_its_data_is_waited_for(tmp_path: Path):
    with redis_server(tmp_path, "--appendonly", "yes", "--appendfsync", "always", "--key-load-delay", "500") as own:
        storage = opened(own)
        for _ in range(5):
            storage.enqueue(new_jobs(200))
        own.kill()
        own.start(wait=False)

        assert storage.count(Filter(states=frozenset({QUEUED}))).number == 1_000
        storage.close()


# --- full memory ----------------------------------------------------------------------------------------------------


@pytest.fixture
def full(own_server: RedisServer) -> Iterator[Redis]:
    """A storage whose server has no memory left, while a worker holds three jobs."""
    storage = opened(own_server)
    join(storage)
    storage.enqueue(new_jobs(10))
    storage.reserve(WORKER, QUEUES, 3)
    own_server.command("CONFIG", "SET", "maxmemory", "1")
    yield storage
    storage.close()


def held(storage: Redis) -> list[Completed]:
    return [Completed(job.token, result='"done"', ran=1) for job in find_all(storage, Filter(owner=WORKER))]


def test_a_full_server_refuses_new_jobs_and_stores_none_of_them(full: Redis):
    before = find_all(full)

    with pytest.raises(StorageFull, match="stored jobs are safe"):
        full.enqueue(new_jobs(5))

    assert find_all(full) == before
    assert tallies(full) == recount(full)


def test_a_full_server_still_takes_outcomes(full: Redis):
    first, second, third = held(full)

    assert full.finish([first]) == [Verdict.ACCEPTED]
    assert full.finish([Failed(second.token, FAILURE)]) == [Verdict.ACCEPTED]
    assert full.release([third.token], "stopping") == [Verdict.ACCEPTED]
    assert tallies(full) == recount(full)


def test_a_full_server_still_takes_signs_of_life(full: Redis):
    token = held(full)[0].token

    assert full.heartbeat({WORKER: {}}).unknown == []
    assert full.start([token]) == [Verdict.ACCEPTED]
    assert full.check_in([CheckIn(token, "here", 10)])


def test_a_full_server_still_gives_jobs_out_and_takes_their_outcomes_in_one_go(full: Redis):
    verdicts, jobs = full.finish_and_reserve(held(full), WORKER, QUEUES, 5)

    assert verdicts == [Verdict.ACCEPTED] * 3
    assert len(jobs) == 5
    assert full.finish([Completed(job.token) for job in jobs]) == [Verdict.ACCEPTED] * 5


def test_a_full_server_can_be_pruned_rescued_and_steered(full: Redis):
    full.finish(held(full))
    (job,) = full.reserve(WORKER, QUEUES, 1)

    assert full.prune(Retention(completed=0)).jobs == 3
    assert ids_of(full.rescue_owner(WORKER, foreman=WORKER, why="died")) == [job.id]
    assert full.abort([job.id])[0].changed
    assert full.delete([job.id])[0].changed
    assert tallies(full) == recount(full)


def ids_of(rescued: list[object]) -> list[str]:
    return [one.job_id for one in rescued]  # type: ignore[attr-defined]


def test_when_there_is_room_again_jobs_come_in_again(full: Redis, own_server: RedisServer):
    own_server.command("CONFIG", "SET", "maxmemory", "0")

    assert len(full.enqueue(new_jobs(5))) == 5


# --- the script cache -----------------------------------------------------------------------------------------------


def test_every_call_survives_that_the_server_forgets_its_scripts(storage: Redis):
    flush = lambda: shared_server().command("SCRIPT", "FLUSH")  # noqa: E731 - a word for it
    flush()
    join(storage)
    flush()
    storage.enqueue(new_jobs(3))
    flush()
    jobs = storage.reserve(WORKER, QUEUES, 3)
    flush()
    storage.append_log(jobs[0].token, [LogLine("x")])
    flush()
    verdicts, _ = storage.finish_and_reserve([Completed(job.token) for job in jobs], WORKER, QUEUES, 3)
    flush()

    assert verdicts == [Verdict.ACCEPTED] * 3
    assert len(storage.find(Filter()).jobs) == 3
    assert storage.count(Filter(states=frozenset({COMPLETED}))).number == 3


def test_scripts_that_are_flushed_again_and_again_under_load_do_no_harm(own_server: RedisServer):
    with load_on(f"{own_server.url}?patience=60s") as load:
        for _ in range(20):
            load.until_acknowledged(20)
            own_server.command("SCRIPT", "FLUSH")
        load.drain()

        assert load.acknowledged == stored_ids(load.storage)
        assert not load.unsure
        assert set(load.accepted.values()) == {1}
        load.storage.close()


# --- a slow server --------------------------------------------------------------------------------------------------


def test_a_server_that_stands_still_for_a_while_is_waited_for(own_server: RedisServer):
    storage = opened(own_server)
    add(storage, "before")
    began_at = time.monotonic()
    own_server.freeze()
    thaw = threading.Timer(0.3, own_server.thaw)
    thaw.start()

    storage.enqueue([new_job("after")])

    assert time.monotonic() - began_at > 0.2
    assert set(ids(find_all(storage))) == {"before", "after"}
    thaw.join()
    storage.close()


def test_a_call_that_was_given_up_on_a_frozen_server_can_be_made_again(own_server: RedisServer):
    storage, patient = opened(own_server, "timeout=1s&patience=100ms"), opened(own_server)
    add(patient, "before")
    own_server.freeze()
    with pytest.raises(StorageUnavailable, match=r"no answer within 1 second"):
        storage.enqueue([new_job("after")])
    own_server.thaw()

    until(lambda: is_enqueued(storage, "after"), "it answers in time")  # a busy machine may take longer than a second

    assert sorted(ids(find_all(patient))) == ["after", "before"]
    assert stored(patient, "after").state is QUEUED
    storage.close()
    patient.close()


def is_enqueued(storage: Redis, job_id: str) -> bool:
    try:
        storage.enqueue([new_job(job_id)])
    except StorageUnavailable:
        return False
    return True


# --- rights ---------------------------------------------------------------------------------------------------------


def test_the_rights_that_the_page_about_redis_names_are_enough(own_server: RedisServer):
    (rights,) = re.findall(r"^ACL SETUSER worker (.*)$", (ROOT / "docs/redis.md").read_text("utf-8"), re.MULTILINE)
    own_server.command("ACL", "SETUSER", "worker", *rights.split())
    storage = Redis.from_url(own_server.url.replace("redis://", "redis://worker:secret@"))

    join(storage)
    storage.enqueue(new_jobs(3))
    jobs = storage.reserve(WORKER, QUEUES, 2)
    storage.finish([Completed(jobs[0].token), Failed(jobs[1].token, FAILURE)])
    storage.wait(0.01)
    storage.reserve(WORKER, QUEUES, 1)
    storage.prune(Retention(completed=0, dead=0, events=0))

    assert storage.health().kind == "redis"
    assert len(find_all(storage)) == 1
    storage.close()
