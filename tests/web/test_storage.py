from __future__ import annotations

import re
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from packhorse.storage.sqlite import SQLite
from packhorse.web.application import Application
from packhorse.web.cache import SizeHistory
from tests.cli.yard import Yard

API = "/api/v1"
HTML = {"accept": "text/html"}


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


def test_the_connections_of_all_processes_are_added_up(web: TestClient, yard: Yard):
    yard.join()
    ids = [worker.id for worker in yard.storage.workers()]
    told = {"connections_open": 4, "connections_in_use": 1}
    yard.storage.heartbeat(dict.fromkeys(ids, told))
    opened, in_use = yard.storage.connections()

    answer = web.get("/api/v1/storage").json()

    assert answer["all_connections"]["processes"] == 1 + len(ids)
    assert answer["all_connections"]["open"] >= 4 * len(ids)
    assert answer["all_connections"]["in_use"] >= len(ids)
    assert answer["connections_open"] >= opened - in_use
    assert {worker["report"]["connections_open"] for worker in web.get("/api/v1/workers").json()["items"]} == {4}


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


def test_a_sqlite_storage_is_compacted_and_no_other_is(web: TestClient, yard: Yard):
    kept, *others = [yard.add(args={"text": "x" * 10_000}) for _ in range(60)]
    yard.storage.delete([job.id for job in others])

    answer = web.post(f"{API}/storage/compact")

    if yard.storage.health().kind != "sqlite":
        assert answer.status_code == 400
        return
    assert answer.json()["after"] < answer.json()["before"] - 300_000
    assert yard.get(kept.id) == kept
    told = web.get(web.post("/storage/compact").headers["location"], headers={"accept": "text/html"}).text
    assert re.search(r"The storage shrank from [\d,.]+ KiB to [\d,.]+ KiB", told)
    assert "Write-ahead log" in told


def test_the_page_says_by_how_much_the_storage_grows_and_when_it_is_full(web: TestClient, application: Application):
    cache = application.web.cache
    now = [0.0]
    growth = cache.growth = SizeHistory(lambda: now[0])
    growth.add(1_000)
    assert "It grows" not in web.get("/storage", headers=HTML).text

    now[0] = 3_600.0
    growth.add(1_000 + (10 << 20))
    growth.add = lambda size: None  # type: ignore[method-assign]  # what it really has does not matter here
    told = web.get("/storage", headers=HTML).text

    assert "It grows by about 240 MiB a day" in told
    assert ("would be full in about" in told) == (cache.health().free is not None)
    assert web.get(f"{API}/storage").json()["growth"] == 240 << 20
