from __future__ import annotations

import json
import os
import signal
import sqlite3
from pathlib import Path

import pytest

from packhorse.core.clock import SECOND
from packhorse.core.event import Kind, Subject
from packhorse.core.job import RANK_RECOVERED, NewJob
from packhorse.foreman import process_tree
from packhorse.storage.contract import Storage
from packhorse.storage.records import EventFilter, WorkerInfo
from tests.children import PATIENCE, until
from tests.foreman.watching import LEASE, Start, add, remaining_children, state_of

pytestmark = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="looks at processes through /proc")


def events_of(storage: Storage, owner: str) -> list[Kind]:
    return [event.kind for event in storage.events(EventFilter(owner=owner)) if event.subject is not Subject.JOB]


# --- starting and replacing -------------------------------------------------------------------------------------------


def test_a_foreman_starts_the_minimum_and_says_so_in_the_storage(start: Start) -> None:
    foreman = start(online=2, min_workers=2, max_workers=3)

    until(lambda: foreman.report().get("online") == 2, "both are reported")

    record, report = foreman.record(), foreman.report()
    assert record is not None
    assert record.subject is Subject.FOREMAN
    assert (record.info["min"], record.info["max"], record.info["target"]) == (2, 3, "app:app")
    assert record.info["lease_s"] == 600.0
    assert (report["crew"], report["wanted"], report["deaths"], report["state"]) == (2, 2, 0, "working")
    assert all(worker.foreman == record.id and len(worker.id) == 22 for worker in foreman.workers())


