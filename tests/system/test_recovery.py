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
from tests.system.conftest import Tell, retry_with_longer_lease
from tests.system.deployment import LEASE, Deployment, has_two_sleepers, kill, new_job, until
from tests.system.run_log import Run
from tests.system.soundness import assert_sound

pytestmark = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="looks at processes through /proc")


def seconds_until_rerun(deployment: Deployment, job_id: str, died_at: float) -> float:
    """From a death until a job that it hit begins again."""
    (again,) = deployment.until_begun(job_id, runs=2)
    return again.at / 1e6 - died_at


def has_ended(deployment: Deployment, line: Run) -> bool:
    """Has this very run come to its end?"""
    return line.run in [end.run for end in deployment.run_log.ended(line.job_id)]


def kill_all(deployment: Deployment, first: int) -> None:
    """Kill everybody, first this one, who else would see the others die."""
    kill(first)

    def is_done() -> bool:
        left = deployment.processes()  # another may have started in between
        for pid in left:
            with suppress(ProcessLookupError):  # who dies takes others along, before we come to them
                kill(pid)
        return not left

    until(is_done, "everybody is dead")


# --- deaths -----------------------------------------------------------------------------------------------------------


def test_the_jobs_of_a_killed_worker_run_again_at_once(deployment: Deployment, tell: Tell) -> None:
    foreman = deployment.start(workers=2, slots=2)
    victim, other = foreman.workers()
    deployment.freeze(other.pid)
    deployment.add("nap", number=50)  # so that the victim knows that naps are short, and buffers many
    deployment.until_final()
    jobs = deployment.send([new_job("nap", {"seconds": 600 if number < 2 else 0}) for number in range(22)])
    begun, others = jobs[:2], jobs[2:]
    deployment.until_begun(*begun)
    deployment.freeze(
        victim.pid
    )  # on a busy machine it may have handed back some of the others by now, or not taken them
    held = {job.id for job in deployment.storage.get_many(others) if job.owner == victim.id}
    os.kill(other.pid, signal.SIGCONT)

    died_at = kill(victim.pid)
    took = [seconds_until_rerun(deployment, job_id, died_at) for job_id in begun]
    deployment.until_final()

    tell(f"run again {max(took) * 1000:.0f} ms after the death of the worker")
    assert [(job.halts, job.losses) for job in deployment.storage.get_many(begun)] == [(1, 1)] * 2
    assert {job.halts for job in deployment.storage.get_many(others)} == {0}, "jobs that only waited are not blamed"
    assert {job.id for job in deployment.storage.get_many(others) if job.losses} == held
    assert deployment.why(begun[0]) == f"worker {victim.pid} was killed by SIGKILL"
    assert_sound(deployment)


def test_a_killed_child_takes_nobody_with_it(deployment: Deployment, tell: Tell) -> None:
    foreman = deployment.start(slots=4)
    (worker,) = foreman.workers()
    (hit,) = deployment.add("inap", {"seconds": 600})
    others = deployment.add("inap", {"seconds": 1}) + deployment.add("nap", {"seconds": 1})
    (line, *_) = deployment.until_begun(hit, *others)

    died_at = kill(line.pid)
    took = seconds_until_rerun(deployment, hit, died_at)
    deployment.until_final()

    tell(f"run again {took * 1000:.0f} ms after the death of the child")
    assert deployment.why(hit) == f"its process {line.pid} was killed by SIGKILL (out of memory?)"
    assert [job.halts for job in deployment.storage.get_many([hit, *others])] == [1, 0, 0]
    assert [each.id for each in foreman.workers()] == [worker.id]
    assert_sound(deployment)


def test_the_workers_of_a_killed_foreman_die_and_another_recovers_their_jobs_after_the_lease(
    deployment: Deployment, tell: Tell
) -> None:
    foreman = deployment.start(workers=2, lease=LEASE)
    naps = [new_job(task, {"seconds": 600}, max_halts=1_000) for task in ("nap", "nap", "inap", "inap")]
    jobs = deployment.send(naps)
    lines = deployment.until_begun(*jobs)
    until(lambda: all(deployment.job(job_id).state is RUNNING for job_id in jobs), "their starts are written down")
    pids = {line.pid for line in lines} | {worker.pid for worker in foreman.workers()}
    other = deployment.start(slots=4, lease=LEASE)
    deployment.until_steady(other)

    died_at = foreman.kill()
    until(lambda: not any(map(is_alive, pids)), "its workers and their children are gone")
    gone = time.time() - died_at
    took = max(seconds_until_rerun(deployment, job_id, died_at) for job_id in jobs)
    deployment.until_final()

    tell(f"{len(pids)} processes gone after {gone * 1000:.0f} ms, run again {took:.2f} s after the foreman's death")
    assert {job.state for job in deployment.storage.get_many(jobs)} == {COMPLETED}
    assert all("was silent for 1200ms" in deployment.why(job_id) for job_id in jobs)
    assert_sound(deployment)


