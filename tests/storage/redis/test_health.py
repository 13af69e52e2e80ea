"""What the storage says of its server, and what it warns of."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

import pytest

from packhorse.storage.records import Health
from packhorse.storage.redis.address import Address
from packhorse.storage.redis.health import health_of
from packhorse.storage.redis.notifier import Notifier
from packhorse.storage.redis.server import Server
from tests.children import until
from tests.redis_server import RedisServer


@pytest.fixture(autouse=True)
def leisure(monkeypatch: pytest.MonkeyPatch) -> None:
    """However busy this machine is, no read counts as slow."""
    monkeypatch.setattr("packhorse.storage.redis.health._SLOW", math.inf)


@pytest.fixture
def server(own_server: RedisServer) -> Iterator[Server]:
    server = Server(Address.parse(own_server.url.replace("redis://", "redis://:x@")))
    yield server
    server.close()


def health(server: Server) -> Health:
    notifier = Notifier(server)
    try:
        return health_of(server, notifier)
    finally:
        notifier.close()


def set_options(own_server: RedisServer, **options: object) -> None:
    for name, value in options.items():
        own_server.command("CONFIG", "SET", name.replace("_", "-"), str(value))


def test_health_reports_version_latency_memory_and_connections(server: Server, own_server: RedisServer):
    found = health(server)

    assert found.kind == "redis"
    assert found.url == f"redis://127.0.0.1:{own_server.port}"
    product, version = found.version.split()
    assert version == own_server.info(f"{product.lower()}_version")
    assert 0 < found.latency < 60_000_000
    assert found.size is not None
    assert found.size > 100_000
    assert (found.connections_open, found.connections_in_use) == (1, 0)
    assert found.facts["pool_size"] == 4
    assert found.facts["connected_clients"] >= 1
    assert found.facts["maxmemory_policy"] == "noeviction"
    assert found.facts["server"] == f"127.0.0.1:{own_server.port}"


def test_a_waiter_counts_among_the_connections(server: Server):
    notifier = Notifier(server)
    until(lambda: notifier.wait(0.01) or notifier.connections() == (1, 1), "it sleeps")

    found = health_of(server, notifier)

    assert (found.connections_open, found.connections_in_use) == (2, 1)
    notifier.close()


def test_a_server_with_an_append_only_file_is_well(server: Server, own_server: RedisServer):
    set_options(own_server, appendonly="yes")

    assert health(server).problems == []
    assert health(server).facts["appendonly"] is True


def test_no_persistence_is_a_problem(server: Server):
    (problem,) = health(server).problems

    assert problem == "nothing is saved to disk: a restart of the server loses every job; set appendonly yes"


def test_snapshots_alone_are_a_problem(server: Server, own_server: RedisServer):
    set_options(own_server, save="3600 1")
    own_server.command("SET", "x", 1)

    (problem,) = health(server).problems

    assert problem.startswith("only snapshots are saved to disk: a crash of the server loses")
    assert "changes)" in problem


def test_an_append_only_file_that_is_never_flushed_is_a_problem(server: Server, own_server: RedisServer):
    set_options(own_server, appendonly="yes", appendfsync="no")

    (problem,) = health(server).problems

    assert problem.startswith("appendfsync is no")


@pytest.mark.parametrize("policy", ["allkeys-lru", "volatile-ttl"])
def test_a_policy_that_throws_keys_away_is_a_problem(server: Server, own_server: RedisServer, policy: str):
    set_options(own_server, appendonly="yes", maxmemory_policy=policy)

    (problem,) = health(server).problems

    assert problem.startswith(f"maxmemory-policy is {policy}")


def test_memory_that_is_nearly_full_is_a_problem(server: Server, own_server: RedisServer):
    used = int(own_server.info("used_memory"))
    set_options(own_server, appendonly="yes", maxmemory=used + 10_000)

    found = health(server)

    assert found.free is not None
    assert any("bytes of its memory; raise maxmemory" in problem for problem in found.problems)


def test_keys_that_were_thrown_away_are_a_problem(server: Server, own_server: RedisServer):
    set_options(own_server, appendonly="yes", maxmemory_policy="allkeys-random")
    for number in range(100):
        own_server.command("SET", f"x{number}", "y" * 1000)
    set_options(own_server, maxmemory=int(own_server.info("used_memory")) - 50_000)
    own_server.command("SET", "one", "more")

    assert any("has evicted" in problem for problem in health(server).problems)


def test_connections_that_are_nearly_used_up_are_a_problem(server: Server, own_server: RedisServer):
    server.send("test", ("PING",))
    set_options(own_server, appendonly="yes", maxclients=1)

    assert any("connections that it allows; raise maxclients" in problem for problem in health(server).problems)


def test_a_slow_server_is_a_problem(server: Server, own_server: RedisServer, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("packhorse.storage.redis.health._SLOW", -1)
    set_options(own_server, appendonly="yes")

    (problem,) = health(server).problems

    assert re.match(r"a small read took \d+ ms; check SLOWLOG GET", problem)


def test_waiting_for_connections_is_a_problem_when_it_happens_often(server: Server, own_server: RedisServer):
    set_options(own_server, appendonly="yes")
    for _ in range(1_000):
        server.meter.record("test", 0.0, 0.0)
    server.pool.waits = 5
    assert health(server).problems == []

    server.pool.waits = 50

    (problem,) = health(server).problems
    assert "waited for one of its 4 connections; raise ?connections=" in problem


def test_without_the_right_to_read_the_configuration_health_reports_the_rest(own_server: RedisServer):
    own_server.command("ACL", "SETUSER", "worker", "on", ">x", "~*", "+@all", "-config")
    server = Server(Address.parse(own_server.url.replace("redis://", "redis://worker:x@")))

    found = health(server)

    assert found.size is not None
    assert "appendfsync" not in found.facts
    assert any(problem.startswith("no append-only file is written") for problem in found.problems)
    server.close()
