"""What the pages say of paused queues, in which nothing becomes less; and of the limits of a job's process."""

from __future__ import annotations

import re

import pytest
from starlette.testclient import TestClient

from packhorse.core.clock import HOUR, SECOND
from packhorse.core.job import QUEUED
from packhorse.monitor.stats import RunStats
from packhorse.storage.records import QueueInfo, TaskInfo
from packhorse.web.pages import queues
from tests.cli.yard import Yard

HTML = {"accept": "text/html"}


def text_of(web: TestClient, path: str) -> str:
    """What a page says, without its marks."""
    text = web.get(path, headers=HTML).text.partition("<main")[2]
    return " ".join(re.sub("<[^>]+>", " ", text).split())


def test_the_list_tells_by_whom_and_until_when_beside_the_mark_not_in_it(web: TestClient, yard: Yard):
    yard.add(queue="mail")
    yard.storage.pause("mail", by="local", why="moving", duration=HOUR)

    found = web.get("/queues", headers=HTML).text

    assert "paused</span>" in found  # the mark is never broken into lines, and stays short
    assert re.search(r"mail paused by local until \d{4}-\d\d-\d\d \d\d:\d\d:\d\d moving", text_of(web, "/queues"))


@pytest.mark.parametrize(("paused_at", "empty_in"), [(None, 600.0), (1, None)])
def test_only_a_queue_that_goes_on_will_be_empty(paused_at: int | None, empty_in: float | None):
    queue = QueueInfo("mail", {QUEUED: 50}, paused_at=paused_at)

    assert queues._flow(queue, RunStats(completed=50), [], 1).empty_in == empty_in


def test_the_overview_says_that_all_that_waits_is_in_paused_queues(web: TestClient, yard: Yard):
    yard.add(queue="mail")
    yard.storage.pause("mail")

    assert "Queued 1 all in paused queues" in text_of(web, "/")


def test_the_oldest_of_those_that_nobody_holds_back_is_told(web: TestClient, yard: Yard):
    for queue in ("mail", "resize"):
        yard.add(queue=queue)
    yard.storage.pause("mail")

    assert re.search(r"Queued 2 oldest \d", text_of(web, "/"))


def test_with_nothing_in_line_a_paused_queue_changes_nothing(web: TestClient, yard: Yard):
    yard.job("completed")
    yard.storage.pause("mail")

    assert "Queued 0 oldest –" in text_of(web, "/")


def test_a_job_has_the_memory_limit_of_its_task_among_its_limits(web: TestClient, yard: Yard):
    yard.storage.announce([TaskInfo("resize", "resize", {"memory_limit": 256 << 20})])
    bare, timed = yard.add(), yard.add(idle_timeout=30 * SECOND)

    assert "Limits memory 256 MiB" in text_of(web, f"/jobs/{bare.id}")
    assert "Limits silence 30 s memory 256 MiB" in text_of(web, f"/jobs/{timed.id}")


def test_the_process_of_a_running_job_is_told_as_that_of_its_worker(web: TestClient, yard: Yard):
    job = yard.start(yard.add())

    assert "Its worker's process mule · pid 12" in text_of(web, f"/jobs/{job.id}")