def test_when_everything_is_killed_at_once_the_next_foreman_takes_all_of_it_up_at_once(
    deployment: Deployment, tell: Tell
) -> None:
    deployment.start(workers=2)
    jobs = [*deployment.add("nap", {"seconds": 600}, number=2), *deployment.add("inap", {"seconds": 600})]
    jobs += [*deployment.add("start_a_sleeper_alone", {"seconds": 600}), *deployment.add("nap", number=3)]
    until(lambda: all(deployment.job(job_id).state is RUNNING for job_id in jobs[:4]), "four are known to run")

    kill_all(deployment, first=deployment.foremen[0].pid)
    started_at = time.time()
    deployment.start(slots=4)
    took = max(seconds_until_rerun(deployment, job_id, started_at) for job_id in jobs[:4])
    deployment.until_final()

    tell(f"run again {took:.2f} s after the start of the next foreman")
    assert {deployment.why(job_id, Kind.READDED) for job_id in jobs[:4]} == {"recovered"}
    assert_sound(deployment)


def test_processes_that_a_job_has_started_die_with_its_worker(deployment: Deployment) -> None:
    foreman = deployment.start(slots=4)
    (worker,) = foreman.workers()
    jobs = [
        *deployment.add("start_a_sleeper", {"seconds": 600}),
        *deployment.add("start_a_sleeper_alone", {"seconds": 600}),
    ]
    deployment.until_begun(*jobs)
    until(lambda: has_two_sleepers(deployment), "foreman, worker, fork server, child and two sleepers are there")

    kill(worker.pid)
    deployment.until_begun(*jobs, runs=2)
    deployment.until_final()

    assert {job.halts for job in deployment.storage.get_many(jobs)} == {1}
    assert_sound(deployment)


def test_daemons_that_an_isolated_job_has_started_end_with_its_worker(deployment: Deployment) -> None:
    foreman = deployment.start(slots=4)
    (worker,) = foreman.workers()
    (job_id,) = deployment.add("start_daemons", {"seconds": 600})
    deployment.until_begun(job_id)
    until(lambda: has_two_sleepers(deployment), "foreman, worker, fork server, child and two daemons are there")

    kill(worker.pid)
    deployment.until_begun(job_id, runs=2)
    deployment.until_final()

    assert_sound(deployment)


# --- jobs that do harm ------------------------------------------------------------------------------------------------


def test_a_job_that_kills_its_worker_is_dead_after_exactly_three_halts(deployment: Deployment) -> None:
    deployment.start(workers=2, slots=1)
    (poison,) = deployment.add("poison")
    others = deployment.add("nap", {"seconds": 0.002}, number=50)

    deployment.until_final()

    job = deployment.job(poison)
    assert (job.state, job.halts, job.attempts, job.reason) == (DEAD, 3, 3, Reason.RUNNER_TIMEOUT)
    assert len(deployment.run_log.begun(poison)) == 3
    assert {(job.state, job.halts) for job in deployment.storage.get_many(others)} == {(COMPLETED, 0)}
    assert_sound(deployment)


def test_only_jobs_that_had_begun_are_halted_by_the_death_of_their_worker(any_deployment: Deployment) -> None:
    deployment = any_deployment
    foreman = deployment.start(slots=1)
    deployment.storage.pause("nap")
    jobs = deployment.add("nap", {"seconds": 0.3, "again": 0.3}, number=8, max_halts=100)

    for number in range(1, 5):
        deployment.until_final(*deployment.add("known", number=5))  # so that the worker takes many together
        deployment.storage.resume("nap")
        until(lambda number=number: len(deployment.run_log.begun()) == 5 * number + number, "one of them has begun")
        (worker,) = foreman.workers()
        deployment.storage.pause("nap")
        kill(worker.pid)
        until(
            lambda gone=worker.id: gone not in deployment.owners() and foreman.workers(),
            "another takes its place",
        )
    deployment.storage.resume("nap")
    deployment.until_final()

    runs = deployment.run_log.runs()
    assert {(job.state, job.halts) for job in map(deployment.job, jobs)} == {
        (COMPLETED, runs[job_id] - 1) for job_id in jobs
    }
    assert [deployment.job(job_id).attempts for job_id in jobs] == [runs[job_id] for job_id in jobs]
    assert_sound(deployment)


