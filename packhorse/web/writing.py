"""Writing: how long the workers' writes took over the last hour, as they tell it themselves. The glance fills it.

Workers count since they began; what came between two looks is the difference. It costs the storage nothing: their
records are read anyway.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from typing import NamedTuple

from packhorse.monitor.stats import WRITES, reported_operations
from packhorse.storage.records import WorkerInfo
from packhorse.web.latencies import Latencies


class _Written(NamedTuple):
    """Of one worker since it began: how many writes, and microseconds for all of them."""

    calls: int
    run: int


class Writing:
    """The last hour, minute by minute; `longest` is the mean of the worker that was slowest. Any thread may add."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self.minutes = Latencies(now)
        self._lock = threading.Lock()
        self._known: dict[str, _Written] = {}

    def add(self, workers: Iterable[WorkerInfo]) -> None:
        """This is what they tell now."""
        present = {worker.id: _written(worker) for worker in workers}
        with self._lock:
            known, self._known = self._known, present
        for owner, written in present.items():
            calls, run = written.calls - known.get(owner, written).calls, written.run - known.get(owner, written).run
            if calls > 0 and run >= 0:
                self.minutes.add(run, calls)


def _written(worker: WorkerInfo) -> _Written:
    writes = [each for each in reported_operations(worker) if each.name in WRITES]
    return _Written(sum(each.calls for each in writes), sum(each.run for each in writes))
