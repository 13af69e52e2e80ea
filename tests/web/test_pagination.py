"""Lists of queues, tasks and workers can be had a part at a time."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.testclient import TestClient

from packhorse.storage.records import TaskInfo, WorkerInfo
from tests.cli.yard import Yard

API = "/api/v1"
NAMES = [f"name-{number}" for number in range(7)]


@pytest.fixture
def many(yard: Yard) -> Yard:
    yard.storage.announce([TaskInfo(name, name) for name in NAMES])
    for name in NAMES:
        yard.storage.join(WorkerInfo(name, host="mule" if name < "name-5" else "ox"))
    return yard


def parts(web: TestClient, noun: str, **asked: Any) -> list[list[str]]:
    found, cursor = [], None
    while True:
        answer = web.get(f"{API}/{noun}", params={**asked, **({"cursor": cursor} if cursor else {})}).json()
        found.append([item.get("name") or item["id"] for item in answer["items"]])
        if (cursor := answer["next"]) is None:
            return found


@pytest.mark.parametrize("noun", ["queues", "tasks", "workers"])
def test_a_list_comes_whole_or_a_part_at_a_time(web: TestClient, many: Yard, noun: str):
    assert parts(web, noun) == [NAMES]
    assert parts(web, noun, limit=3) == [NAMES[:3], NAMES[3:6], NAMES[6:]]
    assert parts(web, noun, limit=7) == [NAMES]


def test_a_part_goes_on_behind_a_name_that_is_gone(web: TestClient, many: Yard):
    many.storage.leave("name-3")

    answer = web.get(f"{API}/workers", params={"cursor": "name-3", "limit": 2}).json()

    assert [item["id"] for item in answer["items"]] == ["name-4", "name-5"]


def test_workers_of_one_host_can_be_asked_for(web: TestClient, many: Yard):
    assert parts(web, "workers", host="ox") == [NAMES[5:]]


@pytest.mark.parametrize("asked", [{"limit": 0}, {"limit": 1_001}, {"limit": "all"}, {"from": "name-3"}])
def test_a_part_that_makes_no_sense_is_refused(web: TestClient, many: Yard, asked: dict[str, Any]):
    assert web.get(f"{API}/queues", params=asked).status_code == 400


def test_busy_slots_come_a_part_at_a_time_too(web: TestClient, yard: Yard):
    held = sorted(yard.start(yard.add()).id for _ in range(3))

    first = web.get(f"{API}/busy_slots", params={"limit": 2}).json()
    second = web.get(f"{API}/busy_slots", params={"limit": 2, "cursor": first["next"]}).json()

    assert [item["job_id"] for item in first["items"] + second["items"]] == held
    assert second["next"] is None
