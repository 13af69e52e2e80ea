"""The bare loops write what Packhorse writes: it finds their jobs, their results and their events."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from bench.bare import ARGS, RESULT, TASK, open_loops
from packhorse import Packhorse
from packhorse.core.event import Kind
from tests import mysql_server
from tests.postgres_server import new_database_url
from tests.redis_server import redis_server
from tests.storage.conftest import chosen_storages


@pytest.fixture(params=["sqlite", "postgres", "mysql", "redis"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param not in chosen_storages():
        pytest.skip(f"PACKHORSE_TEST_STORAGES leaves {request.param} out")
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'jobs.db'}"
    elif request.param == "postgres":
        yield new_database_url()
    elif request.param == "mysql":
        yield mysql_server.new_database_url()
    else:
        with redis_server(tmp_path) as server:
            yield server.url


def test_packhorse_finds_the_jobs_that_a_bare_loop_has_queued(url: str):
    with closing(open_loops(url)) as bare:
        bare.enqueue(120, 60)

    with Packhorse(url) as app:
        jobs = app.storage.get_many([job.id for job in app.jobs(state="queued", limit=500)])
        assert app.count(state="queued", queue=TASK) == len(jobs) == 120
        assert {job.args for job in jobs} == {ARGS}


def test_packhorse_finds_the_jobs_that_a_bare_loop_has_completed(url: str):
    with closing(open_loops(url)) as bare:
        bare.enqueue(120, 60)

        assert bare.drain(70) == 120

    with Packhorse(url) as app:
        jobs = app.storage.get_many([job.id for job in app.jobs(limit=500)])
        assert app.count(state="completed", queue=TASK) == app.count() == len(jobs) == 120
        assert {job.result for job in jobs} == {RESULT}
        assert len(app.events(limit=1_000)) == 4 * 120


def test_a_job_of_a_bare_loop_has_the_history_of_any_other(url: str):
    with closing(open_loops(url)) as bare:
        bare.enqueue(2, 2)
        bare.drain(2)

    with Packhorse(url) as app:
        job, *_ = app.jobs()
        kinds = [event.kind for event in app.events(job=job.id)]

    assert kinds == [Kind.ADDED, Kind.RESERVED, Kind.STARTED, Kind.COMPLETED]
