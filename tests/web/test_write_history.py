"""Writing: the writes of workers over the last hour, from what they have counted since they began."""

from __future__ import annotations

from packhorse.monitor.stats import operations_report
from packhorse.storage.records import OperationSums, WorkerInfo
from packhorse.web.cache import WriteHistory


def a_worker(name: str, calls: int, run: int, operation: str = "finish") -> WorkerInfo:
    return WorkerInfo(
        name, report={"storage": operations_report([OperationSums(operation, calls, 0, 0, run, run, run)])}
    )


def shown(writing: WriteHistory) -> list[tuple[int, float, float]]:
    return [(each.calls, each.mean, each.longest) for each in writing.minutes.last_hour() if each is not None]


def test_what_came_since_the_last_look_is_counted():
    writing = WriteHistory(lambda: 6_000.0)

    writing.add([a_worker("ann", 1_000, 900_000), a_worker("bob", 10, 1_000)])
    assert shown(writing) == []  # that may have been days ago

    writing.add([a_worker("ann", 1_010, 902_000), a_worker("bob", 20, 2_000)])
    assert shown(writing) == [(20, 150, 200)]


def test_a_worker_that_is_new_or_has_begun_anew_counts_from_then_on():
    writing = WriteHistory(lambda: 6_000.0)
    writing.add([a_worker("ann", 1_000, 900_000)])

    writing.add([a_worker("ann", 5, 500), a_worker("kim", 7, 700)])
    assert shown(writing) == []

    writing.add([a_worker("ann", 6, 600)])
    assert shown(writing) == [(1, 100, 100)]


def test_reads_do_not_count():
    writing = WriteHistory(lambda: 6_000.0)
    writing.add([a_worker("ann", 1, 100, "find")])

    writing.add([a_worker("ann", 9, 900, "find")])

    assert shown(writing) == []
