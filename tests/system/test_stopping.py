"""Real foremen stop in the middle of load, and running jobs of every kind are aborted from another process.
Nothing is lost, nobody's end is taken for a halt, and nothing is left over; see `soundness.py`."""

from __future__ import annotations

import os
import signal
import time

import pytest

from packhorse.core.event import Kind
from packhorse.core.job import ABORTED, COMPLETED, HELD, QUEUED, Reason
from packhorse.foreman.process_tree import is_alive
from tests.children import PATIENCE
from tests.system.conftest import Tell
from tests.system.deployment import Deployment, has_two_sleepers, until
from tests.system.soundness import assert_sound

pytestmark = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="looks at processes through /proc")


def seconds_until_aborted(deployment: Deployment, job_id: str) -> float:
    """Abort it from here, which is another process than all of the deployment's."""
    asked_at = time.monotonic()
    (answer,) = deployment.storage.abort([job_id], by="a test")
    assert answer.changed
    deployment.until_final(job_id)
    return time.monotonic() - asked_at


# --- TERM -------------------------------------------------------------------------------------------------------------


def test_term_in_the_middle_of_load_finishes_what_runs_and_hands_back_the_rest_uncounted(
    deployment: Deployment,
) -> None:
    foreman = deployment.start(workers=2, slots=4)
    jobs = deployment.add("nap", {"seconds": 0.04}, number=300) + deployment.add("anap", {"seconds": 0.04}, number=100)
    jobs += deployment.add("inap", {"seconds": 0.04}, number=50)
    *most, last = deployment.add(
        "nap", {"seconds": 0.3}, number=1_000
    )  # so that it is in the middle, however late we come
    until(lambda: len(deployment.run_log.ended()) > 100, "they are at work")

    code = foreman.end()
    deployment.storage.abort(most)
    left = deployment.unfinished([*jobs, last])
    begun_before = {line.job_id for line in deployment.run_log.begun()}
    deployment.start(workers=2, slots=4)
    deployment.until_final()

    assert code == 0
    assert left, "it was in the middle"
    assert {(job.state, job.attempts, job.halts, job.losses) for job in left} == {(QUEUED, 0, 0, 0)}
    assert begun_before.isdisjoint(job.id for job in left)
    assert set(deployment.run_log.runs().values()) == {1}
    assert_sound(deployment)


def test_jobs_that_outlast_the_grace_of_a_stop_are_asked_to_end_and_handed_back(deployment: Deployment) -> None:
    foreman = deployment.start(slots=4, words=["--drain", "0.3s"], abort_grace=0.5)
    tasks = ("nap", "anap", "inap", "stubborn")
    jobs = [job_id for task in tasks for job_id in deployment.add(task, {} if task == "stubborn" else {"seconds": 600})]
    deployment.until_begun(*jobs)

    code = foreman.end()
    left = deployment.unfinished(jobs)
    deployment.storage.abort(jobs[-1:])
    deployment.start(slots=4)
    deployment.until_final()

    assert code == 0
    assert [(job.state, job.attempts, job.halts, job.losses) for job in left] == [(QUEUED, 1, 0, 0)] * 4
    assert_sound(deployment)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_job_that_runs_to_its_end_while_its_worker_stops_does_not_run_again(
    any_deployment: Deployment, number: signal.Signals
) -> None:
    deployment = any_deployment
    foreman = deployment.start(slots=3, words=["--drain", "0.2s"], abort_grace=PATIENCE)
    jobs = [job_id for task in ("deaf", "adeaf", "ideaf") for job_id in deployment.add(task, {"seconds": 1.5})]
    deployment.until_begun(*jobs)

    foreman.tell(number)
    deployment.until_final()
    deployment.end()

    for job in map(deployment.job, jobs):
        assert (job.state, job.result, job.attempts, job.losses) == (COMPLETED, '"done"', 1, 0)
        assert deployment.events(job.id, Kind.READDED) == []
    assert (len(deployment.run_log.begun()), len(deployment.run_log.ended())) == (3, 3)
    assert_sound(deployment)


def test_check_ins_say_stop_long_before_the_grace_is_over(any_deployment: Deployment) -> None:
    deployment = any_deployment
    foreman = deployment.start(slots=2, words=["--drain", f"{10 * PATIENCE}s"])
    jobs = deployment.add("checked", {"seconds": 600}) + deployment.add("ichecked", {"seconds": 600})
    deployment.until_begun(*jobs)

    code = foreman.end()

    assert code == 0
    assert [(job.state, job.result) for job in map(deployment.job, jobs)] == [(COMPLETED, '"stopped"')] * 2
    assert_sound(deployment)


