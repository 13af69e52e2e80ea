"""Real foremen and workers on a real PostgreSQL or MariaDB: the server is killed, is full, or stands behind a pooler.
Nothing is lost, nothing has ended twice, and nobody has to be restarted."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import psycopg
import pymysql
import pytest

from packhorse.errors import StorageUnavailable
from packhorse.job import COMPLETED, NewJob
from packhorse.storage.records import Filter
from tests.mysql_server import MySQLServer
from tests.postgres_server import PgBouncer, PostgresServer
from tests.storage.conftest import chosen_storages
from tests.system.conftest import Tell, attended
from tests.system.sites import Site, new_job, until
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
def site(tmp_path: Path, server: Server) -> Iterator[Site]:
    with attended(Site(tmp_path, f"{server.url}?patience=20s")) as site:
        yield site


@pytest.fixture
def pooled_site(tmp_path: Path) -> Iterator[Site]:
    skip_unless_chosen("postgres")
    server = PostgresServer().start()
    pooler = PgBouncer(server)
    with attended(Site(tmp_path, f"{pooler.url}?pgbouncer=1")) as site:
        yield site
    pooler.end()
    server.end()


def test_a_server_that_is_killed_in_the_middle_of_work_costs_no_acknowledged_job(
    site: Site, server: Server, tell: Tell
) -> None:
    site.start(workers=2, slots=4)
    over = threading.Event()
    enqueueing = threading.Thread(target=_enqueue_until, args=(site, over))
    enqueueing.start()

    try:
        for _ in range(2):
            _until_more(site, 100)
            server.kill()
            server.start()
        _until_more(site, 100)
    finally:
        over.set()
        enqueueing.join()
    site.until_final()

    tell(f"{len(site.acknowledged)} jobs through two deaths of the server")
    assert site.storage.count(Filter(states=frozenset({COMPLETED}))).number == len(site.acknowledged)
    assert_sound(site)


def test_a_crew_goes_on_when_a_server_that_was_full_has_room_again(site: Site, server: Server) -> None:
    site.start(workers=1, slots=4)
    site.until_final(*site.add("nap"))
    with ExitStack() as others:
        _fill(server, others)
        late = site.start(workers=1, slots=4, online=False)  # there is no room for it
        site.until_final(*site.add("nap", number=20))  # whoever is connected goes on

    until(late.is_steady, "the one that came late is at work")
    site.until_final(*site.add("nap", number=20))
    assert_sound(site)


def _fill(server: Server, others: ExitStack) -> None:
    """Take every connection that the server gives."""
    with suppress(psycopg.OperationalError, pymysql.OperationalError):
        while True:
            others.enter_context(server.connect())


def test_a_crew_works_behind_a_pooler_by_looking_now_and_then(pooled_site: Site) -> None:
    pooled_site.start(workers=2, slots=4)
    for _ in range(3):
        pooled_site.until_final(*pooled_site.add("nap", number=10))

    listening = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'LISTEN%'"
    with psycopg.connect(pooled_site.url.partition("?")[0]) as connection:
        assert connection.execute(listening).fetchone() == (0,)
    assert_sound(pooled_site)


def _until_more(site: Site, number: int) -> None:
    goal = len(site.acknowledged) + number
    until(lambda: len(site.acknowledged) >= goal, "jobs come in")


def _enqueue_until(site: Site, over: threading.Event) -> None:
    """Whoever was not answered asks again: the ids are the caller's own, so nothing is stored twice."""
    while not over.wait(0.005):
        jobs = [new_job("nap") for _ in range(2)]
        while not _is_sent(site, jobs):
            over.wait(0.05)


def _is_sent(site: Site, jobs: list[NewJob]) -> bool:
    try:
        site.send(jobs)
    except StorageUnavailable:
        return False
    return True
