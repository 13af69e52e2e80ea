"""Real foremen, workers and children are killed, frozen and cut off from their storage. After each of these nothing is
lost, nothing has ended twice, and nothing is left over; see `soundness.py`. How long it took is printed."""

from __future__ import annotations

import os
import signal
import sqlite3
import time
from contextlib import suppress
from pathlib import Path

import pytest

from packhorse.core.clock import SECOND
from packhorse.core.event import Kind
from packhorse.core.job import ABORTED, COMPLETED, DEAD, RUNNING, Reason
from packhorse.foreman.process_tree import is_alive
from tests.children import PATIENCE
from tests.system.conftest import Tell, hold_trial
from tests.system.ledger import Line
from tests.system.sites import LEASE, Site, has_two_sleepers, kill, new_job, until
from tests.system.soundness import assert_sound

pytestmark = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="looks at processes through /proc")


def seconds_until_rerun(site: Site, job_id: str, died_at: float) -> float:
    """From a death until a job that it hit begins again."""
    (again,) = site.until_begun(job_id, runs=2)
    return again.at / 1e6 - died_at


def has_ended(site: Site, line: Line) -> bool:
    """Has this very run come to its end?"""
    return line.run in [end.run for end in site.ledger.ended(line.job_id)]


def kill_all(site: Site, first: int) -> None:
    """Kill everybody, first this one, who else would see the others die."""
    kill(first)

    def is_done() -> bool:
        left = site.processes()  # somebody may have started another in between
        for pid in left:
            with suppress(ProcessLookupError):  # who dies takes others along, before we come to them
                kill(pid)
        return not left

    until(is_done, "everybody is dead")


# --- deaths -----------------------------------------------------------------------------------------------------------


def test_the_jobs_of_a_killed_worker_run_again_at_once(site: Site, tell: Tell) -> None:
    crew = site.start(workers=2, slots=2)
    victim, other = crew.workers()
    site.freeze(other.pid)
    site.add("nap", number=50)  # so that the victim knows that naps are short, and buffers many
    site.until_final()
    jobs = site.send([new_job("nap", {"seconds": 600 if number < 2 else 0}) for number in range(22)])
    begun, others = jobs[:2], jobs[2:]
    site.until_begun(*begun)
    site.freeze(victim.pid)  # on a busy machine it may have handed back some of the others by now, or not taken them
    held = {job.id for job in site.storage.get_many(others) if job.owner == victim.id}
    os.kill(other.pid, signal.SIGCONT)

    died_at = kill(victim.pid)
    took = [seconds_until_rerun(site, job_id, died_at) for job_id in begun]
    site.until_final()

    tell(f"run again {max(took) * 1000:.0f} ms after the death of the worker")
    assert [(job.halts, job.losses) for job in site.storage.get_many(begun)] == [(1, 1)] * 2
    assert {job.halts for job in site.storage.get_many(others)} == {0}, "whoever only waited is not blamed"
    assert {job.id for job in site.storage.get_many(others) if job.losses} == held
    assert site.why(begun[0]) == f"worker {victim.pid} was killed by SIGKILL"
    assert_sound(site)


def test_a_killed_child_takes_nobody_with_it(site: Site, tell: Tell) -> None:
    crew = site.start(slots=4)
    (worker,) = crew.workers()
    (hit,) = site.add("inap", {"seconds": 600})
    others = site.add("inap", {"seconds": 1}) + site.add("nap", {"seconds": 1})
    (line, *_) = site.until_begun(hit, *others)

    died_at = kill(line.pid)
    took = seconds_until_rerun(site, hit, died_at)
    site.until_final()

    tell(f"run again {took * 1000:.0f} ms after the death of the child")
    assert site.why(hit) == f"its process {line.pid} was killed by SIGKILL (out of memory?)"
    assert [job.halts for job in site.storage.get_many([hit, *others])] == [1, 0, 0]
    assert [each.id for each in crew.workers()] == [worker.id]
    assert_sound(site)


