from __future__ import annotations

from bench.targets import Target, targets
from tests.bench.sample_results import a_row, some_results


def target(storage: str, what: str) -> Target:
    return next(one for one in targets(some_results()) if one.storage == storage and one.what == what)


def test_packhorse_is_compared_with_the_fastest_peer_of_the_same_storage():
    found = target("redis", "drain, 1 process / fastest peer")

    assert (found.figure, found.bound, found.verdict) == (10.0, 8, "reached")


def test_packhorse_is_compared_with_the_bare_loop():
    assert target("redis", "drain, 1 process / bare loop").figure == 0.5
    assert target("redis", "enqueue_many / bare loop").figure == 0.5


def test_two_processes_are_compared_with_one():
    assert target("redis", "drain, 2 processes, relative to 1").figure == 1.5


def test_a_ratio_below_its_bound_is_not_reached():
    found = target("redis", "drain, 1,000,000 jobs waiting, relative to one queue")

    assert (found.figure, found.verdict) == (0.65, "NOT REACHED")


def test_a_latency_above_the_best_peers_is_not_reached():
    found = target("redis", "latency when idle, p50 (bound: the best peer)")

    assert (found.figure, found.bound, found.is_reached) == (0.9, 1.0, True)
    assert not found._replace(figure=1.1).is_reached


def test_a_job_that_never_finishes_misses_a_target():
    assert target("redis", "finished of 200, everything killed").is_reached
    assert not target("redis", "finished of 200, the machine killed").is_reached


def test_what_was_not_measured_cannot_fail():
    found = target("sqlite", "drain, 1 process / fastest peer")

    assert found.figure is None
    assert found.is_reached


def test_a_storage_without_packhorse_has_no_targets():
    results = some_results()
    results.rows = [a_row("huey", drain_one=1.0), a_row("packhorse", "postgres")]  # the latter was excluded

    assert targets(results) == []
