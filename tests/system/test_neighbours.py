"""A job that kills its worker does not take its neighbours along for good."""

from __future__ import annotations

from packhorse.core.job import COMPLETED, DEAD
from tests.system.sites import Site
from tests.system.soundness import assert_sound


def test_the_neighbours_of_a_job_that_kills_its_workers_are_halted_once_and_complete(site: Site) -> None:
    site.start(slots=5)
    neighbours = site.add("nap", {"seconds": 600.0}, number=3)  # when they run again, they end at once
    site.until_begun(*neighbours)
    (poison,) = site.add("poison")

    site.until_final()

    assert (site.job(poison).state, site.job(poison).halts) == (DEAD, 3)
    assert [(site.job(job_id).state, site.job(job_id).halts) for job_id in neighbours] == [(COMPLETED, 1)] * 3
    assert_sound(site)
