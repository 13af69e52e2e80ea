"""Statistics: what points, reports and connections come to."""

from __future__ import annotations

import math
from typing import Any

import pytest

from packhorse.core.clock import DAY, HOUR, MINUTE, SECOND
from packhorse.core.metrics import LIMITS, Measures, measure_runs
from packhorse.monitor.stats import (
    ConnectionTotals,
    connection_totals,
    connections_report,
    longest_wait,
    operations_report,
    percentile_bound,
    reported_operations,
    run_stats,
    stats_by_time,
    total_operation_times,
)
from packhorse.storage.records import OperationSums, OperationTimes, Point, WorkerInfo


def point(*runs: tuple[int, int], at: int = 0) -> Point:
    """Attempts: how long each ran, and had waited."""
    measures: Measures = {}
    measure_runs(measures, "mail", "send", runs)
    return Point(at, "mail", "send", {counted: amount for (_, _, counted), amount in measures.items()})


def durations() -> list[int]:
    """From a millisecond to a day, so close together that every step has its ends among them."""
    thin = [round(1_000 * math.exp(number / 50)) for number in range(914)]
    return [duration for duration in sorted({*thin, *(limit + 1 for limit in LIMITS)}) if 1_000 < duration <= DAY]


def test_a_percentile_is_right_to_a_fifth_however_long_it_took() -> None:
    for duration in durations():
        found = run_stats([point((duration, 2 * duration))])

        assert found.run_p50 == found.run_p95 == found.run_p99 == pytest.approx(duration / SECOND, rel=0.205)
        assert duration > DAY / 2 or found.wait_p50 == pytest.approx(2 * duration / SECOND, rel=0.205)


def test_the_percentiles_are_those_of_all_points_together() -> None:
    quick, slow = (
        point(*[(7_000, 0)] * 94),
        point(*[(900_000, 5 * SECOND)] * 4, (20 * MINUTE, HOUR), (2 * DAY, 3 * DAY)),
    )

    found = run_stats([quick, slow])

    assert (found.run_p50, found.run_p95, found.run_p99) == (0.0069, 0.89, 1_200.0)
    assert (found.wait_p50, found.wait_p95, found.wait_p99) == (0.001, 4.8, 3_400.0)
    assert found.runs == 100


def test_where_something_was_counted_without_steps_there_is_a_mean_and_no_percentile() -> None:
    former = Point(0, "mail", "send", {"ran": 6 * SECOND, "waited": 2 * SECOND, "ran_3s": 3, "completed": 3})

    found = run_stats([former, point((2 * SECOND, 2 * SECOND))])

    assert (found.runs, found.run_mean, found.wait_mean) == (4, 2.0, 1.0)
    assert {found.run_p50, found.run_p95, found.run_p99, found.wait_p50, found.wait_p95, found.wait_p99} == {None}


def test_nothing_has_no_percentiles() -> None:
    found = run_stats([Point(0, "mail", "send", {"added": 3})])

    assert (found.added, found.runs, found.run_p95, found.wait_p95) == (3, 0, None, None)


@pytest.mark.parametrize(
    ("percentile", "told"), [(0.001, ("≤", 0.001)), (0.24, ("", 0.24)), (200_000.0, (">", 100_000.0))]
)
def test_what_lies_beyond_all_steps_says_so(percentile: float, told: tuple[str, float]) -> None:
    assert percentile_bound(percentile) == told


def test_the_longest_wait_of_many() -> None:
    assert longest_wait([point((1, 5_000), (1, 2 * SECOND)), point((1, 1))]) == 1.7
    assert longest_wait([]) is None


def test_moments_come_in_their_order() -> None:
    found = stats_by_time([point((3_500, 0), at=MINUTE), point((1, 0)), point((900, 0), at=MINUTE)])

    assert {at: (each.runs, each.run_p99) for at, each in found.items()} == {0: (1, 0.001), MINUTE: (2, 0.0034)}
    assert list(found) == [0, MINUTE]


def test_what_always_takes_as_long_has_no_percentile_below_or_above_that() -> None:
    found = run_stats([point(*[(51_000, 2_600)] * 20)])

    assert (found.run_p50, found.run_p95, found.run_p99) == (0.051, 0.051, 0.051)
    assert found.wait_p50 == longest_wait([point(*[(51_000, 2_600)] * 20)]) == 0.0026


# --- calls of the storage ---------------------------------------------------------------------------------------------


def sums(name: str, calls: int = 1, run: int = 100, **rest: int) -> OperationSums:
    return OperationSums(name, calls, **{"wait": 0, "wait_max": 0, "run_p95": run, "run_max": run, **rest}, run=run)


def a_worker(name: str, *operations: OperationSums) -> WorkerInfo:
    return WorkerInfo(name, report={"busy": 1, "storage": operations_report(operations)})


def test_what_a_worker_tells_is_understood():
    finish = sums("finish", calls=3, run=900, wait=30, wait_max=20, run_p95=450, run_max=500)

    assert reported_operations(a_worker("ann", finish)) == [finish]


def test_only_the_dearest_calls_are_told():
    many = [sums(f"call_{number}", run=number) for number in range(1, 40)]

    assert list(operations_report(many)) == [f"call_{number}" for number in range(39, 27, -1)]


def test_the_calls_of_all_workers_are_put_together():
    ann = a_worker("ann", sums("finish", 1, run=100, wait=8, wait_max=8), sums("beat", run=1))
    bob = a_worker("bob", sums("finish", 3, run=700, wait=0, run_p95=400, run_max=500))

    assert total_operation_times([ann, bob, WorkerInfo("kim")]) == [
        OperationTimes("finish", 4, wait_mean=2, wait_max=8, run_mean=200, run_p95=400, run_max=500),
        OperationTimes("beat", 1, wait_mean=0, wait_max=0, run_mean=1, run_p95=1, run_max=1),
    ]


WRONG = [7, [1, 2], [0] * 6, [-1] * 6, [True] * 6, [1, 2, 3, 4, 5, "6"]]


@pytest.mark.parametrize("report", [None, 7, [], *({"finish": figures} for figures in WRONG)])
def test_what_cannot_be_understood_is_left_out(report: Any):
    assert total_operation_times([WorkerInfo("eve", report={"storage": report})]) == []


# --- connections ------------------------------------------------------------------------------------------------------


def test_processes_that_do_not_say_how_many_they_have_are_not_counted():
    alive = [
        WorkerInfo("new", report=connections_report((3, 1))),
        WorkerInfo("old", report={"state": "working"}),
        WorkerInfo("odd", report={"connections_open": "many"}),
    ]

    assert connection_totals([(2, 1), (1, 0)], alive) == ConnectionTotals(open=6, in_use=2, processes=2)
