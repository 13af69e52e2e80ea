from __future__ import annotations

import json
from pathlib import Path

from packhorse.core.clock import MINUTE, now
from packhorse.core.event import Subject
from packhorse.core.job import NewJob
from packhorse.storage import open_storage
from packhorse.storage.records import WorkerInfo
from tests.cli.conftest import Call
from tests.cli.yard import Yard


def long_ago(yard: Yard, by: int):
    """The same file, for somebody whose clock is behind."""
    return open_storage(yard.url, now=lambda: now() - by)


def test_all_is_well_with_a_foreman_and_nothing_old(yard: Yard, packhorse: Call):
    yard.join()
    yard.add()

    result = packhorse("check")

    assert result.exit_code == 0
    assert all(line.startswith("ok ") for line in result.stdout.splitlines())
    assert "1 foreman alive" in result.stdout


def test_quiet_and_well_says_nothing(yard: Yard, packhorse: Call):
    yard.join()

    assert packhorse("check", "-q").output == ""


def test_no_foreman_is_unhealthy(yard: Yard, packhorse: Call):
    yard.add()

    result = packhorse("check")

    assert result.exit_code == 6
    assert "bad  no foreman is running" in result.stdout


def test_a_silent_foreman_is_unhealthy(yard: Yard, packhorse: Call):
    before = long_ago(yard, 2 * MINUTE)
    before.join(WorkerInfo("old", Subject.FOREMAN))
    before.close()

    result = packhorse("check")

    assert result.exit_code == 6
    assert "no foreman has sent a heartbeat for 2m" in result.stdout


def test_a_job_that_waits_for_too_long_is_unhealthy_unless_its_queue_is_paused(yard: Yard, packhorse: Call):
    yard.join()
    yard.storage.join(WorkerInfo("resizer", queues=["images"]))
    before = long_ago(yard, 6 * MINUTE)
    before.enqueue([NewJob("old", "resize", "images")])
    before.close()

    too_old, old_enough = packhorse("check"), packhorse("check", "--max-age", "1h")
    yard.storage.pause("images")
    paused = packhorse("check")

    assert too_old.exit_code == 6
    assert "the oldest waiting job, of images, has waited 6m" in too_old.stdout
    assert "5m is allowed" in too_old.stdout
    assert old_enough.exit_code == 0
    assert paused.exit_code == 0


def test_an_overdue_job_is_unhealthy(yard: Yard, packhorse: Call):
    yard.join()
    before = long_ago(yard, 20 * MINUTE)
    before.enqueue([NewJob("late", "resize", "images", delay=MINUTE)])
    before.close()

    result = packhorse("check")

    assert result.exit_code == 6
    assert "a job of images has been due for 19m" in result.stdout


def test_a_storage_that_is_not_there_is_unhealthy_and_is_not_made(here: Path, packhorse: Call):
    result = packhorse("check")

    assert result.exit_code == 6
    assert "there is no packhorse.db here" in result.stdout
    assert list(here.iterdir()) == []


def test_a_storage_that_cannot_be_used_is_unhealthy(here: Path, packhorse: Call):
    (here / "packhorse.db").write_text("this is no database, and it is long enough to be none" * 20)

    result = packhorse("check", "--json")

    told = json.loads(result.stdout)
    assert result.exit_code == 6
    assert told["healthy"] is False
    assert told["checks"][0]["name"] == "storage"
    assert "not a SQLite database" in told["checks"][0]["sentence"]