def test_the_workers_of_a_killed_foreman_die_and_another_recovers_their_jobs_after_the_lease(
    site: Site, tell: Tell
) -> None:
    crew = site.start(workers=2, lease=LEASE)
    naps = [new_job(task, {"seconds": 600}, max_halts=1_000) for task in ("nap", "nap", "inap", "inap")]
    jobs = site.send(naps)
    lines = site.until_begun(*jobs)
    until(lambda: all(site.job(job_id).state is RUNNING for job_id in jobs), "their starts are written down")
    pids = {line.pid for line in lines} | {worker.pid for worker in crew.workers()}
    other = site.start(slots=4, lease=LEASE)
    site.until_steady(other)

    died_at = crew.kill()
    until(lambda: not any(map(is_alive, pids)), "its workers and their children are gone")
    gone = time.time() - died_at
    took = max(seconds_until_rerun(site, job_id, died_at) for job_id in jobs)
    site.until_final()

    tell(f"{len(pids)} processes gone after {gone * 1000:.0f} ms, run again {took:.2f} s after the foreman's death")
    assert {job.state for job in site.storage.get_many(jobs)} == {COMPLETED}
    assert all("was silent for 1200ms" in site.why(job_id) for job_id in jobs)
    assert_sound(site)


def test_when_everything_is_killed_at_once_the_next_foreman_takes_all_of_it_up_at_once(site: Site, tell: Tell) -> None:
    site.start(workers=2)
    jobs = [*site.add("nap", {"seconds": 600}, number=2), *site.add("inap", {"seconds": 600})]
    jobs += [*site.add("start_a_sleeper_alone", {"seconds": 600}), *site.add("nap", number=3)]
    until(lambda: all(site.job(job_id).state is RUNNING for job_id in jobs[:4]), "four are known to run")

    kill_all(site, first=site.crews[0].pid)
    started_at = time.time()
    site.start(slots=4)
    took = max(seconds_until_rerun(site, job_id, started_at) for job_id in jobs[:4])
    site.until_final()

    tell(f"run again {took:.2f} s after the start of the next foreman")
    assert {site.why(job_id, Kind.READDED) for job_id in jobs[:4]} == {"recovered"}
    assert_sound(site)


def test_processes_that_a_job_has_started_die_with_its_worker(site: Site) -> None:
    crew = site.start(slots=4)
    (worker,) = crew.workers()
    jobs = [*site.add("start_a_sleeper", {"seconds": 600}), *site.add("start_a_sleeper_alone", {"seconds": 600})]
    site.until_begun(*jobs)
    until(lambda: has_two_sleepers(site), "foreman, worker, nursery, child and two sleepers are there")

    kill(worker.pid)
    site.until_begun(*jobs, runs=2)
    site.until_final()

    assert {job.halts for job in site.storage.get_many(jobs)} == {1}
    assert_sound(site)


def test_daemons_that_an_isolated_job_has_started_end_with_its_worker(site: Site) -> None:
    crew = site.start(slots=4)
    (worker,) = crew.workers()
    (job_id,) = site.add("start_daemons", {"seconds": 600})
    site.until_begun(job_id)
    until(lambda: has_two_sleepers(site), "foreman, worker, nursery, child and two daemons are there")

    kill(worker.pid)
    site.until_begun(job_id, runs=2)
    site.until_final()

    assert_sound(site)


# --- jobs that do harm ------------------------------------------------------------------------------------------------


def test_a_job_that_kills_its_worker_is_dead_after_exactly_three_halts(site: Site) -> None:
    site.start(workers=2, slots=1)
    (poison,) = site.add("poison")
    others = site.add("nap", {"seconds": 0.002}, number=50)

    site.until_final()

    job = site.job(poison)
    assert (job.state, job.halts, job.attempts, job.reason) == (DEAD, 3, 3, Reason.RUNNER_TIMEOUT)
    assert len(site.ledger.begun(poison)) == 3
    assert {(job.state, job.halts) for job in site.storage.get_many(others)} == {(COMPLETED, 0)}
    assert_sound(site)


def test_only_jobs_that_had_begun_are_halted_by_the_death_of_their_worker(any_site: Site) -> None:
    site = any_site
    crew = site.start(slots=1)
    site.storage.pause("nap")
    jobs = site.add("nap", {"seconds": 0.3, "again": 0.3}, number=8, max_halts=100)

    for number in range(1, 5):
        site.until_final(*site.add("known", number=5))  # so that the worker takes many at once
        site.storage.resume("nap")
        until(lambda number=number: len(site.ledger.begun()) == 5 * number + number, "one of them has begun")
        (worker,) = crew.workers()
        site.storage.pause("nap")
        kill(worker.pid)
        until(lambda gone=worker.id: gone not in site.owners() and crew.workers(), "another takes its place")
    site.storage.resume("nap")
    site.until_final()

    runs = site.ledger.runs()
    assert {(job.state, job.halts) for job in map(site.job, jobs)} == {(COMPLETED, runs[job_id] - 1) for job_id in jobs}
    assert [site.job(job_id).attempts for job_id in jobs] == [runs[job_id] for job_id in jobs]
    assert_sound(site)