def test_of_eight_jobs_only_the_one_that_had_begun_three_times_is_dead_of_three_halts(
    any_deployment: Deployment,
) -> None:
    """With the usual `max_halts`. The first is the first again after each halt, because it has the highest priority."""
    deployment = any_deployment
    foreman = deployment.start(slots=1)
    deployment.storage.pause("held")
    gate = deployment.path.with_name("gate")
    given = {"gate": str(gate)}
    first, *others = [*deployment.add("held", given, priority=10), *deployment.add("held", given, number=7)]

    for number in range(1, 4):
        deployment.until_final(*deployment.add("known", number=5))  # so that the worker takes many together
        deployment.storage.resume("held")
        deployment.until_begun(first, runs=number)
        (worker,) = foreman.workers()
        deployment.storage.pause("held")
        kill(worker.pid)
        until(
            lambda gone=worker.id: gone not in deployment.owners() and foreman.workers(),
            "another takes its place",
        )
    gate.touch()
    deployment.storage.resume("held")
    deployment.until_final()

    dead = deployment.job(first)
    assert (dead.state, dead.halts, dead.attempts, dead.reason) == (DEAD, 3, 3, Reason.RUNNER_TIMEOUT)
    assert {(job.state, job.halts, job.attempts) for job in map(deployment.job, others)} == {(COMPLETED, 0, 1)}
    assert [len(deployment.run_log.begun(job_id)) for job_id in (first, *others)] == [3, 1, 1, 1, 1, 1, 1, 1]
    assert_sound(deployment)


def test_a_job_that_kills_its_foreman_too_is_dead_of_its_halts(any_deployment: Deployment) -> None:
    """The first time nobody is left who knows that it had begun; from then on that is written down before it does."""
    deployment = any_deployment
    (job_id,) = deployment.add("kill_all", max_halts=2)

    for _ in range(3):
        foreman = deployment.start(slots=1, online=False)
        until(foreman.is_over, "it has killed its foreman")
    deployment.start(slots=1)
    deployment.until_final()

    job = deployment.job(job_id)
    assert (job.state, job.halts, job.losses, job.attempts) == (DEAD, 2, 3, 2)
    assert len(deployment.run_log.begun()) == 3
    assert_sound(deployment)


def test_a_job_that_one_halt_ends_runs_once_though_it_kills_its_foreman_too(any_deployment: Deployment) -> None:
    deployment = any_deployment
    (job_id,) = deployment.add("kill_all", max_halts=1)

    foreman = deployment.start(slots=1, online=False)
    until(foreman.is_over, "it has killed its foreman")
    deployment.start(slots=1)
    deployment.until_final()

    job = deployment.job(job_id)
    assert (job.state, job.halts, job.attempts, job.reason) == (DEAD, 1, 1, Reason.RUNNER_TIMEOUT)
    assert len(deployment.run_log.begun()) == 1
    assert_sound(deployment)


def test_what_had_begun_in_a_worker_that_falls_silent_at_once_is_halted(any_deployment: Deployment) -> None:
    deployment = any_deployment
    foreman = deployment.start(slots=1, lease=2 * LEASE)
    (worker,) = foreman.workers()
    (job_id,) = deployment.add("nap", {"gate": str(deployment.path.parent / "gate")}, max_halts=100)

    deployment.until_begun(job_id)
    deployment.freeze(worker.pid)
    deployment.until_begun(job_id, runs=2)
    deployment.until_final()

    job, runs = deployment.job(job_id), len(deployment.run_log.begun(job_id))
    assert (job.state, job.halts, job.attempts) == (COMPLETED, runs - 1, runs)
    assert_sound(deployment)


def test_a_segmentation_fault_costs_an_isolated_job_its_child_only(deployment: Deployment) -> None:
    foreman = deployment.start(slots=4)
    (worker,) = foreman.workers()
    (fault,) = deployment.add("segfault")
    (neighbour,) = deployment.add("nap", {"seconds": 0.5})

    deployment.until_final()

    assert (deployment.job(fault).state, deployment.job(fault).halts) == (DEAD, 3)
    assert "was killed by SIGSEGV" in deployment.why(fault)
    assert (deployment.job(neighbour).state, deployment.job(neighbour).halts) == (COMPLETED, 0)
    assert [each.id for each in foreman.workers()] == [worker.id]
    assert_sound(deployment)


