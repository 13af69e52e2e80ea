"""Real foremen and workers on a real MariaDB: the server is killed in the middle of work. Nothing is lost, nothing has
ended twice, and nobody has to be restarted."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from packhorse.errors import StorageUnavailable
from packhorse.job import COMPLETED, NewJob
from packhorse.storage.records import Filter
from tests.mysql_server import MySQLServer
from tests.storage.conftest import chosen_storages
from tests.system.conftest import Tell
from tests.system.sites import Site, new_job, until
from tests.system.soundness import assert_sound

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="looks at processes through /proc"),
    pytest.mark.skipif("mysql" not in chosen_storages(), reason="PACKHORSE_TEST_STORAGES leaves MySQL out"),
]


@pytest.fixture
def server() -> Iterator[MySQLServer]:
    server = MySQLServer("max-connections=30").start()
    yield server
    server.end()


@pytest.fixture
def site(tmp_path: Path, server: MySQLServer) -> Iterator[Site]:
    site = Site(tmp_path, f"{server.url}?patience=20s")
    yield site
    site.close()
    if site.log.exists():
        print(site.log.read_text())


def test_a_server_that_is_killed_in_the_middle_of_work_costs_no_acknowledged_job(
    site: Site, server: MySQLServer, tell: Tell
) -> None:
    site.start(workers=2, slots=4)
    over = threading.Event()
    enqueueing = threading.Thread(target=_enqueue_until, args=(site, over))
    enqueueing.start()

    for _ in range(2):
        _until_more(site, 100)
        server.kill()
        server.start()
    _until_more(site, 100)
    over.set()
    enqueueing.join()
    site.until_final()

    tell(f"{len(site.acknowledged)} jobs through two deaths of the server")
    assert site.storage.count(Filter(states=frozenset({COMPLETED}))).number == len(site.acknowledged)
    assert_sound(site)


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
