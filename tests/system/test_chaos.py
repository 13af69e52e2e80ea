"""A short round of chaos with a fixed seed; `make chaos` plays longer ones."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.storage.conftest import storages
from tests.system import chaos
from tests.system.conftest import Tell

pytestmark = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="looks at processes through /proc")


@pytest.mark.timeout(900)  # on a busy machine it takes a while until everything has happened
@pytest.mark.parametrize("storage", storages("sqlite", but="memory"))
def test_a_thousand_jobs_over_three_foremen_survive_chaos(storage: str, tmp_path: Path, tell: Tell) -> None:
    # It continues until everything has happened.
    plan = chaos.short_plan(storage)
    report = chaos.survive(plan, tmp_path, storage)

    tell(f"{storage}, seed {plan.seed}\n{chr(10).join(report.table())}\n")
    assert report.violations == []
    assert report.jobs >= 1_000
    assert (report.lost, report.twice) == (0, 0)
    assert report.faults.keys() == chaos.DECK.keys(), "each fault has come to pass"
    assert report.extra > 0, "and some process was hit"
