"""Probes are told the truth: a foreman that lives and takes no jobs is not well."""

from __future__ import annotations

from typing import Any

import pytest

from packhorse.core.clock import MINUTE, SECOND, ManualClock
from packhorse.core.event import Subject
from packhorse.core.job import NewJob
from packhorse.monitor import health
from packhorse.monitor.health import CHECKS, Caller, Check, Facts, Finding, Severity, findings
from packhorse.storage import open_storage
from packhorse.storage.contract import Storage
from packhorse.storage.memory import Memory
from packhorse.storage.records import WorkerInfo
from packhorse.storage.transfer import Move, Stage


@pytest.fixture
def storage() -> Storage:
    return open_storage("memory://")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def probe(storage: Storage, caller: Caller = Caller.CHECK) -> list[Finding]:
    return list(findings(Facts(storage, 15 * SECOND, max_age=5 * MINUTE), caller))


def foreman_finding(storage: Storage, **reports: dict[str, Any]) -> Finding:
    for place, (name, report) in enumerate(reports.items()):
        storage.join(WorkerInfo(name, Subject.FOREMAN, host="mule", pid=11 + place))
        storage.heartbeat({name: report})
    return next(finding for finding in probe(storage) if finding.name == "foreman")


@pytest.mark.parametrize(
    ("report", "told"),
    [
        ({"state": "quiet"}, "is quiet: it takes no jobs"),
        ({"state": "working", "max": 0}, "keeps no workers"),
        ({"state": "stopping"}, "is stopping: it takes no more jobs"),
        ({"state": "unhealthy", "problem": "no module named shop"}, "cannot start its workers: no module named shop"),
        (
            {"state": "working", "max": 4, "online": 0, "next_start_in": 4.0, "problem": "worker 7 died"},
            "has no worker: worker 7 died",
        ),
    ],
)
def test_a_lone_foreman_that_takes_no_jobs_is_not_well(storage: Storage, report: dict[str, Any], told: str):
    found = foreman_finding(storage, boss=report)

    assert not found.is_ok
    assert found.sentence == f"1 foreman alive; the foreman mule:11 {told}"


def test_one_that_takes_jobs_is_enough_and_the_other_is_told(storage: Storage):
    found = foreman_finding(storage, boss={"state": "quiet"}, other={"state": "working", "max": 4})

    assert found == Finding("foreman", Severity.OK, "2 foremen alive", "the foreman mule:11 is quiet: it takes no jobs")


@pytest.mark.parametrize(
    "report",
    [
        {},  # it has just begun
        {"state": "working", "min": 0, "max": 4, "online": 0},  # it starts one when there is work
        {"state": "working", "max": 4, "online": 1, "next_start_in": 4.0},  # one of two does not start
    ],
)
def test_a_foreman_that_takes_jobs_is_well(storage: Storage, report: dict[str, Any]):
    assert foreman_finding(storage, boss=report) == Finding("foreman", Severity.OK, "1 foreman alive")


# --- queues that nobody serves ----------------------------------------------------------------------------------------


def served_findings(storage: Storage, clock: ManualClock, seconds: float, **info: Any) -> list[str]:
    """What is found when a job of `send` has waited so long in `bulk`, and one worker is there."""
    storage.enqueue([NewJob("one", "send", "bulk")])
    clock.turn(seconds)
    storage.join(WorkerInfo("ann", queues=["post"], info={"serves": ["post"], "tasks": ["send"], **info}))
    return [found.sentence for found in probe(storage) if found.name == "served" and not found.is_ok]


def test_jobs_in_a_queue_that_no_worker_serves_are_not_well(clock: ManualClock):
    assert served_findings(Memory(clock), clock, 60) == [
        "no running worker serves bulk; 1 job waits; its oldest job has waited 1m"
    ]


def test_a_worker_that_serves_the_queue_may_be_about_to_start(clock: ManualClock):
    assert served_findings(Memory(clock), clock, 10) == []


def test_a_worker_that_serves_every_queue_of_its_tasks_is_enough(clock: ManualClock):
    assert served_findings(Memory(clock), clock, 60, serves=["*"]) == []


def test_while_there_is_no_worker_a_foreman_starts_one(clock: ManualClock):
    storage = Memory(clock)
    storage.enqueue([NewJob("one", "send", "bulk")])
    clock.turn(60)
    storage.join(WorkerInfo("boss", Subject.FOREMAN))

    assert "served" not in [found.name for found in probe(storage)]


# --- what waits -------------------------------------------------------------------------------------------------------


def oldest_finding(storage: Storage) -> str:
    return next(each.sentence for each in probe(storage) if each.name == "oldest")


def test_jobs_that_wait_in_paused_queues_are_told(clock: ManualClock):
    storage = Memory(clock)
    storage.enqueue([NewJob("one", "send", "bulk"), NewJob("two", "send", "bulk"), NewJob("three", "send", "mail")])
    for queue in ("bulk", "mail", "empty"):
        storage.pause(queue)

    both = oldest_finding(storage)
    storage.resume("mail")
    one_of_them = oldest_finding(storage)
    storage.resume("bulk")

    assert both == "no job waits in line; 3 wait in 2 paused queues"
    assert one_of_them == "the oldest waiting job, of mail, has waited 0ms; 2 wait in the paused queue bulk"
    assert "paused" not in oldest_finding(storage)


# --- the list ---------------------------------------------------------------------------------------------------------


def test_a_new_check_reaches_every_caller_but_readiness(storage: Storage, monkeypatch: pytest.MonkeyPatch):
    new = Check(lambda facts: iter([Finding("new", Severity.BAD, "it is new")]))
    monkeypatch.setattr(health, "CHECKS", (*CHECKS, new))

    reached = {caller for caller in Caller if "new" in [each.name for each in probe(storage, caller)]}

    assert reached == set(Caller) - {Caller.READYZ}


def test_of_a_moved_storage_nothing_else_matters(storage: Storage):
    storage.set_move(Move("copy-1", Stage.MOVED, "postgresql://there/jobs", 1), expected=None)

    for caller in set(Caller) - {Caller.READYZ}:
        (found,) = probe(storage, caller)
        assert not found.is_ok
        assert found.fix == "use the new one: postgresql://there/jobs"
