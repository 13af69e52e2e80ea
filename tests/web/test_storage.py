from __future__ import annotations

from pathlib import Path

import pytest
from starlette.testclient import TestClient

from packhorse.storage.sqlite import SQLite
from tests.cli.yard import Yard

API = "/api/v1"


def test_the_storage_tells_of_latency_contention_and_size(web: TestClient, yard: Yard):
    if yard.storage.health().kind == "memory":
        pytest.skip("memory has nothing to measure")
    yard.job("queued")

    health = web.get(f"{API}/storage").json()

    assert health["kind"] == yard.storage.health().kind
    assert 0 < health["latency"] < 5
    assert health["size"] > 0
    enqueue = next(each for each in health["operations"] if each["name"].startswith("enqueue"))
    assert enqueue["calls"] == 1
    assert enqueue["run_mean"] > 0


def test_the_page_of_the_storage_leaves_out_what_is_not_known(web: TestClient):
    assert "<bdi>None</bdi>" not in web.get("/storage", headers={"accept": "text/html"}).text


def test_what_is_old_is_pruned_now(web: TestClient, yard: Yard):
    yard.job("completed")

    answer = web.post(f"{API}/storage/prune")

    assert (answer.status_code, answer.json()) == (200, {"jobs": 0, "events": 0, "clients": 0, "more": False})


def test_a_sqlite_storage_is_backed_up_beside_itself_and_no_other_is(web: TestClient, yard: Yard):
    job = yard.job("queued")

    answer = web.post(f"{API}/storage/backup")

    if yard.storage.health().kind != "sqlite":
        assert answer.status_code == 400
        return
    copy = SQLite(Path(answer.json()["file"]))
    assert copy.get(job.id) == job
    copy.close()
