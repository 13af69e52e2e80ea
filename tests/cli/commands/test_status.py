"""`packhorse status`: everything on one screen."""

from __future__ import annotations

import json

import pytest
from msgspec.structs import replace

from packhorse.cli.commands.status import Flow, Snapshot, bars, flow_of, status_lines, take_snapshot
from packhorse.core.clock import HOUR, MINUTE, SECOND
from packhorse.core.event import Subject
from packhorse.core.job import State
from packhorse.core.outcome import Completed
from packhorse.core.settings import Settings
from packhorse.monitor.health import Finding, Severity
from packhorse.storage.records import Health, Point, QueueInfo, WorkerInfo
from tests.cli.conftest import Call
from tests.cli.sample_storage import FOREMAN, WORKER, SampleStorage
from tests.cli.terminal import Terminal
from tests.cli.test_terminal import on_terminal, plain

NOON = 1_800_000_000 * SECOND


def test_it_tells_of_storage_workers_the_last_hour_and_each_queue(sample: SampleStorage, packhorse: Call):
    sample.in_every_state()
    sample.storage.heartbeat({FOREMAN: {}, WORKER: {"busy": 4}})

    result = packhorse("status")

    assert result.exit_code == 0
    assert "packhorse.db (SQLite, " in result.stdout
    assert "1 host, 1 worker, 2/4 slots busy, up " in result.stdout
    assert json.loads(packhorse("status", "--json").stdout)["totals"]["busy"] == 2
    assert "last hour 1 done" in result.stdout
    assert "2 failed" in result.stdout
    queues = [line.split()[0] for line in result.stdout.splitlines() if line.startswith(("for-", "resize "))]
    assert sorted(queues) == sorted(["resize", *(f"for-{state}" for state in State if state != "scheduled")])


def test_scheduled_jobs_are_counted_where_there_are_80_columns(sample: SampleStorage):
    sample.job("scheduled")
    snapshot = take_snapshot(sample.storage, Settings())

    lines = list(status_lines(snapshot, 80))

    (title,) = [line for line in lines if "QUEUED" in line]
    (row,) = [line for line in lines if plain(line).startswith("resize ")]
    assert max(map(len, map(plain, (title, row)))) <= 80
    place = plain(title).index("SCHEDULED") + len("SCHEDULED") - 1
    assert plain(row)[place] == "1"


def test_a_dead_worker_is_told_as_a_halt_and_not_as_a_failure(sample: SampleStorage, packhorse: Call):
    halted = sample.halt(sample.add())

    assert "last hour: nothing ran, 1 came in   1 halted" in packhorse("status").stdout

    sample.finish(Completed(sample.start(halted).token))

    assert "0 failed (0 %)   1 halted" in packhorse("status").stdout
    assert json.loads(packhorse("status", "--json").stdout)["totals"]["failed"] == 0


def test_an_empty_storage_says_what_to_do_next(sample: SampleStorage, packhorse: Call):
    sample.storage.join(WorkerInfo("w1"))
    sample.storage.leave("w1")

    result = packhorse("status")

    assert "no worker is running" in result.stdout
    assert "There are no jobs yet. Enqueue one: packhorse enqueue NAME" in result.stdout


def test_what_needs_attention_is_told_with_what_to_try(sample: SampleStorage, packhorse: Call):
    sample.add(queue="mail")
    sample.storage.pause("mail", by="ann", why="no server\x1b[2J")

    result = packhorse("status")

    assert "! no worker is running; 1 job waits.  Try: packhorse work" in result.stdout
    assert "! the queue mail is paused; 1 job waits in it; paused by ann" in result.stdout
    assert "no server\\x1b[2J.  Try: packhorse resume mail" in result.stdout


def test_a_quiet_foreman_is_reported(sample: SampleStorage, packhorse: Call):
    sample.join()
    sample.storage.heartbeat({FOREMAN: {"state": "quiet"}})
    sample.add(queue="print")

    result = packhorse("status")

    assert "! no jobs are taken; the foreman mule:11 is quiet" in result.stdout
    assert "Try: packhorse restart" in result.stdout


