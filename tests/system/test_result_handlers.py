"""Result handlers are called for what ended in no worker, also when the foreman that reports it is killed."""

from __future__ import annotations

import os

import pytest

from packhorse.core.clock import HOUR, SECOND
from tests.system.deployment import LEASES, Deployment, ForemanProcess, until

pytestmark = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="looks at processes through /proc")

TARGET = "tests.system.result_tasks:app"


def test_each_end_is_told_although_the_foreman_that_tells_is_killed(deployment: Deployment) -> None:
    teller = deployment.start(lease=LEASES[1], target=TARGET)
    other = deployment.start(lease=LEASES[1], target=TARGET)
    jobs = abort_in_line(deployment)
    until(lambda: set(deployment.run_log.told()) == set(jobs), "the first foreman has called them")

    deployment.freeze(teller.pid)  # so that it cannot have told of the next ones
    jobs += abort_in_line(deployment)
    until_it_has_looked(other)
    teller.kill()
    jobs += abort_in_line(deployment)

    until(lambda: set(deployment.run_log.told()) == set(jobs), "the second foreman continues")


def abort_in_line(deployment: Deployment) -> list[str]:
    jobs = deployment.add("nap", number=20, delay=HOUR)
    deployment.storage.abort(jobs)
    return jobs


def until_it_has_looked(foreman: ForemanProcess) -> None:
    """Wait until a foreman has given signs of life for longer than its chore rests."""
    begun = foreman.deployment.storage.now()

    def has_beaten() -> bool:
        record = foreman.record()
        return record is not None and record.beat_at > begun + 3 * SECOND

    until(has_beaten, "it has lived for 3 s")
