"""A cluster of three nodes: our keys are found, stay together, and are waited for while they move."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from packhorse.conformance.builders import WORKER, add, find_all, ids, join, new_job, new_jobs, recount, tallies
from packhorse.core.errors import StorageUnavailable
from packhorse.core.job import COMPLETED, QUEUED
from packhorse.core.outcome import Completed, Verdict
from packhorse.storage.records import Filter
from packhorse.storage.redis import Redis
from packhorse.storage.redis.topology import slot_of
from tests.children import until
from tests.redis_groups import Cluster, cluster
from tests.redis_server import RedisServer

# One for each node: their slots lie in the first, second and third part.
PREFIXES = ["shop", "packhorse", "a"]


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with cluster(tmp_path_factory.mktemp("cluster")) as group:
        yield group


@pytest.mark.parametrize("prefix", [*PREFIXES, "x" * 100, "žaba"])
def test_the_slot_is_the_one_that_a_server_computes(group: Cluster, prefix: str):
    assert slot_of(prefix) == group.nodes[0].command("CLUSTER", "KEYSLOT", f"{{{prefix}}}:bell")


def test_the_prefixes_of_these_tests_are_on_different_nodes(group: Cluster):
    assert len({group.owner(slot_of(prefix)).port for prefix in PREFIXES}) == 3


@pytest.mark.parametrize("prefix", PREFIXES)
def test_a_job_lives_its_life_on_whichever_node_has_its_keys(group: Cluster, prefix: str):
    storage = Redis.from_url(f"{group.url}?prefix={prefix}")
    join(storage)
    storage.enqueue(new_jobs(5))
    jobs = storage.reserve(WORKER, {"mail": 1}, 5)

    assert storage.finish([Completed(job.token) for job in jobs]) == [Verdict.ACCEPTED] * 5

    assert storage.count(Filter(states=frozenset({COMPLETED}))).number == 5
    assert storage.wait(60)  # the token of the enqueueing
    assert storage.health().facts["server"] == f"127.0.0.1:{group.owner(slot_of(prefix)).port}"
    assert tallies(storage) == recount(storage)
    storage.close()


def test_the_wrong_node_says_how_the_address_must_be_written(group: Cluster):
    (wrong, *_) = [node for node in group.nodes if node is not group.owner(slot_of("packhorse"))]
    storage = Redis.from_url(f"{wrong.url}?patience=100ms")

    with pytest.raises(StorageUnavailable, match=r"another node holds our keys .* redis\+cluster://"):
        add(storage)
    storage.close()


def test_while_keys_move_to_another_node_calls_wait_and_none_sees_half_of_them(group: Cluster):
    prefix = "moving"
    slot = slot_of(prefix)
    source = group.owner(slot)
    target = next(node for node in group.nodes if node is not source)
    storage = Redis.from_url(f"{group.url}?prefix={prefix}&patience=60s")
    storage.enqueue([new_job(f"before-{number}") for number in range(50)])
    _begin_move(slot, source, target)

    with ThreadPoolExecutor() as others:
        waiting = others.submit(storage.enqueue, [new_job("during")])
        until(lambda: storage._server.meter.busy_retries > 1, "the call waits")
        _move_keys(slot, source, target)
        assert not waiting.done()
        _end_move(group, slot, target)
        waiting.result(60)

    assert len(find_all(storage)) == 51
    assert sorted(ids(find_all(storage, Filter(states=frozenset({QUEUED})))))[-1] == "during"
    assert storage.health().facts["server"] == f"127.0.0.1:{target.port}"
    assert tallies(storage) == recount(storage)
    storage.close()


def _begin_move(slot: int, source: RedisServer, target: RedisServer) -> None:
    target.command("CLUSTER", "SETSLOT", slot, "IMPORTING", source.command("CLUSTER", "MYID"))
    source.command("CLUSTER", "SETSLOT", slot, "MIGRATING", target.command("CLUSTER", "MYID"))


def _move_keys(slot: int, source: RedisServer, target: RedisServer) -> None:
    while keys := source.command("CLUSTER", "GETKEYSINSLOT", slot, 100):
        source.command("MIGRATE", "127.0.0.1", target.port, "", 0, 60_000, "KEYS", *keys)


def _end_move(group: Cluster, slot: int, target: RedisServer) -> None:
    for node in (target, *group.nodes):
        node.command("CLUSTER", "SETSLOT", slot, "NODE", target.command("CLUSTER", "MYID"))