def test_a_foreman_without_workers_is_told_to_keep_some(sample: SampleStorage, packhorse: Call):
    sample.join()
    sample.storage.leave(WORKER)
    sample.storage.heartbeat({FOREMAN: {"state": "working", "wanted": 0, "max": 0}})
    sample.add()

    told = packhorse("status").stdout

    assert "1 foreman, but no worker is running" in told
    assert "the foreman mule:11 keeps no workers.  Try: packhorse scale 1 mule:11" in told
    assert "packhorse work" not in told


def test_json_has_the_numbers_of_the_api(sample: SampleStorage, packhorse: Call):
    sample.in_every_state()

    told = json.loads(packhorse("status", "--json").stdout)

    assert told["totals"]["states"] == dict.fromkeys(State, 1)
    assert told["totals"]["workers"] == 1
    assert told["storage"]["kind"] == "sqlite"
    assert told["last_hour"]["completed"] == 1
    assert {queue["name"] for queue in told["queues"]} >= {"resize", "for-dead"}
    assert all(set(notice) == {"sentence", "hint"} for notice in told["notices"])


@pytest.mark.parametrize("width", [60, 80, 120])
def test_it_fits_the_screen(sample: SampleStorage, width: int):
    sample.in_every_state()
    sample.add(queue="a-queue-with-a-name-that-is-longer-than-anybody-would-want-it-to-be-" + "x" * 40)
    sample.storage.join(WorkerInfo("f2", Subject.FOREMAN, host="a-host-with-a-long-name.example.org", pid=1))

    _, seen = on_terminal(sample, "status", width=width)

    assert max(map(len, plain(seen).splitlines())) <= width


def test_a_long_warning_is_wrapped_and_not_cut():
    problem = "the disk on which all of this lies is nearly full and nobody has made room on it yet " * 2
    health = Health("sqlite", "", "3", 1, 1, problems=[problem.strip()])

    findings = [Finding("storage", Severity.NOTE, problem.strip(), fix="packhorse storage")]
    snapshot = Snapshot(NOON, 15 * SECOND, health, [], [], [], findings=findings)

    lines = "\n".join(status_lines(snapshot, 60)).splitlines()

    assert max(map(len, lines)) <= 60
    assert f"! {problem.strip()}. Try: packhorse storage" in " ".join(" ".join(lines).split())


def test_watching_goes_on_until_ctrl_c(sample: SampleStorage):
    sample.add(queue="mail")

    with Terminal(sample, "status", "--watch", "--every", "100ms") as terminal:
        terminal.read_until("mail", times=3)
        terminal.write(b"\x03")
        assert terminal.wait() == 0


# --- what a snapshot comes to -----------------------------------------------------------------------------------------


def test_rates_are_of_five_minutes_and_bars_of_an_hour():
    now = NOON + 30 * SECOND
    points = [
        Point(NOON, "mail", "send", {"added": 27, "completed": 9}),
        Point(NOON - 3 * MINUTE, "mail", "send", {"added": 27, "completed": 18}),
        Point(NOON - 30 * MINUTE, "mail", "send", {"added": 100, "dead": 4, "failed": 4}),
        Point(NOON - 2 * HOUR, "mail", "send", {"completed": 1_000}),
    ]

    flow = flow_of(points, now)

    assert (flow.comes, flow.ends) == (54 / 270, 27 / 270)
    assert flow.hour == (0, 0, 0, 0, 0, 4, 0, 0, 0, 27)
    assert flow_of([], now) == Flow()


def test_bars_show_shares_and_what_is_there_at_all():
    assert bars([0, 1, 50, 100]) == "▁▂▅█"
    assert bars([0, 0]) == "▁▁"
    assert bars([0, 1, 50, 100], "ascii") == "_.=#"


def test_busy_slots_are_those_of_held_jobs_whatever_the_last_heartbeat_said():
    worker = WorkerInfo("w1", concurrency=2, beat_at=NOON, joined_at=NOON - HOUR, report={"busy": 2})
    snapshot = Snapshot(NOON, 15 * SECOND, Health("sqlite", "", "3", 1, 1), [], [worker], [])

    assert snapshot.slots == (0, 2)
    for running, busy in ((1, 1), (5, 2)):
        queue = QueueInfo("mail", {State.RUNNING: running})
        assert replace(snapshot, queues=[queue]).slots == (busy, 2)
