"""A foreman that is started before its server: it says so, waits, and works as soon as the server is there."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import pytest

from tests.mysql_server import MySQLServer
from tests.postgres_server import PostgresServer
from tests.redis_server import RedisServer
from tests.storage.conftest import chosen_storages
from tests.system.conftest import managed
from tests.system.deployment import Deployment, until
from tests.system.test_remote import Manager

pytestmark = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="looks at processes through /proc")

Server = PostgresServer | MySQLServer | RedisServer | Manager


@pytest.fixture(params=["postgres", "mysql", "redis", "http"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    """One that does not run yet."""
    if request.param not in (*chosen_storages(), "http"):
        pytest.skip(f"PACKHORSE_TEST_STORAGES does not name {request.param}")
    if request.param == "http":
        manager = Manager(tmp_path)
        yield manager
        manager.kill()
    elif request.param == "redis":
        redis = RedisServer(tmp_path)
        yield redis
        redis.stop()
    else:
        database = PostgresServer() if request.param == "postgres" else MySQLServer()
        yield database
        database.end()


@pytest.fixture
def deployment(tmp_path: Path, server: Server) -> Iterator[Deployment]:
    with managed(Deployment(tmp_path, f"{server.url}?patience=20s")) as deployment:
        yield deployment


@pytest.mark.parametrize(
    "words", [[], pytest.param(["--queues", "nap,else.*"], marks=pytest.mark.long)], ids=["all", "queues"]
)
def test_a_foreman_that_is_started_before_its_server_waits_for_it(
    deployment: Deployment, server: Server, words: list[str]
) -> None:
    foreman = deployment.start(words=words, online=False)
    until(lambda: "the storage is not available, trying again" in deployment.log.read_text(), "it says that it waits")

    server.start()

    until(lambda: foreman.is_over() or foreman.workers(), "its worker is online")
    assert not foreman.is_over(), deployment.log.read_text()
    deployment.until_final(*deployment.add("nap"))


def test_a_mistake_in_the_address_is_not_waited_for(tmp_path: Path, server: Server) -> None:
    server.start()
    wrong = {
        PostgresServer: "/nowhere",
        MySQLServer: "/nowhere",
        RedisServer: "/4000",
        Manager: "/nowhere",
    }[type(server)]
    place = urlsplit(server.url)
    with managed(Deployment(tmp_path, urlunsplit(place._replace(path=wrong)))) as deployment:
        foreman = deployment.start(online=False)
        until(foreman.is_over, "it has ended")

    assert foreman.process.returncode == 4
    assert "trying again" not in deployment.log.read_text()


def test_a_burst_does_not_wait(deployment: Deployment, server: Server) -> None:
    foreman = deployment.start(online=False, words=["--burst"])

    until(foreman.is_over, "it has ended")
    server.start()  # which has to be there to be stopped

    assert foreman.process.returncode == 4
    assert "trying again" not in deployment.log.read_text()
