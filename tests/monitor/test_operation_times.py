"""Operation times: what workers tell of their calls, and what that comes to."""

from __future__ import annotations

from typing import Any

import pytest

from packhorse.monitor.operation_times import said_by, together, told
from packhorse.storage.records import OperationSums, OperationTimes, WorkerInfo


def sums(name: str, calls: int = 1, run: int = 100, **rest: int) -> OperationSums:
    return OperationSums(name, calls, **{"wait": 0, "wait_max": 0, "run_p95": run, "run_max": run, **rest}, run=run)


def a_worker(name: str, *operations: OperationSums) -> WorkerInfo:
    return WorkerInfo(name, report={"busy": 1, "storage": told(operations)})


def test_what_a_worker_tells_is_understood():
    finish = sums("finish", calls=3, run=900, wait=30, wait_max=20, run_p95=450, run_max=500)

    assert said_by(a_worker("ann", finish)) == [finish]


def test_only_the_dearest_calls_are_told():
    many = [sums(f"call_{number}", run=number) for number in range(1, 40)]

    assert list(told(many)) == [f"call_{number}" for number in range(39, 27, -1)]


def test_the_calls_of_all_workers_are_put_together():
    ann = a_worker("ann", sums("finish", 1, run=100, wait=8, wait_max=8), sums("beat", run=1))
    bob = a_worker("bob", sums("finish", 3, run=700, wait=0, run_p95=400, run_max=500))

    assert together([ann, bob, WorkerInfo("kim")]) == [
        OperationTimes("finish", 4, wait_mean=2, wait_max=8, run_mean=200, run_p95=400, run_max=500),
        OperationTimes("beat", 1, wait_mean=0, wait_max=0, run_mean=1, run_p95=1, run_max=1),
    ]


WRONG = [7, [1, 2], [0] * 6, [-1] * 6, [True] * 6, [1, 2, 3, 4, 5, "6"]]


@pytest.mark.parametrize("report", [None, 7, [], *({"finish": figures} for figures in WRONG)])
def test_what_cannot_be_understood_is_left_out(report: Any):
    assert together([WorkerInfo("eve", report={"storage": report})]) == []
