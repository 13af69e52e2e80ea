"""Which job is begun first, when, and by whom: with real foremen and workers, on one slot where order matters."""

from __future__ import annotations

import os
import socket
import subprocess
import time

import pytest
from msgspec.structs import replace

from packhorse.core.clock import HOUR
from packhorse.core.event import Kind, Subject
from packhorse.core.job import COMPLETED, RANK_FORCED, RANK_HALTED, RUNNING, SCHEDULED
from packhorse.foreman.process_tree import is_alive
from packhorse.storage.records import WorkerInfo
from tests.system.conftest import Tell
from tests.system.deployment import Deployment, new_job, until
from tests.system.soundness import assert_sound

pytestmark = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="looks at processes through /proc")


def dead_pid() -> int:
    """The number of a process that was, and is no more."""
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


def join_dead(deployment: Deployment, name: str) -> str:
    """A worker of this machine, and its foreman, both of which died without a word."""
    host, pid = socket.gethostname(), dead_pid()
    deployment.storage.join(WorkerInfo(f"{name}-foreman", subject=Subject.FOREMAN, host=host, pid=pid))
    deployment.storage.join(WorkerInfo(name, foreman=f"{name}-foreman", host=host, pid=pid))
    return name


def begin_under(deployment: Deployment, owner: str, job_id: str) -> None:
    """This worker took the job, and said that it runs."""
    deployment.storage.force_start([job_id])
    (job,) = deployment.storage.reserve(owner, {deployment.job(job_id).queue: 1}, 1)
    assert job.id == job_id
    deployment.storage.start([job.token])


def order_of_begins(deployment: Deployment) -> list[str]:
    return [line.job_id for line in deployment.run_log.begun()]


# --- order ------------------------------------------------------------------------------------------------------------


def test_recovered_then_forced_then_halted_once_then_by_priority_then_the_rest(deployment: Deployment) -> None:
    (regular,), (important,) = deployment.add("nap"), deployment.add("nap", priority=5)
    halted, forced, running = deployment.add("nap", number=3)
    begin_under(deployment, join_dead(deployment, "ann"), halted)
    deployment.storage.rescue_owner("ann", foreman="ann", why="seen to die")
    begin_under(deployment, join_dead(deployment, "bob"), running)
    deployment.storage.force_start([forced])
    assert (deployment.job(halted).rank, deployment.job(forced).rank) == (RANK_HALTED, RANK_FORCED)

    deployment.start(slots=1)
    deployment.until_final()

    assert order_of_begins(deployment) == [running, forced, halted, important, regular]
    assert_sound(deployment)


def test_a_change_of_priority_takes_effect_at_once(deployment: Deployment) -> None:
    deployment.start(slots=1)
    (first,) = deployment.add("checked", {"seconds": 600})
    deployment.until_begun(first)
    low, middle, high = (deployment.add("nap", priority=priority)[0] for priority in (2, 5, 10))
    (raised,) = deployment.add("nap")

    deployment.storage.set_priority([raised], 10)
    deployment.storage.set_priority([high], 4)
    deployment.storage.abort([first])
    deployment.until_final()

    assert order_of_begins(deployment) == [first, raised, middle, high, low]
    assert_sound(deployment)


# --- what was running when a foreman starts ---------------------------------------------------------------------------


def test_jobs_of_a_dead_pool_are_recovered_first_and_those_of_a_live_one_are_not_touched(
    deployment: Deployment,
) -> None:
    living = deployment.start(slots=1)
    (kept,) = deployment.add("checked", {"seconds": 600})
    deployment.until_begun(kept)
    dying = deployment.start(slots=2)
    lost = deployment.add("nap", {"seconds": 600}, number=2)
    until(lambda: all(deployment.job(job_id).state is RUNNING for job_id in lost), "they are known to run")
    workers = dying.workers()
    dying.kill()
    until(lambda: not any(is_alive(worker.pid) for worker in workers), "the whole pool is dead")
    urgent = deployment.add("nap", priority=10, number=3)

    deployment.start(slots=1)
    deployment.until_final(*lost, *urgent)
    kept_by = [event.owner for event in deployment.events(kept, Kind.STARTED)]
    deployment.storage.abort([kept])
    deployment.until_final()

    assert order_of_begins(deployment)[3:] == [*lost, *urgent]
    assert [deployment.why(job_id, Kind.READDED) for job_id in lost] == ["recovered"] * 2
    assert kept_by == [worker.id for worker in living.workers()]
    assert deployment.job(kept).losses == 0
    assert_sound(deployment)


# --- force start ------------------------------------------------------------------------------------------------------


def test_a_forced_job_that_finds_every_slot_busy_begins_all_the_same(deployment: Deployment, tell: Tell) -> None:
    foreman = deployment.start(slots=2, max_forced=1)
    busy = deployment.add("checked", {"seconds": 600}, number=2)
    deployment.until_begun(*busy)
    first, forced = deployment.add("nap")[0], deployment.add("nap", delay=HOUR)[0]

    forced_at = time.time()
    deployment.storage.force_start([forced])
    (line,) = deployment.until_begun(forced)
    took = line.at / 1e6 - forced_at
    deployment.until_final(forced)
    begun = order_of_begins(deployment)
    until(lambda: len(foreman.workers()) == 1, "the extra worker has gone")
    deployment.storage.abort(busy)
    deployment.until_final()

    tell(f"a forced job began after {took:.2f} s although every slot was busy")
    assert (set(begun[:-1]), begun[-1]) == (set(busy), forced), f"{first} waits on"
    assert_sound(deployment)


# --- unknown tasks ----------------------------------------------------------------------------------------------------


def test_a_job_whose_task_nobody_knows_waits_and_blocks_nobody(deployment: Deployment) -> None:
    deployment.start(slots=1)
    (unknown,) = deployment.send([replace(new_job("known"), task="little_known")])
    others = deployment.add("known", number=20)

    deployment.until_final(*others)
    until(lambda: deployment.job(unknown).state is SCHEDULED, "it was handed back")
    waiting = deployment.job(unknown)
    deployment.end()
    os.environ["SITE_KNOWS_MORE"] = "yes"
    try:
        deployment.start(slots=1)
    finally:
        del os.environ["SITE_KNOWS_MORE"]
    deployment.storage.force_start([unknown])
    deployment.until_final()

    assert (waiting.attempts, waiting.failures, waiting.halts, waiting.losses) == (0, 0, 0, 0)
    assert deployment.job(unknown).state is COMPLETED
    assert_sound(deployment)
