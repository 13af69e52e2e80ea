from __future__ import annotations

from bench.floors import Floor, floors
from tests.bench.outcomes import a_row, some_results


def floor(storage: str, what: str) -> Floor:
    return next(one for one in floors(some_results()) if one.storage == storage and one.what == what)


def test_we_are_set_beside_the_fastest_peer_of_the_same_storage():
    found = floor("redis", "drain, 1 process, next to the fastest peer")

    assert (found.figure, found.bound, found.verdict) == (10.0, 8, "reached")


def test_we_are_set_beside_the_bare_loop():
    assert floor("redis", "drain, 1 process, next to the bare loop").figure == 0.5
    assert floor("redis", "enqueue_many, next to the bare loop").figure == 0.5


def test_two_processes_are_set_beside_one():
    assert floor("redis", "drain, 2 processes, next to 1").figure == 1.5


def test_a_share_below_its_floor_is_not_reached():
    found = floor("redis", "drain, 1,000,000 jobs waiting, next to one queue")

    assert (found.figure, found.verdict) == (0.65, "NOT REACHED")


def test_a_latency_above_the_best_peers_is_not_reached():
    found = floor("redis", "latency when idle, p50 (floor: the best peer's)")

    assert (found.figure, found.bound, found.is_reached) == (0.9, 1.0, True)
    assert not found._replace(figure=1.1).is_reached


def test_a_job_that_never_finishes_is_a_floor_missed():
    assert floor("redis", "finished of 200, everything killed").is_reached
    assert not floor("redis", "finished of 200, the machine killed").is_reached


def test_what_was_not_measured_cannot_fail():
    found = floor("sqlite", "drain, 1 process, next to the fastest peer")

    assert found.figure is None
    assert found.is_reached


def test_storages_on_which_we_did_not_run_have_no_floors():
    results = some_results()
    results.rows = [a_row("huey", drain_one=1.0), a_row("packhorse", "postgres")]  # the latter was out at once

    assert floors(results) == []
