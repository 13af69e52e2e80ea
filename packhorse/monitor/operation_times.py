"""Operation times: how calls of the storage went in all workers, as each tells it in its report. Pure.

Workers say it every few seconds (`told`); the command line and the web put together what they said (`together`), and
so tell of those who do the work, and not only of themselves.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from packhorse.storage.records import OperationSums, OperationTimes, WorkerInfo

NAME = "storage"
"""Of this part of a report."""
WRITES = frozenset({"enqueue", "start", "finish", "finish_and_reserve", "release", "check_in", "append_log"})
"""What a worker writes for its jobs. Reserving alone changes nothing where nothing waits, and is left out."""

_MOST = 12  # kinds of calls that one process tells of: heartbeats carry it
_FIGURES = OperationSums.__struct_fields__[1:]


def told(operations: Sequence[OperationSums]) -> dict[str, list[int]]:
    """What a process says of its calls: of those that took most of its time, microseconds in the order of figures."""
    dearest = sorted(operations, key=lambda each: -(each.wait + each.run))[:_MOST]
    return {each.name: [getattr(each, figure) for figure in _FIGURES] for each in dearest}


def said_by(worker: WorkerInfo) -> list[OperationSums]:
    """What this one said, as far as it can be understood: a report is what somebody else wrote."""
    report = worker.report.get(NAME)
    if not isinstance(report, dict):
        return []
    return [OperationSums(str(name), *figures) for name, figures in report.items() if _are_figures(figures)]


def _are_figures(figures: Any) -> bool:
    is_list = isinstance(figures, list) and len(figures) == len(_FIGURES)
    return is_list and all(type(each) is int and each >= 0 for each in figures) and figures[0] > 0


def together(workers: Iterable[WorkerInfo]) -> list[OperationTimes]:
    """What all of them said, the dearest calls first. As no process says more than that, 95 of 100 calls took no longer
    than they did in the slowest."""
    by_name: dict[str, list[OperationSums]] = {}
    for worker in workers:
        for sums in said_by(worker):
            by_name.setdefault(sums.name, []).append(sums)
    dearest = sorted(map(_sum, by_name.values()), key=lambda each: (-each.run, each.name))
    return [each.times for each in dearest]


def _sum(parts: Sequence[OperationSums]) -> OperationSums:
    return OperationSums(
        name=parts[0].name,
        calls=sum(each.calls for each in parts),
        wait=sum(each.wait for each in parts),
        wait_max=max(each.wait_max for each in parts),
        run=sum(each.run for each in parts),
        run_p95=max(each.run_p95 for each in parts),
        run_max=max(each.run_max for each in parts),
    )