def test_of_eight_jobs_only_the_one_that_had_begun_three_times_is_dead_of_three_halts(any_site: Site) -> None:
    """With the usual `max_halts`. The first is the first again after each halt, because it has the highest priority."""
    site = any_site
    crew = site.start(slots=1)
    site.storage.pause("held")
    gate = site.path.with_name("gate")
    given = {"gate": str(gate)}
    first, *others = [*site.add("held", given, priority=10), *site.add("held", given, number=7)]

    for number in range(1, 4):
        site.until_final(*site.add("known", number=5))  # so that the worker takes many at once
        site.storage.resume("held")
        site.until_begun(first, runs=number)
        (worker,) = crew.workers()
        site.storage.pause("held")
        kill(worker.pid)
        until(lambda gone=worker.id: gone not in site.owners() and crew.workers(), "another takes its place")
    gate.touch()
    site.storage.resume("held")
    site.until_final()

    dead = site.job(first)
    assert (dead.state, dead.halts, dead.attempts, dead.reason) == (DEAD, 3, 3, Reason.RUNNER_TIMEOUT)
    assert {(job.state, job.halts, job.attempts) for job in map(site.job, others)} == {(COMPLETED, 0, 1)}
    assert [len(site.ledger.begun(job_id)) for job_id in (first, *others)] == [3, 1, 1, 1, 1, 1, 1, 1]
    assert_sound(site)


def test_a_job_that_kills_its_foreman_too_is_dead_of_its_halts(any_site: Site) -> None:
    """The first time nobody is left who knows that it had begun; from then on that is written down before it does."""
    site = any_site
    (job_id,) = site.add("kill_all", max_halts=2)

    for _ in range(3):
        crew = site.start(slots=1, online=False)
        until(crew.is_over, "it has killed its foreman")
    site.start(slots=1)
    site.until_final()

    job = site.job(job_id)
    assert (job.state, job.halts, job.losses, job.attempts) == (DEAD, 2, 3, 2)
    assert len(site.ledger.begun()) == 3
    assert_sound(site)


def test_a_job_that_one_halt_ends_runs_once_though_it_kills_its_foreman_too(any_site: Site) -> None:
    site = any_site
    (job_id,) = site.add("kill_all", max_halts=1)

    crew = site.start(slots=1, online=False)
    until(crew.is_over, "it has killed its foreman")
    site.start(slots=1)
    site.until_final()

    job = site.job(job_id)
    assert (job.state, job.halts, job.attempts, job.reason) == (DEAD, 1, 1, Reason.RUNNER_TIMEOUT)
    assert len(site.ledger.begun()) == 1
    assert_sound(site)


def test_what_had_begun_in_a_worker_that_falls_silent_at_once_is_halted(any_site: Site) -> None:
    site = any_site
    crew = site.start(slots=1, lease=2 * LEASE)
    (worker,) = crew.workers()
    (job_id,) = site.add("nap", {"gate": str(site.path.parent / "gate")}, max_halts=100)

    site.until_begun(job_id)
    site.freeze(worker.pid)
    site.until_begun(job_id, runs=2)
    site.until_final()

    job, runs = site.job(job_id), len(site.ledger.begun(job_id))
    assert (job.state, job.halts, job.attempts) == (COMPLETED, runs - 1, runs)
    assert_sound(site)


def test_a_segmentation_fault_costs_an_isolated_job_its_child_only(site: Site) -> None:
    crew = site.start(slots=4)
    (worker,) = crew.workers()
    (fault,) = site.add("segfault")
    (neighbour,) = site.add("nap", {"seconds": 0.5})

    site.until_final()

    assert (site.job(fault).state, site.job(fault).halts) == (DEAD, 3)
    assert "was killed by SIGSEGV" in site.why(fault)
    assert (site.job(neighbour).state, site.job(neighbour).halts) == (COMPLETED, 0)
    assert [each.id for each in crew.workers()] == [worker.id]
    assert_sound(site)


