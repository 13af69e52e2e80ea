"""A job that kills its worker does not take its neighbours along for good."""

from __future__ import annotations

from packhorse.core.job import COMPLETED, DEAD
from tests.system.deployment import Deployment
from tests.system.soundness import assert_sound


def test_the_neighbours_of_a_job_that_kills_its_workers_are_halted_once_and_complete(deployment: Deployment) -> None:
    deployment.start(slots=5)
    neighbours = deployment.add("nap", {"seconds": 600.0}, number=3)  # when they run again, they end immediately
    deployment.until_begun(*neighbours)
    (poison,) = deployment.add("poison")

    deployment.until_final()

    assert (deployment.job(poison).state, deployment.job(poison).halts) == (DEAD, 3)
    assert [(deployment.job(job_id).state, deployment.job(job_id).halts) for job_id in neighbours] == [
        (COMPLETED, 1)
    ] * 3
    assert_sound(deployment)
