"""What is wrong is said on every page, and nothing that is not."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.testclient import TestClient

from packhorse import __version__
from packhorse.core.event import Subject
from packhorse.monitor import health
from packhorse.storage.records import ScheduleInfo, WorkerInfo
from packhorse.storage.transfer import Move, Stage
from tests.cli.yard import FOREMAN, WORKER, Yard

PLACES = ("/", "/jobs", "/failures", "/queues", "/tasks", "/workers", "/schedules", "/storage", "/audit")


def test_every_page_says_that_the_storage_was_moved(web: TestClient, yard: Yard):
    yard.add()
    yard.storage.set_move(Move("copy-1", Stage.MOVED, "postgresql://there/jobs", 1), expected=None)

    shown = {place: web.get(place).text for place in PLACES}

    for place, text in shown.items():
        assert "This storage was moved to postgresql://there/jobs." in text, place
        assert "Use the new one: postgresql://there/jobs." in text, place
        assert "<b>No worker is running.</b>" not in text, place  # nobody needs one there


def test_a_new_check_has_a_banner(web: TestClient, monkeypatch: pytest.MonkeyPatch):
    new = health.Check(lambda facts: iter([health.Finding("new", health.Severity.BAD, "it is new")]))
    monkeypatch.setattr(health, "CHECKS", (new, *health.CHECKS))

    assert "It is new." in web.get("/jobs").text


def test_a_storage_that_is_being_moved_says_so_once(web: TestClient, yard: Yard):
    yard.storage.set_move(Move("copy-1", Stage.CLOSING, "postgresql://there/jobs", 1), expected=None)

    assert web.get("/").text.count("his storage is being moved to") == 1


@pytest.mark.parametrize(
    ("report", "told"),
    [
        ({"state": "quiet"}, "The foreman mule:11 is quiet: it takes no jobs."),
        ({"state": "working", "max": 0}, "The foreman mule:11 keeps no workers."),
    ],
)
def test_a_foreman_that_takes_no_jobs_is_told(web: TestClient, yard: Yard, report: dict[str, Any], told: str):
    yard.join()
    yard.add()
    yard.storage.heartbeat({FOREMAN: report, WORKER: {}})

    shown = web.get("/jobs").text

    assert "No jobs are taken." in shown
    assert told in shown
    assert "mule:11</code>" in shown  # the command that has it go on


@pytest.mark.parametrize(
    ("is_attended", "why"),
    [(False, "no foreman is running."), (True, "1 foreman is running and has not enqueued it.")],
)
def test_a_late_schedule_says_whether_anybody_is_there(web: TestClient, yard: Yard, is_attended: bool, why: str):
    long_ago = yard.storage.now() - 3_600_000_000
    yard.storage.put_schedules([ScheduleInfo("nightly", "report", "0 4 * * *", next_at=long_ago)])
    if is_attended:
        yard.join()

    shown = web.get("/jobs").text

    assert "The schedule nightly is late." in shown
    assert why in shown


def test_many_late_schedules_are_told_as_one(web: TestClient, yard: Yard):
    long_ago = yard.storage.now() - 3_600_000_000
    late = [ScheduleInfo(f"plan-{number}", "report", "0 4 * * *", next_at=long_ago) for number in range(5)]
    yard.storage.put_schedules(late)

    shown = web.get("/jobs").text

    assert "5 schedules are late." in shown
    assert "The first was due 1 h" in shown
    assert "plan-0, plan-1, plan-2 …; no foreman is running." in shown
    assert "The schedule plan" not in shown


@pytest.mark.parametrize(
    ("queues", "told"), [(["mail"], "mail is falling behind."), (["mail", "resize"], "2 queues are falling behind.")]
)
def test_queues_that_fall_behind_are_told_as_one(
    web: TestClient, yard: Yard, monkeypatch: pytest.MonkeyPatch, queues: list[str], told: str
):
    monkeypatch.setattr(health, "_LATE", -1)  # no job need wait for a minute
    yard.join()
    for queue in queues:
        yard.add(queue=queue)

    shown = web.get("/jobs").text

    assert told in shown
    assert shown.count("falling behind") == 1


def test_a_foreman_that_needs_no_worker_just_now_is_well(web: TestClient, yard: Yard):
    yard.join()
    yard.storage.leave(WORKER, why="not needed")
    yard.add(delay=60_000_000)
    yard.storage.heartbeat({FOREMAN: {"state": "working", "min": 0, "max": 4}})

    assert 'class="banner' not in web.get("/jobs").text


def test_a_foreman_whose_workers_do_not_start_is_told(web: TestClient, yard: Yard, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(health, "_LATE", -1)  # no job need wait for a minute
    yard.join()
    yard.storage.leave(WORKER, why="died")
    yard.add()
    yard.storage.heartbeat({FOREMAN: {"state": "working", "max": 4, "problem": "no module named shop"}})

    shown = web.get("/jobs").text

    assert "The foreman has no worker." in shown
    assert "no module named shop" in shown


def test_a_quiet_worker_is_marked(web: TestClient, yard: Yard):
    yard.join()
    yard.storage.heartbeat({FOREMAN: {"state": "working"}, WORKER: {"state": "quiet"}})

    assert '<span class="tag warn">quiet</span>' in web.get("/workers").text


def test_machines_whose_clock_goes_wrong_are_told(web: TestClient, yard: Yard):
    yard.join()
    yard.storage.heartbeat({FOREMAN: {"skew": -73.4}, WORKER: {}})

    shown = web.get("/jobs").text

    assert "Clocks differ." in shown
    assert "The clock of mule is 1 m 13 s behind." in shown


@pytest.mark.parametrize("skew", [None, 0.0, 1.9, -2, "much"])
def test_a_clock_that_hardly_differs_is_well(web: TestClient, yard: Yard, skew: object):
    yard.join()
    yard.storage.heartbeat({FOREMAN: {"skew": skew}, WORKER: {}})

    assert "Clocks differ." not in web.get("/jobs").text


@pytest.mark.parametrize(("version", "is_told"), [(__version__, False), ("0.0.1", True)])
def test_foremen_of_another_version_are_told(web: TestClient, yard: Yard, version: str, is_told: bool):
    yard.storage.join(WorkerInfo("f-2", Subject.FOREMAN, host="mule", pid=12, info={"version": version}))

    shown = web.get("/jobs").text

    assert ("Versions are mixed." in shown) is is_told
    assert (f"1 foreman runs 0.0.1; this is {__version__}." in shown) is is_told


@pytest.mark.parametrize(("deploying", "is_told"), [(-1, True), (10**12, False)])
def test_versions_of_the_code_are_told_that_stay_mixed(
    web: TestClient, yard: Yard, monkeypatch: pytest.MonkeyPatch, deploying: int, is_told: bool
):
    monkeypatch.setattr(health, "_DEPLOY_TIME", deploying)
    for number, version in enumerate(("9d01", "9d01", "4f2c", None)):
        info = {} if version is None else {"code_version": version}
        yard.storage.join(WorkerInfo(f"w-{number}", host="mule", pid=number, info=info))

    shown = web.get("/jobs").text

    assert ("Versions of your code are mixed." in shown) is is_told
    assert ("1 worker runs 4f2c, 2 workers run 9d01." in shown) is is_told
