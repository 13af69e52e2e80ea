"""A short round of chaos with a fixed seed; `make chaos` plays longer ones."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.storage.conftest import chosen_storages
from tests.system import chaos
from tests.system.conftest import Tell

pytestmark = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="looks at processes through /proc")

PLAN = chaos.Plan(jobs=1_000, seconds=10.0, foremen=3, seed=11)


@pytest.mark.parametrize("storage", [name for name in chosen_storages() if name != "memory"])
def test_a_thousand_jobs_over_three_foremen_survive_chaos(storage: str, tmp_path: Path, tell: Tell) -> None:
    # A server's processes start more slowly beside it, and each fault needs somebody to hit.
    plan = PLAN if storage == "sqlite" else PLAN._replace(seconds=25.0)
    aftermath = chaos.run(plan, tmp_path, storage)

    tell(f"{storage}, seed {PLAN.seed}\n{chr(10).join(aftermath.table())}\n")
    assert aftermath.violations == []
    assert aftermath.jobs >= 1_000
    assert (aftermath.lost, aftermath.twice) == (0, 0)
    assert aftermath.faults.keys() == chaos.DECK.keys(), "each fault has come to pass"
    assert aftermath.extra > 0, "and somebody was hit"