def test_a_second_term_stops_at_once_and_hands_back_what_ran_uncounted(deployment: Deployment) -> None:
    foreman = deployment.start(slots=4)
    running = deployment.add("nap", {"seconds": 600}, number=2) + deployment.add("inap", {"seconds": 600}, number=2)
    waiting = deployment.add("nap", number=3)
    deployment.until_begun(*running)

    foreman.tell(signal.SIGTERM)
    until(lambda: foreman.report().get("state") == "stopping", "it has heard")
    code = foreman.end()
    left = deployment.unfinished(running + waiting)
    deployment.start(slots=4)
    deployment.until_final()

    assert code == 128 + signal.SIGTERM
    assert {(job.state, job.halts, job.losses) for job in left} == {(QUEUED, 0, 0)}
    assert all("was killed: the foreman was told to stop" in deployment.why(each, Kind.READDED) for each in running)
    assert_sound(deployment)


# --- abort ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("task", ["checked", "anap", "inap"])
def test_an_abort_from_another_process_ends_a_job(deployment: Deployment, tell: Tell, task: str) -> None:
    foreman = deployment.start(abort_grace=2 * PATIENCE)
    (worker,) = foreman.workers()
    (job_id,) = deployment.add(task, {"seconds": 600})
    deployment.until_begun(job_id)

    took = seconds_until_aborted(deployment, job_id)

    tell(f"{task} aborted after {took:.2f} s")
    assert (deployment.job(job_id).state, deployment.job(job_id).reason) == (ABORTED, Reason.ABORTED)
    assert deployment.events(job_id, Kind.HALTED) == []
    assert [each.id for each in foreman.workers()] == [worker.id]
    assert_sound(deployment)


def test_a_thread_that_will_not_end_costs_the_worker_but_is_aborted_and_not_halted(
    deployment: Deployment, tell: Tell
) -> None:
    foreman = deployment.start(slots=4)
    (worker,) = foreman.workers()
    neighbours = (
        deployment.add("nap", {"seconds": 3.5})
        + deployment.add("anap", {"seconds": 3.5})
        + deployment.add("inap", {"seconds": 3.5})
    )
    (job_id,) = deployment.add("stubborn")
    deployment.until_begun(job_id, *neighbours)

    took = seconds_until_aborted(deployment, job_id)
    later = deployment.add("nap", number=5)
    until(lambda: not is_alive(worker.pid), "the worker has made room")
    deployment.until_final()

    tell(f"stubborn aborted after {took:.2f} s")
    assert (deployment.job(job_id).state, deployment.job(job_id).halts) == (ABORTED, 0)
    for job in deployment.storage.get_many(neighbours + later):
        assert (job.state, job.attempts, job.halts, job.losses) == (COMPLETED, 1, 0, 0)
    assert [each.id for each in foreman.workers()] != [worker.id]
    assert_sound(deployment)


def test_twenty_running_jobs_aborted_in_a_row_are_all_aborted_and_none_halted(
    deployment: Deployment, tell: Tell
) -> None:
    deployment.start(workers=2, slots=10, abort_grace=2 * PATIENCE)
    jobs = [deployment.add(("checked", "anap", "inap")[number % 3], {"seconds": 600})[0] for number in range(20)]
    deployment.until_begun(*jobs)

    asked_at = time.monotonic()
    for job_id in jobs:
        deployment.storage.abort([job_id])
    deployment.until_final()
    took = time.monotonic() - asked_at

    tell(f"twenty aborted after {took:.2f} s")
    assert {(job.state, job.halts, job.losses) for job in deployment.storage.get_many(jobs)} == {(ABORTED, 0, 0)}
    assert_sound(deployment)


def test_a_job_that_completes_while_it_is_asked_to_stop_is_completed_or_aborted_and_never_halted(
    deployment: Deployment,
) -> None:
    deployment.start(workers=2, slots=5)
    jobs: list[str] = []

    def abort_every_other() -> bool:
        left = deployment.unfinished(jobs)
        deployment.storage.abort([job.id for job in left if job.state in HELD][::2])
        if not left and not has_both():  # at first, and when no foreman has looked at the right moment
            jobs.extend(
                deployment.add(("nap", "anap", "inap")[number % 3], {"seconds": 0.1})[0] for number in range(120)
            )
        return not left

    def has_both() -> bool:
        return {job.state for job in deployment.storage.get_many(jobs)} == {ABORTED, COMPLETED}

    until(lambda: abort_every_other() and has_both(), "there are some of both, and all are final")

    assert {job.halts for job in deployment.storage.get_many(jobs)} == {0}
    assert_sound(deployment)


def test_what_an_aborted_job_has_started_ends_with_it_even_in_a_session_of_its_own(deployment: Deployment) -> None:
    deployment.start()
    (job_id,) = deployment.add("start_daemons", {"seconds": 600})
    deployment.until_begun(job_id)
    until(lambda: has_two_sleepers(deployment), "foreman, worker, fork server, child and two daemons are there")

    seconds_until_aborted(deployment, job_id)

    until(lambda: len(deployment.processes()) == 3, "foreman, worker and fork server are left")
    assert deployment.job(job_id).state is ABORTED
    assert_sound(deployment)
