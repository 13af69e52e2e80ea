"""Real foremen and workers on a real Redis: workers and foremen are killed in the middle of work. Nothing is lost,
nothing has ended twice, and nothing is left over."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.redis_server import RedisServer, redis_server
from tests.storage.conftest import chosen_storages
from tests.system.conftest import Tell, managed
from tests.system.deployment import LEASE, Deployment, kill
from tests.system.soundness import assert_sound

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="looks at processes through /proc"),
    pytest.mark.skipif("redis" not in chosen_storages(), reason="PACKHORSE_TEST_STORAGES leaves Redis out"),
]


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[RedisServer]:
    """A server that keeps every write, also when it is killed the next moment."""
    with redis_server(tmp_path, "--appendonly", "yes", "--appendfsync", "always") as server:
        yield server


@pytest.fixture
def deployment(tmp_path: Path, own_server: RedisServer) -> Iterator[Deployment]:
    with managed(Deployment(tmp_path, f"{own_server.url}?patience=20s")) as deployment:
        yield deployment


def test_the_jobs_of_a_killed_worker_run_again_at_once(deployment: Deployment, tell: Tell) -> None:
    foreman = deployment.start(workers=2, slots=4)
    jobs = deployment.add("nap", {"seconds": 600}, number=4)
    deployment.until_begun(*jobs)
    victim = next(worker for worker in foreman.workers() if worker.id == deployment.job(jobs[0]).owner)
    hit = [job for job in jobs if deployment.job(job).owner == victim.id]

    died_at = kill(victim.pid)
    took = [deployment.until_begun(job, runs=2)[0].at / 1e6 - died_at for job in hit]
    for job in set(jobs) - set(hit):
        deployment.storage.abort([job])
    deployment.until_final()

    tell(f"run again {max(took) * 1000:.0f} ms after the death of the worker")
    assert_sound(deployment)


def test_when_foreman_and_workers_are_killed_another_crew_takes_their_jobs_up_after_the_lease(
    deployment: Deployment, tell: Tell
) -> None:
    foreman = deployment.start(workers=2, lease=LEASE)
    jobs = [*deployment.add("nap", {"seconds": 600}, number=2, max_halts=1_000)]
    jobs += deployment.add("inap", {"seconds": 600}, number=2, max_halts=1_000)
    deployment.until_begun(*jobs)
    other = deployment.start(slots=4, lease=LEASE)
    deployment.until_steady(other)

    died_at = foreman.kill()
    took = [line.at / 1e6 - died_at for line in deployment.until_begun(*jobs, runs=2)]
    deployment.until_final()

    tell(f"run again {max(took):.1f} s after the death of the foreman")
    assert_sound(deployment)