def test_a_segmentation_fault_in_a_thread_costs_the_worker_and_is_told(site: Site) -> None:
    crew = site.start()
    (worker,) = crew.workers()

    (job_id,) = site.add("segfault_once")
    site.until_final()

    assert site.why(job_id) == f"worker {worker.pid} was killed by SIGSEGV"
    assert (site.job(job_id).state, site.job(job_id).halts) == (COMPLETED, 1)
    assert_sound(site)


def test_a_job_that_takes_too_much_memory_is_ended_and_has_failed(site: Site) -> None:
    crew = site.start()
    (worker,) = crew.workers()

    (hungry,) = site.add("hungry")
    site.until_final()

    job = site.job(hungry)
    assert (job.state, job.failures, job.halts, job.reason) == (DEAD, 2, 0, Reason.FAILED)
    assert "MemoryLimit" in (job.error or "")
    assert [each.id for each in crew.workers()] == [worker.id]
    assert_sound(site)


def test_a_call_that_holds_the_interpreter_lock_for_longer_than_the_lease_keeps_its_job(tmp_path: Path) -> None:
    def trial(site: Site, lease: float) -> None:
        site.url += "?synchronous=off"  # no foreman shall wait for a slow disk
        crew, other = site.start(lease=lease), site.start(lease=lease)
        site.until_steady(crew, other)  # each would take the job from the other

        (job_id,) = site.add("hold_the_lock", {"seconds": 1.5 * lease})
        (line,) = site.until_begun(job_id)
        site.until_final()

        (end, *_) = site.ledger.ended(job_id)
        assert end.at - line.at > 1.4 * lease * 1e6
        job = site.job(job_id)
        assert (job.state, job.attempts, job.halts, job.losses) == (COMPLETED, 1, 0, 0)
        assert_sound(site)

    hold_trial(Site, tmp_path, trial)


def test_a_worker_whose_job_holds_the_interpreter_lock_past_its_timeout_is_killed(site: Site) -> None:
    crew = site.start(slots=2, lease=LEASE)
    site.until_steady(crew)
    (worker,) = crew.workers()

    (job_id,) = site.add("hold_the_lock", {"seconds": 3_600}, timeout=SECOND, max_attempts=1)
    site.until_final()

    job = site.job(job_id)
    assert (job.state, job.reason, job.failures, job.halts) == (ABORTED, Reason.JOB_TIMEOUT, 1, 0)
    assert not is_alive(worker.pid)
    until(lambda: len(crew.workers()) == 1, "there is a worker again")
    assert_sound(site)


# --- freezing ---------------------------------------------------------------------------------------------------------


def test_a_worker_that_is_frozen_for_longer_than_its_lease_is_killed_before_its_job_runs_again(
    site: Site, tell: Tell
) -> None:
    crew = site.start(workers=2, slots=1, lease=LEASE)
    site.until_steady(crew)
    gate = site.path.with_name("gate")
    (job_id,) = site.add("nap", {"gate": str(gate), "again": 1.5}, max_halts=1_000)
    (line,) = site.until_begun(job_id)

    frozen_at = time.time()
    site.freeze(line.pid)
    took = seconds_until_rerun(site, job_id, frozen_at)
    assert not is_alive(line.pid), "it was killed before anybody got its job"
    gate.touch()
    site.until_final()

    tell(f"run again {took:.2f} s after the worker was frozen")
    (completed,) = site.events(job_id, Kind.COMPLETED)
    assert completed.fence != line.fence
    assert f"worker {line.pid} was killed: a signal had stopped it" in site.why(job_id)
    until(lambda: len(crew.workers()) == 2, "there are two workers again")
    assert_sound(site)


