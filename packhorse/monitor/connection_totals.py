"""Connections to the storage, of all processes: each tells its own with its heartbeat, and whoever looks adds them."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from packhorse.storage.records import WorkerInfo

_OPEN, _IN_USE = "connections_open", "connections_in_use"


class ConnectionTotals(msgspec.Struct):
    """Connections of so many processes: workers and foremen that are alive, and whoever was asked for this."""

    open: int
    in_use: int
    processes: int


def told_connections(connections: tuple[int, int]) -> dict[str, int]:
    """What a process says of its connections in its report."""
    return dict(zip((_OPEN, _IN_USE), connections, strict=True))


def connection_totals(ours: Iterable[tuple[int, int]], alive: Iterable[WorkerInfo]) -> ConnectionTotals:
    """Those of this process, and of all that are alive and say how many they have."""
    reports = [worker.report for worker in alive if isinstance(worker.report.get(_OPEN), int)]
    mine = list(ours)
    return ConnectionTotals(
        open=sum(number for number, _ in mine) + sum(report[_OPEN] for report in reports),
        in_use=sum(number for _, number in mine) + sum(_whole(report.get(_IN_USE)) for report in reports),
        processes=1 + len(reports),
    )


def _whole(value: object) -> int:
    return value if isinstance(value, int) else 0
