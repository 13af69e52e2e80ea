"""Real foremen and workers on a real PostgreSQL or MariaDB that is full or stands behind a pooler. Nothing is lost,
nothing has ended twice, and nobody has to be restarted."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import psycopg
import pymysql
import pytest

from tests.mysql_server import MySQLServer
from tests.postgres_server import PgBouncer, PostgresServer
from tests.storage.conftest import chosen_storages
from tests.system.conftest import managed
from tests.system.deployment import Deployment, until
from tests.system.soundness import assert_sound

pytestmark = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="looks at processes through /proc")

Server = PostgresServer | MySQLServer


def skip_unless_chosen(storage: str) -> None:
    if storage not in chosen_storages():
        pytest.skip(f"PACKHORSE_TEST_STORAGES does not name {storage}")


@pytest.fixture(params=["postgres", "mysql"])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    skip_unless_chosen(request.param)
    server: Server = (
        PostgresServer("max_connections=30") if request.param == "postgres" else MySQLServer("max-connections=30")
    )
    yield server.start()
    server.end()


@pytest.fixture
def deployment(tmp_path: Path, server: Server) -> Iterator[Deployment]:
    with managed(Deployment(tmp_path, f"{server.url}?patience=20s")) as deployment:
        yield deployment


@pytest.fixture
def pooled_deployment(tmp_path: Path) -> Iterator[Deployment]:
    skip_unless_chosen("postgres")
    server = PostgresServer().start()
    pooler = PgBouncer(server)
    with managed(Deployment(tmp_path, f"{pooler.url}?pgbouncer=1")) as deployment:
        yield deployment
    pooler.end()
    server.end()


def test_a_crew_goes_on_when_a_server_that_was_full_has_room_again(deployment: Deployment, server: Server) -> None:
    deployment.start(workers=1, slots=4)
    deployment.until_final(*deployment.add("nap"))
    with ExitStack() as others:
        _fill(server, others)
        late = deployment.start(workers=1, slots=4, online=False)  # there is no room for it
        deployment.until_final(*deployment.add("nap", number=20))  # open connections still work

    until(late.workers, "the one that came late is at work")
    deployment.until_final(*deployment.add("nap", number=20))
    assert_sound(deployment)


def _fill(server: Server, others: ExitStack) -> None:
    """Take every connection that the server gives."""
    with suppress(psycopg.OperationalError, pymysql.OperationalError):
        while True:
            others.enter_context(server.connect())


def test_a_crew_works_behind_a_pooler_by_looking_now_and_then(pooled_deployment: Deployment) -> None:
    pooled_deployment.start(workers=2, slots=4)
    for _ in range(3):
        pooled_deployment.until_final(*pooled_deployment.add("nap", number=10))

    listening = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'LISTEN%'"
    with psycopg.connect(pooled_deployment.url.partition("?")[0]) as connection:
        assert connection.execute(listening).fetchone() == (0,)
    assert_sound(pooled_deployment)