def test_a_segmentation_fault_in_a_thread_costs_the_worker_and_is_told(deployment: Deployment) -> None:
    foreman = deployment.start()
    (worker,) = foreman.workers()

    (job_id,) = deployment.add("segfault_once")
    deployment.until_final()

    assert deployment.why(job_id) == f"worker {worker.pid} was killed by SIGSEGV"
    assert (deployment.job(job_id).state, deployment.job(job_id).halts) == (COMPLETED, 1)
    assert_sound(deployment)


def test_a_job_that_takes_too_much_memory_is_ended_and_has_failed(deployment: Deployment) -> None:
    foreman = deployment.start()
    (worker,) = foreman.workers()

    (hungry,) = deployment.add("hungry")
    deployment.until_final()

    job = deployment.job(hungry)
    assert (job.state, job.failures, job.halts, job.reason) == (DEAD, 2, 0, Reason.FAILED)
    assert "MemoryLimit" in (job.error or "")
    assert [each.id for each in foreman.workers()] == [worker.id]
    assert_sound(deployment)


def test_a_call_that_holds_the_interpreter_lock_for_longer_than_the_lease_keeps_its_job(tmp_path: Path) -> None:
    def trial(deployment: Deployment, lease: float) -> None:
        deployment.url += "?synchronous=off"  # no foreman should wait for a slow disk
        foreman, other = deployment.start(lease=lease), deployment.start(lease=lease)
        deployment.until_steady(foreman, other)  # each would take the job from the other

        (job_id,) = deployment.add("hold_the_lock", {"seconds": 1.5 * lease})
        (line,) = deployment.until_begun(job_id)
        deployment.until_final()

        (end, *_) = deployment.run_log.ended(job_id)
        assert end.at - line.at > 1.4 * lease * 1e6
        job = deployment.job(job_id)
        assert (job.state, job.attempts, job.halts, job.losses) == (COMPLETED, 1, 0, 0)
        assert_sound(deployment)

    retry_with_longer_lease(Deployment, tmp_path, trial)


def test_a_worker_whose_job_holds_the_interpreter_lock_past_its_timeout_is_killed(deployment: Deployment) -> None:
    foreman = deployment.start(slots=2, lease=LEASE)
    deployment.until_steady(foreman)
    (worker,) = foreman.workers()

    (job_id,) = deployment.add("hold_the_lock", {"seconds": 3_600}, timeout=SECOND, max_attempts=1)
    deployment.until_final()

    job = deployment.job(job_id)
    assert (job.state, job.reason, job.failures, job.halts) == (ABORTED, Reason.JOB_TIMEOUT, 1, 0)
    assert not is_alive(worker.pid)
    until(lambda: len(foreman.workers()) == 1, "there is a worker again")
    assert_sound(deployment)


# --- freezing ---------------------------------------------------------------------------------------------------------


def test_a_worker_that_is_frozen_for_longer_than_its_lease_is_killed_before_its_job_runs_again(
    deployment: Deployment, tell: Tell
) -> None:
    foreman = deployment.start(workers=2, slots=1, lease=LEASE)
    deployment.until_steady(foreman)
    gate = deployment.path.with_name("gate")
    (job_id,) = deployment.add("nap", {"gate": str(gate), "again": 1.5}, max_halts=1_000)
    (line,) = deployment.until_begun(job_id)

    frozen_at = time.time()
    deployment.freeze(line.pid)
    took = seconds_until_rerun(deployment, job_id, frozen_at)
    assert not is_alive(line.pid), "it was killed before anybody got its job"
    gate.touch()
    deployment.until_final()

    tell(f"run again {took:.2f} s after the worker was frozen")
    (completed,) = deployment.events(job_id, Kind.COMPLETED)
    assert completed.fence != line.fence
    assert f"worker {line.pid} was killed: a signal had stopped it" in deployment.why(job_id)
    until(lambda: len(foreman.workers()) == 2, "there are two workers again")
    assert_sound(deployment)


@pytest.mark.parametrize("frozen", ["worker", "foreman"])
def test_an_isolated_job_of_somebody_frozen_does_not_go_on_beside_its_second_run(
    deployment: Deployment, frozen: str
) -> None:
    foreman = deployment.start(slots=1, lease=LEASE)
    (worker,) = foreman.workers()
    path = deployment.path.with_name("tick")
    (job_id,) = deployment.add("tick", {"path": str(path)}, max_halts=1_000)
    (line,) = deployment.until_begun(job_id)
    other = deployment.start(slots=1, lease=LEASE)
    deployment.until_steady(foreman, other)

    deployment.freeze(worker.pid if frozen == "worker" else foreman.pid)
    until(lambda: len([each for each in deployment.run_log.begun() if each.job_id == job_id]) > 1, "it is run again")
    until(lambda: not is_alive(line.pid), "the first run is over")
    _, second, *_ = [each for each in deployment.run_log.begun() if each.job_id == job_id]

    assert int(path.read_text()) < second.at, "it was killed before"
    deployment.until_final()
    foreman.tell(signal.SIGCONT)
    assert_sound(deployment)