@pytest.mark.parametrize("frozen", ["worker", "foreman"])
def test_an_isolated_job_of_somebody_frozen_does_not_go_on_beside_its_second_run(site: Site, frozen: str) -> None:
    crew = site.start(slots=1, lease=LEASE)
    (worker,) = crew.workers()
    path = site.path.with_name("tick")
    (job_id,) = site.add("tick", {"path": str(path)}, max_halts=1_000)
    (line,) = site.until_begun(job_id)
    other = site.start(slots=1, lease=LEASE)
    site.until_steady(crew, other)

    site.freeze(worker.pid if frozen == "worker" else crew.pid)
    until(lambda: len([each for each in site.ledger.begun() if each.job_id == job_id]) > 1, "it is run again")
    until(lambda: not is_alive(line.pid), "the first run is over")
    _, second, *_ = [each for each in site.ledger.begun() if each.job_id == job_id]

    assert int(path.read_text()) < second.at, "it was killed before"
    site.until_final()
    crew.tell(signal.SIGCONT)
    assert_sound(site)


def test_the_late_results_of_the_workers_of_a_frozen_foreman_are_refused(site: Site, tell: Tell) -> None:
    crew = site.start(slots=3, lease=LEASE)
    (worker,) = crew.workers()
    gate = site.path.with_name("gate")
    given = {"gate": str(gate), "again": 2.0}
    jobs = [job_id for task in ("nap", "anap", "inap") for job_id in site.add(task, given, max_halts=1_000)]
    lines = site.until_begun(*jobs)
    other = site.start(slots=3, lease=LEASE)
    site.until_steady(other)

    frozen_at = time.time()
    site.freeze(crew.pid)
    took = max(seconds_until_rerun(site, job_id, frozen_at) for job_id in jobs)
    gate.touch()
    until(lambda: all(has_ended(site, line) for line in lines) or not is_alive(worker.pid), "the first runs have ended")
    site.until_final()
    crew.tell(signal.SIGCONT)
    until(lambda: not is_alive(worker.pid), "the worker that was struck off goes")

    tell(f"run again {took:.2f} s after the foreman was frozen")
    for line in lines:
        (completed,) = site.events(line.job_id, Kind.COMPLETED)
        assert completed.fence != line.fence
    until(lambda: len(crew.workers()) == 1, "there is a worker again")
    assert_sound(site)


def test_a_short_freeze_costs_nothing(tmp_path: Path) -> None:
    def trial(site: Site, lease: float) -> None:
        site.url += "?synchronous=off"  # no foreman shall wait for a slow disk
        crew, other = site.start(slots=2, lease=lease), site.start(slots=2, lease=lease)
        site.until_steady(crew, other)
        gate = site.path.with_name("gate")
        jobs = site.add("nap", {"gate": str(gate)}, number=4)
        line, *_ = site.until_begun(*jobs)

        site.freeze(line.pid)
        time.sleep(LEASE / 3)
        os.kill(line.pid, signal.SIGCONT)
        gate.touch()
        site.until_final()

        assert {(job.state, job.losses, job.attempts) for job in site.storage.get_many(jobs)} == {(COMPLETED, 0, 1)}
        assert_sound(site)

    hold_trial(Site, tmp_path, trial)


# --- the storage is away ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("patience", ["30s", "200ms"])
def test_nothing_is_lost_while_the_file_is_locked_for_longer_than_a_lease(tmp_path: Path, patience: str) -> None:
    def trial(site: Site, lease: float) -> None:
        site.url += f"?patience={patience}&synchronous=off"  # no foreman shall wait for a slow disk
        first, second = site.start(slots=4, lease=lease), site.start(slots=4, lease=lease)
        site.until_steady(first, second)
        owners = site.owners()
        gate = {"gate": str(site.path.with_name("gate"))}
        running = site.add("nap", gate, number=4) + site.add("inap", gate, number=2)
        site.add("nap", {"seconds": 0.005}, number=200)
        site.add("anap", {"seconds": 0.005}, number=100)
        site.until_begun(*running)

        lock = sqlite3.connect(site.path, timeout=PATIENCE, isolation_level=None)
        lock.execute("BEGIN IMMEDIATE")
        Path(gate["gate"]).touch()
        time.sleep(1.75 * lease)
        until(lambda: set(running) <= {line.job_id for line in site.ledger.ended()}, "they end without the storage")
        lock.close()
        site.until_final()

        for job in site.storage.get_many(running):
            assert (job.state, job.attempts, job.losses) == (COMPLETED, 1, 0)
        assert set(site.ledger.runs().values()) == {1}, "nothing was rescued, and so nothing ran twice"
        assert site.owners() == owners
        assert_sound(site)

    hold_trial(Site, tmp_path, trial)
