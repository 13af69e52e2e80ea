"""Who serves a queue, as the pages and the API tell it: by name, by a pattern, or because it serves every queue."""

from __future__ import annotations

import re

import pytest
from starlette.testclient import TestClient

from packhorse.storage.records import TaskInfo, WorkerInfo
from tests.cli.yard import Yard
from tests.web.conftest import MAIL_SECRET, bearer
from tests.web.pages.test_figures import HTML, text_of


def a_worker(yard: Yard, name: str, *serves: str, queues: tuple[str, ...] = (), tasks: tuple[str, ...] = ("resize",)):
    info = {"serves": list(serves), "tasks": list(tasks)}
    yard.storage.join(WorkerInfo(name, host="mule", pid=7, queues=list(queues), info=info))


def number_beside(web: TestClient, queue: str) -> int:
    """How many workers serve this queue, as the list of queues has it."""
    row = next(row for row in web.get("/queues", headers=HTML).text.split("<tr") if f"/queues/{queue}" in row)
    found = re.search(r'data-label="Workers"[^>]*>(?:<[^>]*>)*(\d+)', row)
    assert found is not None
    return int(found[1])


@pytest.mark.parametrize("serves", ["*", "bulk.*", "bulk.x"])
@pytest.mark.parametrize("state", ["queued", "completed"])
def test_a_worker_counts_for_a_queue_that_its_record_does_not_name(
    web: TestClient, yard: Yard, serves: str, state: str
):
    yard.job(state, queue="bulk.x")
    a_worker(yard, "ann", serves)

    assert number_beside(web, "bulk.x") == 1
    assert "No running worker serves this queue" not in text_of(web, "/queues/bulk.x")
    assert "mule · pid 7" in text_of(web, "/queues/bulk.x")


@pytest.mark.parametrize("state", ["queued", "completed"])
def test_a_worker_does_not_count_whose_patterns_or_tasks_do_not_fit(web: TestClient, yard: Yard, state: str):
    yard.job(state, queue="bulk")
    a_worker(yard, "ann", "bulk.*")
    a_worker(yard, "bob", "*", tasks=("report",))

    assert number_beside(web, "bulk") == 0
    assert "No running worker serves this queue" in text_of(web, "/queues/bulk")


def test_an_empty_queue_of_a_task_is_served_by_those_who_know_it(web: TestClient, yard: Yard):
    yard.storage.announce([TaskInfo("resize", "images")])
    a_worker(yard, "ann", "*", queues=("images",))
    a_worker(yard, "bob", "*", queues=("reports",), tasks=("report",))
    a_worker(yard, "cid", "*", queues=("images",))

    assert number_beside(web, "images") == 2


def test_the_workers_page_names_patterns_and_says_who_serves_all(web: TestClient, yard: Yard):
    a_worker(yard, "ann", "mail", "bulk.*", "po?t", queues=("mail",))
    a_worker(yard, "bob", "bulk.*")
    a_worker(yard, "cid", "*", queues=("images",))

    lists = re.findall(r'queuelist">(.*?)</p>', web.get("/workers", headers=HTML).text)

    assert lists == ["mail, bulk.*, po?t", "bulk.*", "images, every other with jobs of its tasks"]
    assert 'queuelist">bulk.*</p>' in web.get("/workers/bob", headers=HTML).text


def test_the_api_lists_patterns_among_the_queues_of_a_worker(web: TestClient, yard: Yard):
    a_worker(yard, "ann", "mail", "bulk.*", queues=("mail",))
    a_worker(yard, "cid", "*", queues=("images",))

    items = {item["id"]: item["queues"] for item in web.get("/api/v1/workers").json()["items"]}

    assert items == {"ann": ["mail", "bulk.*"], "cid": ["images", "*"]}


def test_a_token_of_one_queue_is_told_only_of_patterns_that_fit_it(guarded_web: TestClient, yard: Yard):
    a_worker(yard, "ann", "ma*", "secret.*", queues=("images",))

    (item,) = guarded_web.get("/api/v1/workers", headers=bearer(MAIL_SECRET)).json()["items"]

    assert item["queues"] == item["info"]["serves"] == ["ma*"]


@pytest.mark.parametrize("serves", [5, "*", {"a": 1}, [5], [None], [["*"]], [{}, "bulk.*"]])
@pytest.mark.parametrize("tasks", [5, "resize", [5], [None], [["resize"]], [{}, "resize"]])
def test_a_foreign_worker_that_tells_nonsense_of_itself_costs_no_page(
    web: TestClient, yard: Yard, serves: object, tasks: object
):
    job = yard.job("queued", queue="bulk.x")
    a_worker(yard, "ann", "bulk.*")
    yard.storage.join(WorkerInfo("ruby-1", host="mule", pid=8, info={"serves": serves, "tasks": tasks}))

    makes_sense = isinstance(serves, list) and isinstance(tasks, list) and "bulk.*" in serves and "resize" in tasks
    assert number_beside(web, "bulk.x") == 1 + makes_sense
    for page in ("/queues/bulk.x", "/workers", f"/jobs/{job.id}", "/", "/api/v1/events?object=1", "/api/v1/workers"):
        assert web.get(page).status_code == 200


def test_nor_does_it_cost_a_token_of_one_queue_a_list(guarded_web: TestClient, yard: Yard):
    info = {"serves": [5, ["mail"], None, "ma*"], "tasks": [{}]}
    yard.storage.join(WorkerInfo("ruby-1", host="mule", pid=8, queues=["mail"], info=info))

    for page in ("/api/v1/workers", "/api/v1/events?object=1", "/workers"):
        assert guarded_web.get(page, headers=bearer(MAIL_SECRET)).status_code == 200
