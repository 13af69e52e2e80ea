"""Real foremen and workers on a server of their own, which is killed in the middle of work and started again: no job
that was acknowledged is lost, none has ended twice, and nobody has to be restarted."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from packhorse.core.errors import StorageUnavailable
from packhorse.core.job import COMPLETED, NewJob
from packhorse.storage.records import Filter
from tests.mysql_server import MySQLServer
from tests.postgres_server import PostgresServer
from tests.redis_server import RedisServer, redis_server
from tests.storage.conftest import chosen_storages
from tests.system.conftest import Tell, managed
from tests.system.deployment import Deployment, new_job, until
from tests.system.soundness import assert_sound

pytestmark = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="looks at processes through /proc")

Server = PostgresServer | MySQLServer | RedisServer


@pytest.fixture(params=["postgres", pytest.param("mysql", marks=pytest.mark.long), "redis"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    """It keeps every write, also when it is killed the next moment."""
    if request.param not in chosen_storages():
        pytest.skip(f"PACKHORSE_TEST_STORAGES does not name {request.param}")
    if request.param == "redis":
        with redis_server(tmp_path, "--appendonly", "yes", "--appendfsync", "always") as server:
            yield server
    else:
        with _database(PostgresServer() if request.param == "postgres" else MySQLServer()) as database:
            yield database


@contextmanager
def _database(server: PostgresServer | MySQLServer) -> Iterator[Server]:
    yield server.start()
    server.end()


@pytest.fixture
def deployment(tmp_path: Path, server: Server) -> Iterator[Deployment]:
    with managed(Deployment(tmp_path, f"{server.url}?patience=20s")) as deployment:
        yield deployment


def test_a_server_that_is_killed_in_the_middle_of_work_costs_no_acknowledged_job(
    deployment: Deployment, server: Server, tell: Tell
) -> None:
    deployment.start(workers=2, slots=4)
    over = threading.Event()
    enqueueing = threading.Thread(target=_enqueue_until, args=(deployment, over))
    enqueueing.start()

    try:
        for _ in range(2):
            _until_more(deployment, 100)
            server.kill()
            server.start()
        _until_more(deployment, 100)
    finally:
        over.set()
        enqueueing.join()
    deployment.until_final()

    tell(f"{len(deployment.acknowledged)} jobs through two deaths of the server")
    assert deployment.storage.count(Filter(states=frozenset({COMPLETED}))).number == len(deployment.acknowledged)
    assert_sound(deployment)


@pytest.mark.parametrize("patience", ["500ms", pytest.param("10m", marks=pytest.mark.long)])
def test_a_result_outlives_its_worker_that_is_told_to_stop_while_the_server_is_away(
    server: Server, patience: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PACKHORSE_STATE_DIR", str(tmp_path / "state"))
    gate = tmp_path / "gate"
    with managed(Deployment(tmp_path, f"{server.url}?patience={patience}")) as deployment:
        foreman = deployment.start(stop_grace=0.5, abort_grace=0.5)
        (job,) = deployment.add("nap", {"gate": str(gate)})
        deployment.until_begun(job)

        server.kill()
        gate.touch()
        until(lambda: list((tmp_path / "state").rglob("*.outcomes")), "what it came to is on the disk")
        foreman.end()
        server.start()
        deployment.start()
        deployment.until_final()

        assert (deployment.job(job).state, deployment.job(job).attempts) == (COMPLETED, 1)
        assert len(deployment.run_log.lines()) == 2, "it began once, and ended once"
        assert list((tmp_path / "state").rglob("*.outcomes")) == []
        assert_sound(deployment)


def _until_more(deployment: Deployment, number: int) -> None:
    goal = len(deployment.acknowledged) + number
    until(lambda: len(deployment.acknowledged) >= goal, "jobs come in")


def _enqueue_until(deployment: Deployment, over: threading.Event) -> None:
    """A client without an answer asks again: the ids are the caller's own, so nothing is stored twice."""
    while not over.wait(0.005):
        jobs = [new_job("nap") for _ in range(2)]
        while not _is_sent(deployment, jobs):
            over.wait(0.05)


def _is_sent(deployment: Deployment, jobs: list[NewJob]) -> bool:
    try:
        deployment.send(jobs)
    except StorageUnavailable:
        return False
    return True
