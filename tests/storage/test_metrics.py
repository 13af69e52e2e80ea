"""The meter: how long calls waited, and how long the storage took."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from packhorse.storage import open_storage
from packhorse.storage.metrics import CallMetrics
from packhorse.storage.records import OperationTimes
from tests.children import PATIENCE

MICROSECOND = 1e-6


def only(meter: CallMetrics) -> OperationTimes:
    (times,) = meter.report()
    return times


def test_a_new_meter_has_nothing_to_report() -> None:
    assert CallMetrics().report() == []
    assert CallMetrics().busy_retries == 0


def test_waiting_and_running_are_told_apart() -> None:
    meter = CallMetrics()

    meter.record("enqueue", wait=0.010, run=0.001)
    meter.record("enqueue", wait=0.030, run=0.003)

    assert only(meter) == OperationTimes(
        "enqueue", calls=2, wait_mean=20_000, wait_max=30_000, run_mean=2_000, run_p95=3_000, run_max=3_000
    )


def test_each_kind_of_call_has_its_line_in_the_order_of_names() -> None:
    meter = CallMetrics()

    for name in ("reserve", "enqueue", "reserve", "finish"):
        meter.record(name, 0.0, 0.001)

    assert [(times.name, times.calls) for times in meter.report()] == [("enqueue", 1), ("finish", 1), ("reserve", 2)]


def test_nineteen_of_twenty_calls_are_within_the_95th_percentile() -> None:
    meter = CallMetrics()

    for _ in range(95):
        meter.record("get", 0.0, 100 * MICROSECOND)
    for _ in range(5):
        meter.record("get", 0.0, 1.0)

    assert 100 <= only(meter).run_p95 <= 100 * 2**0.5
    assert only(meter).run_max == 1_000_000


def test_the_95th_percentile_sees_the_slow_ones_when_they_are_many() -> None:
    meter = CallMetrics()

    for _ in range(90):
        meter.record("get", 0.0, 100 * MICROSECOND)
    for _ in range(10):
        meter.record("get", 0.0, 1.0)

    assert only(meter).run_p95 == 1_000_000


@pytest.mark.parametrize("run", [0.0, 1e-9, 5 * MICROSECOND, 0.5, 59.0, 100.0, 100_000.0])
def test_a_single_call_is_its_own_percentile(run: float) -> None:
    meter = CallMetrics()

    meter.record("get", 0.0, run)

    times = only(meter)
    assert times.run_p95 == times.run_max == times.run_mean == round(run * 1e6)


def test_a_percentile_is_never_longer_than_the_longest_call() -> None:
    meter = CallMetrics()

    for run in (0.001, 0.0011, 0.0012):
        meter.record("get", 0.0, run)

    assert only(meter).run_p95 == 1_200


def test_threads_may_record_at_once() -> None:
    meter = CallMetrics()
    start = threading.Barrier(8)

    def record() -> None:
        start.wait(PATIENCE)
        for _ in range(500):
            meter.record("get", MICROSECOND, MICROSECOND)
            meter.report()

    threads = [threading.Thread(target=record) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert only(meter).calls == 4_000
    assert only(meter).run_mean == 1


# --- what a storage measures ------------------------------------------------------------------------------------------


@pytest.fixture(params=["postgresql://ann@127.0.0.1:1/jobs", "mysql://ann@127.0.0.1:1/jobs"])
def measure(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Callable[[float, float], OperationTimes]:
    """One call that gets its connection, and is answered, so many seconds after; nobody is asked."""
    storage: Any = open_storage(request.param)
    wall = [100.0]
    monkeypatch.setattr(
        sys.modules[type(storage._db).__module__], "time", SimpleNamespace(perf_counter=lambda: wall[0])
    )

    def call(until_lent: float, until_answered: float) -> OperationTimes:
        @contextmanager
        def lent() -> Iterator[None]:
            wall[0] += until_lent
            yield

        def work(link: object) -> None:
            wall[0] += until_answered

        monkeypatch.setattr(storage._db, "lent", lent)
        storage._db.read_with("find", work)
        (sums,) = storage.measured()
        return sums.times

    return call


def test_too_few_connections_are_waiting_and_not_running(measure: Callable[[float, float], OperationTimes]):
    times = measure(5.0, 0.001)

    assert (times.wait_mean, times.run_mean) == (5_000_000, 1_000)


def test_an_overloaded_storage_is_running_and_not_waiting(measure: Callable[[float, float], OperationTimes]):
    times = measure(0.0, 0.05)

    assert (times.wait_mean, times.run_mean) == (0, 50_000)
