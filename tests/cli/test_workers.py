"""Who works: foremen with their workers, what they hold, and who is gone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any

import pytest

from packhorse.core import clock
from packhorse.core.clock import SECOND
from packhorse.core.event import Subject
from packhorse.storage import Storage, open_storage
from packhorse.storage.records import WorkerInfo
from tests.cli.conftest import Call
from tests.cli.test_looking import lines
from tests.cli.yard import FOREMAN, WORKER, Yard


def test_workers_stand_below_their_foreman_with_what_they_hold(yard: Yard, packhorse: Call):
    yard.in_every_state()

    rows = packhorse("workers").stdout.splitlines()
    listed = lines(packhorse("workers", "--json").stdout)

    assert [row.split()[0] for row in rows[1:]] == [FOREMAN, WORKER]
    assert [worker["holds"] for worker in listed] == [0, 2]
    assert all(worker["is_alive"] for worker in listed)


def test_in_a_pipe_workers_and_foremen_say_how_they_are(yard: Yard, packhorse: Call):
    yard.storage.join(WorkerInfo("f1", Subject.FOREMAN, host="mule", pid=1))
    yard.storage.join(WorkerInfo("w1", foreman="f1", host="mule", pid=2))
    yard.storage.heartbeat({"f1": {"state": "working"}, "w1": {"state": "working"}})

    lines = packhorse("workers").stdout.splitlines()

    place = lines[0].split().index("STATE")
    cells = {line.split()[0]: line.split() for line in lines[1:]}
    assert (cells["f1"][place], cells["w1"][place]) == ("working", "working")


@pytest.mark.parametrize(
    ("queues", "serves", "told"),
    [
        ([], ["bulk.*"], ["bulk.*"]),
        (["mail"], ["mail", "bulk.*"], ["mail", "bulk.*"]),
        (["mail", "slow"], ["*"], ["mail", "slow", "*"]),
        (["mail"], None, ["mail"]),  # of a foreign program
    ],
)
def test_what_a_worker_serves_is_listed_with_its_patterns(
    yard: Yard, packhorse: Call, queues: list[str], serves: list[str] | None, told: list[str]
):
    info = {} if serves is None else {"serves": serves, "tasks": ["resize"]}
    yard.storage.join(WorkerInfo("w1", host="mule", pid=2, queues=queues, info=info))

    table, (listed,) = packhorse("workers").stdout.splitlines(), lines(packhorse("workers", "--json").stdout)

    assert table[1].endswith(f"  {', '.join(told)}")
    assert listed["queues"] == told


@contextmanager
def before(yard: Yard, seconds: int) -> Iterator[Storage]:
    """The same storage, so long ago."""
    storage = open_storage(yard.url, now=lambda: clock.now() - seconds * SECOND)
    yield storage
    storage.close()


def test_who_has_just_fallen_silent_is_marked_also_for_programs(yard: Yard, packhorse: Call, monkeypatch: Any):
    monkeypatch.setenv("PACKHORSE_LEASE", "1h")  # the grace is twelve minutes then
    yard.join()
    with before(yard, 3_900) as then:
        then.join(WorkerInfo("silent-worker"))

    rows = [line.split() for line in packhorse("workers").stdout.splitlines()]
    times = [word for word in rows[-1] if word.startswith("20")]

    assert ["silent" in row for row in rows] == ["silent-worker" in row for row in rows] == [False] * 3 + [True]
    assert len([datetime.fromisoformat(time) for time in times]) == 2  # when it came, and its last beat


def test_who_is_gone_is_told_with_what_it_held_and_no_longer_listed(yard: Yard, packhorse: Call):
    job = yard.add()
    with before(yard, 3_600) as then:
        then.join(WorkerInfo("f9", Subject.FOREMAN, host="ox", pid=8))
        then.join(WorkerInfo("w9", foreman="f9", host="ox", pid=9))
        (taken,) = then.reserve("w9", {"resize": 1}, 1)
    assert taken.id == job.id

    result = packhorse("workers")
    gone = lines(packhorse("workers", "--gone", "--json").stdout)

    assert result.stdout == ""
    assert "No worker is running." in result.stderr
    assert "the foreman ox:8 and its worker fell silent 20" in result.stderr
    assert "and held 1 job\n" in result.stderr
    assert "No foreman is there to take their jobs back. Start one: packhorse work" in result.stderr
    assert lines(packhorse("workers", "--json").stdout) == []
    assert [(each["id"], each["is_alive"], each["holds"]) for each in gone] == [("f9", False, 0), ("w9", False, 1)]
    assert "the foreman ox:8 and its worker fell silent" in packhorse("status").stdout


def a_crew_of_a_patient_app(yard: Yard) -> None:
    """Of an app with `lease="90s", heartbeat="30s"` in its code, which the command line does not import: the last beat
    was 20 s ago, and the next one comes in 10 s."""
    with before(yard, 20) as then:
        then.join(WorkerInfo("f9", Subject.FOREMAN, host="ox", pid=8, info={"lease_s": 90.0}))
        then.join(WorkerInfo("w9", foreman="f9", host="ox", pid=9, queues=["resize"], info={"lease_s": 90.0}))


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["workers"], "w9"),
        (["status"], "1 worker"),
        (["check"], "1 foreman alive"),
        (["doctor"], "every process has given a sign of life within its lease"),
        ([], "1 worker is running"),
        (["quiet", "ox:8"], "ox:8"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_who_may_be_silent_for_longer_than_others_is_told_as_alive(
    yard: Yard, packhorse: Call, words: list[str], told: str
):
    a_crew_of_a_patient_app(yard)

    result = packhorse(*words)

    assert told in result.stdout
    assert "silent" not in result.output.replace("silence", "")


def test_a_queue_that_a_patient_worker_alone_does_not_serve_is_warned_of(yard: Yard, packhorse: Call):
    a_crew_of_a_patient_app(yard)

    result = packhorse("enqueue", "resize", "--queue", "mail", "--force")

    assert "no running worker serves mail" in result.stderr


def test_who_beats_again_is_listed_again(yard: Yard, packhorse: Call):
    with before(yard, 3_600) as then:
        then.join(WorkerInfo("frozen"))
    assert lines(packhorse("workers", "--json").stdout) == []

    yard.storage.heartbeat({"frozen": {}})

    assert [worker["id"] for worker in lines(packhorse("workers", "--json").stdout)] == ["frozen"]
    assert "Nobody is gone" in packhorse("workers", "--gone").stderr


def test_many_workers_are_told_in_two_reads(yard: Yard, packhorse: Call):
    everybody = [f"w{number}" for number in range(30)]
    for owner in everybody:
        yard.storage.join(WorkerInfo(owner, host="mule", concurrency=25))
    for _ in range(300):
        yard.add()
    for owner in everybody:
        assert len(yard.storage.reserve(owner, {"resize": 1}, 10)) == 10

    result = packhorse("workers", "--trace", "--json")

    told = [line.split()[:2] for line in result.stderr.splitlines()]
    assert told[0] == ["2", "calls"]
    assert {name: calls for name, calls, *_ in told[2:]} == {"find": "1", "workers": "1"}
    assert [worker["holds"] for worker in lines(result.stdout)] == [10] * 30


def test_no_workers_is_told_with_how_many_jobs_wait(yard: Yard, packhorse: Call):
    yard.add()
    yard.add()

    assert "No worker is running. 2 jobs wait." in packhorse("workers").stderr
