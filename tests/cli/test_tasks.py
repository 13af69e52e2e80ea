"""`packhorse tasks`: every task that is known."""

from __future__ import annotations

import json

from packhorse.core.clock import SECOND
from packhorse.storage.records import TaskInfo
from tests.cli.conftest import Call
from tests.cli.yard import Yard


def test_every_task_is_told_with_its_jobs(yard: Yard, packhorse: Call):
    yard.job("dead", task="resize", queue="images")
    yard.add("report")
    yard.storage.announce(
        [TaskInfo("resize", "images", {"max_attempts": 4, "timeout": 30 * SECOND, "memory_limit": 512 << 20})]
    )

    lines = packhorse("tasks").stdout.splitlines()

    assert [line.split()[0] for line in lines[1:]] == ["report", "resize", "send_notice"]
    row = next(line.split() for line in lines if line.startswith("resize"))
    assert row[:6] == ["resize", "images", "0", "0", "1", "1"]
    assert "max_attempts=4 timeout=30s memory_limit=512MiB" in next(line for line in lines if line.startswith("resize"))


def test_a_task_that_no_worker_knows_is_marked(yard: Yard, packhorse: Call):
    yard.join()
    yard.add("mystery")

    result = packhorse("tasks")
    told = {
        each["name"]: each["announced_at"] for each in map(json.loads, packhorse("tasks", "--json").stdout.splitlines())
    }

    assert "? No worker knows mystery" in result.stderr
    assert told["mystery"] is None
    assert told["resize"] is not None


def test_no_task_yet(yard: Yard, packhorse: Call):
    yard.storage.pause("mail")

    assert "No task is known yet" in packhorse("tasks").stderr
