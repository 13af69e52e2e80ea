"""Python, the command line, the API and the page New job take the same options, and make the same job of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from starlette.testclient import TestClient

from packhorse import Packhorse
from packhorse.core.job import Job
from packhorse.storage.records import ClientInfo, Filter, WorkerInfo
from packhorse.web.application import Application
from tests.cli.conftest import Call, here, packhorse
from tests.cli.yard import WORKER, Yard
from tests.web.conftest import BASE

API = "/api/v1"
__all__ = ["here", "packhorse"]  # fixtures
OPTIONS: dict[str, tuple[Any, str, Any]] = {  # as Python and the API take it, as it is typed, as it is stored
    "queue": ("slow", "slow", "slow"),
    "priority": (7, "7", 7),
    "max_attempts": (9, "9", 9),
    "max_halts": (2, "2", 2),
    "backoff": (["1s", "10s"], "1s, 10s", '{"type":"fixed","delay_ms":[1000,10000]}'),
    "timeout": ("10s", "10s", 10_000_000),
    "idle_timeout": ("2s", "2s", 2_000_000),
    "expires": ("1h", "1h", 3_600_000_000),
    "total_timeout": ("1d", "1d", 86_400_000_000),
    "persistent": (True, "yes", True),
    "subscriber": ("shop", "shop", ["shop"]),
}


def by_python(yard: Yard, **_: Any) -> None:
    given = {name: value for name, (value, _, _) in OPTIONS.items()}
    Packhorse(storage=yard.storage).enqueue("resize", {"n": 1}, known=False, **given)


def by_command(yard: Yard, packhorse: Call, **_: Any) -> None:
    words = [
        word
        for name, (_, typed, _) in OPTIONS.items()
        for word in (f"--{name.replace('_', '-')}", *([] if name == "persistent" else [typed]))
    ]
    assert packhorse("enqueue", "resize", "n=1", "--force", *words).exit_code == 0


def by_api(yard: Yard, web: TestClient, **_: Any) -> None:
    given = {name: value for name, (value, _, _) in OPTIONS.items()}
    answer = web.post(f"{API}/jobs", json={"task": "resize", "args": {"n": 1}, "known": False, **given})
    assert answer.status_code == 201, answer.text


def by_page(yard: Yard, web: TestClient, **_: Any) -> None:
    typed = {name: typed for name, (_, typed, _) in OPTIONS.items()}
    form = {"task": "resize", "args": '{"n": 1}', "unknown": "yes", **typed}
    answer = web.post("/jobs/new", data=form, headers={"origin": BASE, "accept": "text/html"}, follow_redirects=False)
    assert answer.status_code == 303, answer.text


@pytest.mark.parametrize("door", [by_python, by_command, by_api, by_page])
def test_every_option_is_taken_everywhere(
    yard: Yard, web: TestClient, packhorse: Call, door: Callable[..., None]
) -> None:
    yard.storage.join_client(ClientInfo("shop"))

    door(yard, web=web, packhorse=packhorse)

    (job,) = yard.storage.find(Filter()).jobs
    assert stored(yard, job) == {name: value for name, (_, _, value) in OPTIONS.items()}


def stored(yard: Yard, job: Job) -> dict[str, Any]:
    told = {name: getattr(job, name) for name in OPTIONS if name != "subscriber"}
    return {**told, "subscriber": yard.storage.subscribers(job.id)}


@pytest.mark.parametrize(
    ("field", "typed"), [("max_attempts", "many"), ("max_halts", "0"), ("backoff", "often"), ("timeout", "x")]
)
def test_the_page_comes_back_with_an_option_that_is_none(yard: Yard, web: TestClient, field: str, typed: str) -> None:
    form = {"task": "resize", "unknown": "yes", field: typed}

    answer = web.post("/jobs/new", data=form, headers={"origin": BASE, "accept": "text/html"})

    assert answer.status_code == 400
    assert "<details open>" in answer.text
    assert f'name="{field}"' in answer.text
    assert f'value="{typed}"' in answer.text
    assert yard.storage.find(Filter()).jobs == []


def test_attempt_is_never_above_max_attempts(yard: Yard, web: TestClient) -> None:
    job = yard.add(max_attempts=5)
    retrying = yard.job("retrying", max_attempts=5)
    dead = yard.job("dead", max_attempts=1)

    told = {item["id"]: item for item in web.get(f"{API}/jobs").json()["items"]}

    names = ("max_attempts", "failures", "attempt", "attempts_left")
    assert [told[job.id][name] for name in names] == [5, 0, 1, 5]
    assert [told[retrying.id][name] for name in names] == [5, 1, 2, 4]
    assert [told[dead.id][name] for name in names] == [1, 1, 1, 0]
    event = web.get(f"{API}/events", params={"job": dead.id, "kind": "broken", "object": "true"}).json()["items"][0]
    assert event["object"]["attempt"] == 1


def test_json_tells_the_place_in_line_and_the_runner(yard: Yard, web: TestClient) -> None:
    forced = yard.add()
    yard.storage.force_start([forced.id])
    running = yard.job("running")

    told, runs = (web.get(f"{API}/jobs/{each.id}").json() for each in (forced, running))
    (slot,) = web.get(f"{API}/busy_slots").json()["items"]

    assert (told["state"], told["is_forced"], told["is_halted"], told["rank"]) == ("queued", True, False, 1)
    assert (told["host"], told["pid"]) == (None, None)
    assert (runs["owner"], runs["host"], runs["pid"]) == (WORKER, "mule", 12)
    assert [slot[name] for name in ("owner", "worker", "host", "pid", "attempt")] == [WORKER, WORKER, "mule", 12, 1]
    assert slot["checkin_at"] is not None


@pytest.mark.parametrize(("busy", "expected"), [(1, True), (4, False)])
def test_a_new_job_says_whether_a_worker_is_free(
    yard: Yard, application: Application, web: TestClient, busy: int, expected: bool
) -> None:
    before = web.post(f"{API}/jobs", json={"task": "send", "queue": "send", "known": False}).json()
    yard.storage.join(WorkerInfo("w", queues=["mail"], concurrency=4))
    yard.storage.heartbeat({"w": {"busy": busy, "state": "working"}})
    application.web.cache.forget()
    after = web.post(f"{API}/jobs", json={"task": "send", "queue": "mail", "known": False}).json()

    assert (before["worker_available"], after["worker_available"]) == (False, expected)


def test_filters_and_events_read_the_names_of_the_fields(yard: Yard, web: TestClient) -> None:
    job = yard.job("running")

    by_owner = web.get(f"{API}/jobs", params={"owner": WORKER}).json()["items"]
    events = web.get(f"{API}/events", params={"job_id": job.id}).json()["items"]
    of_worker = web.get(f"{API}/events", params={"owner": WORKER}).json()["items"]

    assert [item["id"] for item in by_owner] == [job.id]
    assert [event["kind"] for event in events] == ["added", "reserved", "started"]
    assert of_worker == web.get(f"{API}/events", params={"worker": WORKER}).json()["items"]