def test_the_late_results_of_the_workers_of_a_frozen_foreman_are_refused(deployment: Deployment, tell: Tell) -> None:
    foreman = deployment.start(slots=3, lease=LEASE)
    (worker,) = foreman.workers()
    gate = deployment.path.with_name("gate")
    given = {"gate": str(gate), "again": 2.0}
    jobs = [job_id for task in ("nap", "anap", "inap") for job_id in deployment.add(task, given, max_halts=1_000)]
    lines = deployment.until_begun(*jobs)
    other = deployment.start(slots=3, lease=LEASE)
    deployment.until_steady(other)

    frozen_at = time.time()
    deployment.freeze(foreman.pid)
    took = max(seconds_until_rerun(deployment, job_id, frozen_at) for job_id in jobs)
    gate.touch()
    until(
        lambda: all(has_ended(deployment, line) for line in lines) or not is_alive(worker.pid),
        "the first runs have ended",
    )
    deployment.until_final()
    foreman.tell(signal.SIGCONT)
    until(lambda: not is_alive(worker.pid), "the removed worker exits")

    tell(f"run again {took:.2f} s after the foreman was frozen")
    for line in lines:
        (completed,) = deployment.events(line.job_id, Kind.COMPLETED)
        assert completed.fence != line.fence
    until(lambda: len(foreman.workers()) == 1, "there is a worker again")
    assert_sound(deployment)


def test_a_short_freeze_costs_nothing(tmp_path: Path) -> None:
    def trial(deployment: Deployment, lease: float) -> None:
        deployment.url += "?synchronous=off"  # no foreman should wait for a slow disk
        foreman, other = deployment.start(slots=2, lease=lease), deployment.start(slots=2, lease=lease)
        deployment.until_steady(foreman, other)
        gate = deployment.path.with_name("gate")
        jobs = deployment.add("nap", {"gate": str(gate)}, number=4)
        line, *_ = deployment.until_begun(*jobs)

        deployment.freeze(line.pid)
        time.sleep(LEASE / 3)
        os.kill(line.pid, signal.SIGCONT)
        gate.touch()
        deployment.until_final()

        assert {(job.state, job.losses, job.attempts) for job in deployment.storage.get_many(jobs)} == {
            (COMPLETED, 0, 1)
        }
        assert_sound(deployment)

    retry_with_longer_lease(Deployment, tmp_path, trial)


# --- the storage is away ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("patience", ["30s", "200ms"])
def test_nothing_is_lost_while_the_file_is_locked_for_longer_than_a_lease(tmp_path: Path, patience: str) -> None:
    def trial(deployment: Deployment, lease: float) -> None:
        deployment.url += f"?patience={patience}&synchronous=off"  # no foreman should wait for a slow disk
        first, second = deployment.start(slots=4, lease=lease), deployment.start(slots=4, lease=lease)
        deployment.until_steady(first, second)
        owners = deployment.owners()
        gate = {"gate": str(deployment.path.with_name("gate"))}
        running = deployment.add("nap", gate, number=4) + deployment.add("inap", gate, number=2)
        deployment.add("nap", {"seconds": 0.005}, number=200)
        deployment.add("anap", {"seconds": 0.005}, number=100)
        deployment.until_begun(*running)

        lock = sqlite3.connect(deployment.path, timeout=PATIENCE, isolation_level=None)
        lock.execute("BEGIN IMMEDIATE")
        Path(gate["gate"]).touch()
        time.sleep(1.75 * lease)
        until(
            lambda: set(running) <= {line.job_id for line in deployment.run_log.ended()}, "they end without the storage"
        )
        lock.close()
        deployment.until_final()

        for job in deployment.storage.get_many(running):
            assert (job.state, job.attempts, job.losses) == (COMPLETED, 1, 0)
        assert set(deployment.run_log.runs().values()) == {1}, "nothing was rescued, and so nothing ran twice"
        assert deployment.owners() == owners
        assert_sound(deployment)

    retry_with_longer_lease(Deployment, tmp_path, trial)