def test_the_foreman_sends_heartbeats_and_becomes_steady(start: Start) -> None:
    foreman = start(lease=LEASE)
    (worker,) = foreman.workers()

    until(lambda: foreman.workers()[0].beat_at > worker.beat_at + SECOND // 2, "it was beaten for")

    until(lambda: foreman.report().get("steady"), "a lease without a gap")
    until(lambda: foreman.workers()[0].report.get("slots") == 2, "what it says of itself goes with the beat")


@pytest.mark.parametrize(
    ("facts", "told"),
    [
        ({"signal": signal.SIGKILL}, "was killed by SIGKILL"),
        ({"signal": signal.SIGSEGV}, "was killed by SIGSEGV"),
        ({"code": 3}, "exited with code 3"),
        ({"code": 0}, "exited with code 0 although nothing had asked it to"),
    ],
)
def test_a_dead_worker_is_replaced_and_its_jobs_are_rescued_with_the_reason(
    start: Start, storage: Storage, facts: dict[str, int], told: str
) -> None:
    foreman = start()
    (worker,) = foreman.workers()

    add(storage, 1, "die", **facts)
    until(lambda: Kind.HALTED in [event.kind for event in storage.events(EventFilter(job_id="job-1"))], "rescued")

    (halted, *_) = storage.events(EventFilter(job_id="job-1", kind=Kind.HALTED))
    assert halted.data is not None
    assert halted.data["why"] == f"worker {worker.pid} {told}"
    assert events_of(storage, worker.id) == [Kind.STARTED, Kind.DIED]
    until(lambda: len(foreman.pids() - {worker.pid}) == 1, "there is a worker again")


def test_a_job_that_kills_its_workers_is_dead_after_a_few(start: Start, storage: Storage) -> None:
    foreman = start()

    add(storage, 1, "die", code=3)
    until(lambda: state_of(storage, 1) == "dead", "it has killed as many workers as it may")

    until(lambda: foreman.report().get("deaths") == 3, "three deaths are reported")
    until(lambda: len(foreman.workers()) == 1, "there is a worker again")
    until(lambda: foreman.report().get("rescued") == 3, "each time it was taken back")


def test_what_a_dead_worker_has_started_dies_with_it(start: Start, storage: Storage) -> None:
    foreman = start()
    (worker,) = foreman.workers()
    add(storage, 1, "orphan")
    until(lambda: len(process_tree.session_of(worker.pid)) == 2, "it has a child in a group of its own")
    (orphan,) = process_tree.session_of(worker.pid) - {worker.pid}

    os.kill(worker.pid, signal.SIGKILL)

    until(lambda: not process_tree.is_alive(orphan), "the child is gone")
    until(lambda: foreman.report().get("rescued") == 1, "the job was taken back")


def test_a_restart_tries_a_broken_app_again_immediately(start: Start) -> None:
    foreman = start(online=0, mode="broken", options={"gives_up": True})
    until(lambda: foreman.report().get("starts") == 5, "five have died young")
    until(lambda: foreman.report().get("state") == "unhealthy", "it has given up")
    until(lambda: foreman.report().get("next_start_in", 0) is None, "and will not try again by itself")

    foreman.signal(signal.SIGHUP)

    until(lambda: foreman.report().get("starts") == 10, "five more were tried")


def test_an_app_that_does_not_start_causes_no_storm_of_starts(start: Start) -> None:
    foreman = start(online=0, mode="broken")

    why = "exited with code 1; 5 workers in a row have died young"
    until(lambda: why in (foreman.report().get("problem") or ""), "five have died young")

    report = foreman.report()
    assert report["state"] == "unhealthy"
    assert report["starts"] == 5
    assert report["next_start_in"] > 10, "longer than after any death before"
    assert report["stderr"][-1] == "ImportError: no module named horse"


def test_workers_that_leave_immediately_are_not_replaced_in_a_storm(start: Start) -> None:
    foreman = start(online=0, mode="spent")

    until(lambda: foreman.report().get("state") == "unhealthy", "five have left for nothing")

    assert foreman.report()["starts"] <= 6  # the next may have come before the fifth was gone; then it waits a minute


# --- scaling ----------------------------------------------------------------------------------------------------------


def test_workers_are_added_while_jobs_wait_and_stopped_when_idle(start: Start, storage: Storage) -> None:
    foreman = start(max_workers=3)

    for number in range(6):
        add(storage, number, "hold")
    until(lambda: len(foreman.workers()) == 3, "three workers run six jobs")
    for number in range(6):
        until(lambda number=number: state_of(storage, number) == "running", f"job {number} runs")
    storage.abort([f"job-{number}" for number in range(6)])

    until(lambda: len(foreman.workers()) == 1, "two of them are idle and go")
    assert foreman.report()["deaths"] == 0


def test_with_a_minimum_of_none_a_worker_comes_with_the_first_job_and_goes_after_the_last(
    start: Start, storage: Storage
) -> None:
    foreman = start(online=0, min_workers=0)
    until(lambda: foreman.report().get("wanted") == 0, "no worker is wanted")

    add(storage, 1)

    until(lambda: state_of(storage, 1) == "completed", "a worker came")
    until(lambda: not foreman.workers(), "and went")


def test_a_forced_job_that_finds_every_slot_busy_gets_a_worker_of_its_own(start: Start, storage: Storage) -> None:
    foreman = start(concurrency=1, max_forced=1)
    add(storage, 1, "hold")
    until(lambda: state_of(storage, 1) == "running", "the only slot is busy")
    add(storage, 2)

    storage.force_start(["job-2"])

    until(lambda: state_of(storage, 2) == "completed", "it ran beside the other")
    until(lambda: len(foreman.workers()) == 1, "the extra worker has gone")
    assert state_of(storage, 1) == "running"


# --- signals ----------------------------------------------------------------------------------------------------------


def test_on_term_the_workers_drain(start: Start, storage: Storage) -> None:
    foreman = start()
    add(storage, 1, "hold")
    until(lambda: state_of(storage, 1) == "running", "a job runs")

    foreman.signal(signal.SIGTERM)
    until(lambda: foreman.report().get("state") == "stopping" and not foreman.takes_jobs(), "it stops")
    add(storage, 2)
    storage.abort(["job-1"])  # which ends it
    until(foreman.is_over, "the foreman has ended")

    assert foreman.process.returncode == 0
    assert state_of(storage, 1) == "aborted"
    assert state_of(storage, 2) == "queued"
    assert storage.workers() == []


def test_a_worker_whose_first_message_was_not_read_yet_is_drained_too(
    start: Start, storage: Storage, tmp_path: Path
) -> None:
    """It may have begun jobs since it sent that."""
    foreman = start(options={"is_deaf": True})
    end = tmp_path / "end"
    add(storage, 1, "wait", **{"for": str(end)})
    until(lambda: state_of(storage, 1) == "running", "a job runs")

    foreman.signal(signal.SIGTERM)
    until(lambda: foreman.report().get("state") == "stopping", "it stops")
    end.touch()
    until(foreman.is_over, "the foreman has ended")

    assert foreman.process.returncode == 0
    assert state_of(storage, 1) == "completed"
    assert Kind.READDED not in [event.kind for event in storage.events(EventFilter(job_id="job-1"))]
    assert storage.workers() == []


@pytest.mark.parametrize(("number", "state"), [(signal.SIGTERM, "stopping"), (signal.SIGUSR1, "quiet")])
def test_others_see_immediately_that_it_takes_no_jobs(
    start: Start, storage: Storage, number: signal.Signals, state: str
) -> None:
    foreman = start(heartbeat=600 * SECOND, lease=1_800 * SECOND)  # nothing waits for that
    add(storage, 1, "hold")
    until(lambda: state_of(storage, 1) == "running", "a job runs")

    foreman.signal(number)

    until(lambda: foreman.report().get("state") == state, "it says so")


def test_a_second_term_stops_immediately_and_releases_what_ran(start: Start, storage: Storage) -> None:
    foreman = start()
    (worker,) = foreman.workers()
    add(storage, 1, "hold")
    until(lambda: state_of(storage, 1) == "running", "a job runs")

    foreman.signal(signal.SIGTERM)
    until(lambda: foreman.report().get("state") == "stopping", "it stops")
    foreman.signal(signal.SIGTERM)
    until(foreman.is_over, "the foreman has ended")

    job = storage.get("job-1")
    assert job is not None
    assert (job.state, job.halts, job.losses) == ("queued", 0, 0)
    (readded,) = storage.events(EventFilter(job_id="job-1", kind=Kind.READDED))
    why = f"worker {worker.pid} was killed: the foreman was told to stop immediately (SIGTERM)"
    assert (readded.data or {})["why"] == why
    assert foreman.process.returncode == 128 + signal.SIGTERM
    assert events_of(storage, worker.id) == [Kind.STARTED, Kind.KILLED]
    assert not process_tree.is_alive(worker.pid)


def test_a_worker_that_does_not_obey_is_killed_when_the_grace_is_over(start: Start, storage: Storage) -> None:
    foreman = start(mode="stubborn", stop_grace=0)
    (worker,) = foreman.workers()

    foreman.signal(signal.SIGINT)
    until(foreman.is_over, "the foreman has ended")

    (killed,) = storage.events(EventFilter(owner=worker.id, kind=Kind.KILLED))
    why = f"worker {worker.pid} was killed: the foreman was told to stop (SIGINT)"
    assert (killed.data or {})["why"] == why
    assert foreman.process.returncode == 0
    assert not process_tree.is_alive(worker.pid)
    assert storage.workers() == []


def test_hup_replaces_the_workers_one_by_one(start: Start) -> None:
    foreman = start(online=2, min_workers=2, max_workers=2)
    old = foreman.pids()

    foreman.signal(signal.SIGHUP)
    sizes = set()

    def is_replaced() -> bool:
        pids = foreman.pids()
        sizes.add(len(pids))
        return len(pids) == 2 and not pids & old

    until(is_replaced, "two others are at work")
    assert sizes <= {2, 3, 4}
    assert foreman.report()["deaths"] == 0


def test_quiet_workers_take_no_more_jobs(start: Start, storage: Storage) -> None:
    foreman = start(max_workers=3)

    foreman.signal(signal.SIGUSR1)
    until(lambda: foreman.report().get("state") == "quiet" and not foreman.takes_jobs(), "it is quiet")
    add(storage, 1)
    (worker,) = foreman.workers()
    os.kill(worker.pid, signal.SIGKILL)
    until(lambda: foreman.pids() and worker.pid not in foreman.pids(), "the replacement is online")
    until(lambda: not foreman.takes_jobs(), "and has heard it too")

    until(lambda: foreman.report().get("backlog") == 1, "the job is seen to wait")
    assert state_of(storage, 1) == "queued"
    assert foreman.report()["wanted"] == 1


def test_ttin_shows_what_everybody_is_doing(start: Start) -> None:
    foreman = start()

    foreman.signal(signal.SIGTTIN)
    shown = ""
    assert foreman.process.stderr is not None
    while not ("the stacks of a worker" in shown and "in _turn" in shown):  # two signals may arrive in any order
        line = foreman.process.stderr.readline()
        assert line, "it has ended without a word"
        shown += line

    foreman.signal(signal.SIGTERM)
    foreman.process.communicate(timeout=PATIENCE)


# --- orders that come through the storage -----------------------------------------------------------------------------


def test_an_abort_is_handed_on_long_before_the_next_heartbeat(start: Start, storage: Storage) -> None:
    start(heartbeat=300 * SECOND, lease=900 * SECOND)
    add(storage, 1, "hold")
    until(lambda: state_of(storage, 1) == "running", "it runs")

    storage.abort(["job-1"])

    until(lambda: state_of(storage, 1) == "aborted", "it was stopped")


@pytest.mark.parametrize("mode", ["obedient", "stubborn"])
def test_a_forgotten_worker_is_replaced_and_has_not_died(start: Start, storage: Storage, mode: str) -> None:
    foreman = start(mode=mode)
    (worker,) = foreman.workers()

    storage.rescue_owner(worker.id, foreman=worker.id, why="another foreman thought it dead")

    until(lambda: not process_tree.is_alive(worker.pid), "it has quit, or was killed for not doing so")
    until(lambda: foreman.report().get("starts") == 2 and foreman.report().get("leaving") == 0, "another has come")
    assert (foreman.report()["deaths"], foreman.report()["problem"]) == (0, None)


def test_a_forgotten_foreman_joins_again_under_a_new_id(start: Start, storage: Storage) -> None:
    foreman = start()
    first = foreman.record()
    assert first is not None

    storage.rescue_owner(first.id, foreman=first.id, why="another foreman thought it dead")
    until(lambda: foreman.record() is not None, "it has joined again")

    again = foreman.record()
    assert again is not None
    assert again.id != first.id
    assert not again.report.get("steady")


def test_a_worker_that_a_signal_has_stopped_is_killed_before_its_lease_is_over(start: Start, storage: Storage) -> None:
    foreman = start(lease=LEASE)
    (worker,) = foreman.workers()

    add(storage, 1, "freeze")
    until(lambda: not process_tree.is_alive(worker.pid), "it is killed when its lease is almost over")

    until(lambda: foreman.pids() and worker.pid not in foreman.pids(), "another takes its place")
    assert events_of(storage, worker.id) == [Kind.STARTED, Kind.DIED]


def test_a_worker_that_a_signal_stops_before_it_is_online_is_killed_too(start: Start) -> None:
    foreman = start(online=0, mode="frozen", lease=LEASE)
    until(lambda: remaining_children([foreman]), "it is started")
    pid = remaining_children([foreman])[0]

    until(lambda: not process_tree.is_alive(pid), "it is killed when a lease is almost over")


# --- outages and deaths of the foreman --------------------------------------------------------------------------------


def test_a_foreman_and_its_workers_survive_a_storage_that_is_away(start: Start, storage: Storage, url: str) -> None:
    foreman = start(patience="0.2s", lease=LEASE)
    pids = foreman.pids()
    until(lambda: foreman.report().get("steady"), "all is well")
    lock = sqlite3.connect(url.removeprefix("sqlite:///").partition("?")[0], timeout=PATIENCE, isolation_level=None)

    lock.execute("BEGIN IMMEDIATE")
    away_at = storage.now()
    until(lambda: storage.now() - away_at > 1.5 * SECOND, "longer than a lease has passed")
    back_at = storage.now()
    lock.close()
    beats: list[WorkerInfo] = []  # that were seen since then

    def may_rescue() -> bool:
        record = foreman.record()
        if record is not None and record.beat_at > (beats[-1].beat_at if beats else back_at):
            beats.append(record)
        return len(beats) > 1 and beats[-1].report["steady"]  # what goes with the first may be from before

    until(may_rescue, "it beats again, and is steady again")
    assert beats[-1].beat_at - back_at > LEASE // 2, "not before it has beaten for a lease, give or take its patience"
    assert foreman.pids() == pids
    add(storage, 1)
    until(lambda: state_of(storage, 1) == "completed", "and at work")


def test_nothing_survives_a_foreman_that_is_killed(start: Start, scratch: Path) -> None:
    foreman = start(online=2, min_workers=2, max_workers=2)
    until(lambda: foreman.report().get("online") == 2, "both have said that they are online")
    until(lambda: not boards_in(scratch), "and no shared status has a name any more")
    pids = foreman.pids()

    foreman.process.kill()
    foreman.process.wait()

    until(lambda: not any(map(process_tree.is_alive, pids)), "its workers are gone")
    assert remaining_children([foreman]) == []
    assert boards_in(scratch) == []


def boards_in(scratch: Path) -> list[Path]:
    """All files but the signs of life. The next foreman removes those: `tests/monitor/test_local_liveness.py`."""
    return [path for path in scratch.iterdir() if not path.name.startswith("packhorse-foreman-")]


def test_what_former_processes_held_is_recovered_at_start_and_goes_first(start: Start, storage: Storage) -> None:
    former = start()
    add(storage, 1, "hold")
    until(lambda: state_of(storage, 1) == "running", "a job runs")
    (worker,) = former.workers()
    former.process.kill()
    former.process.wait()
    until(lambda: not process_tree.is_alive(worker.pid), "the worker is gone")
    elsewhere = WorkerInfo("elsewhere", host="another-machine", pid=worker.pid)
    storage.join(elsewhere)

    start(min_workers=0, online=0)
    until(lambda: "job-1" in [event.job_id for event in storage.events(EventFilter(kind=Kind.HALTED))], "recovered")

    assert events_of(storage, worker.id) == [Kind.STARTED, Kind.DIED]
    (readded,) = storage.events(EventFilter(job_id="job-1", kind=Kind.HALTED))
    assert readded.data is not None
    assert "was gone when a foreman started" in readded.data["why"]
    job = storage.get("job-1")
    assert job is not None
    assert job.rank == RANK_RECOVERED
    assert "elsewhere" in [each.id for each in storage.workers()]


def test_another_foreman_rescues_what_a_killed_one_held(start: Start, storage: Storage) -> None:
    lost = start(chores="all", concurrency=1)
    job = add(storage, 1, "hold")
    until(lambda: state_of(storage, 1) == "running", "a job runs")
    (worker,) = lost.workers()
    heir = start(chores="all", online=2, lease=LEASE)
    until(lambda: heir.report().get("steady"), "it has beaten for a lease")

    lost.process.kill()

    until(lambda: (storage.get("job-1") or job).owner not in (worker.id, None), "another worker has it")
    assert events_of(storage, worker.id) == [Kind.STARTED, Kind.DIED]


def test_the_chores_go_on_though_they_fail(start: Start) -> None:
    foreman = start(chores="failing")
    assert foreman.process.stdout is not None

    lines = [foreman.process.stdout.readline().strip() for _ in range(4)]

    assert lines == ["chore 1", "chore 2", "chore 3", "chore 4"]
    assert foreman.process.poll() is None


def test_in_a_burst_the_foreman_ends_when_its_workers_find_nothing_more(start: Start, storage: Storage) -> None:
    add(storage, 1)

    foreman = start(online=0, options={"burst": True, "worker_arguments": ["--burst"]})
    until(foreman.is_over, "it has ended")

    assert foreman.process.returncode == 0
    assert state_of(storage, 1) == "completed"
    assert storage.workers() == []
    started = storage.events(EventFilter(subject=Subject.WORKER, kind=Kind.STARTED))
    assert len(started) == 1, "a worker that found nothing more is not replaced"


def test_in_a_burst_a_worker_is_not_replaced_even_if_its_exit_comes_first(
    start: Start, storage: Storage, tmp_path: Path
) -> None:
    end = tmp_path / "end"
    add(storage, 1, "wait", **{"for": str(end)})
    foreman = start(options={"burst": True, "worker_arguments": ["--burst"]})
    (worker,) = foreman.workers()
    until(lambda: state_of(storage, 1) == "running", "it runs the job")

    foreman.process.send_signal(signal.SIGSTOP)
    end.touch()
    until(lambda: not process_tree.is_alive(worker.pid), "it has ended, and the foreman has heard nothing yet")
    foreman.process.send_signal(signal.SIGCONT)
    until(foreman.is_over, "it has ended")

    started = storage.events(EventFilter(subject=Subject.WORKER, kind=Kind.STARTED))
    assert len(started) == 1


def test_in_a_burst_a_worker_that_makes_room_is_replaced_until_nothing_is_left(start: Start, storage: Storage) -> None:
    for number in range(3):
        add(storage, number, "finish")
    options = {"burst": True, "worker_arguments": ["--burst", "--max-jobs", "1"]}

    foreman = start(online=0, concurrency=1, options=options)
    until(foreman.is_over, "it has ended")

    assert foreman.process.returncode == 0
    assert [state_of(storage, number) for number in range(3)] == ["completed"] * 3


def test_a_worker_that_does_not_end_a_job_in_time_is_killed_before_anybody_else_runs_it(
    start: Start, storage: Storage
) -> None:
    foreman = start(chores="all", concurrency=1, lease=LEASE)
    (worker,) = foreman.workers()
    args = json.dumps({"do": "stick"})
    storage.enqueue([NewJob(id="job-1", task="send", queue="work", args=args, timeout=SECOND // 10)])

    until(lambda: state_of(storage, 1) == "retrying", "the attempt is over")

    assert not process_tree.is_alive(worker.pid)
    (failed,) = storage.events(EventFilter(job_id="job-1", kind=Kind.FAILED))
    assert failed.data is not None
    assert (failed.data["reason"], failed.owner) == ("JOB_TIMEOUT", worker.id)
    assert storage.events(EventFilter(job_id="job-1", kind=Kind.HALTED)) == []
