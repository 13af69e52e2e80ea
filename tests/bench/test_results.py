from __future__ import annotations

from pathlib import Path

from bench.results import load, save
from tests.bench.sample_results import some_results


def test_results_can_be_kept_and_read_again(tmp_path: Path):
    results = some_results()
    results.rows[0].errors.append("…")

    save(results, tmp_path / "deep" / "results.json")

    assert load(tmp_path / "deep" / "results.json") == results


def test_peers_of_a_storage_are_all_but_us():
    assert [row.peer for row in some_results().peers_of("redis")] == ["huey", "rq"]
    assert some_results().row("huey", "sqlite") is None
