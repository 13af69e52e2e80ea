"""The figures of a worker: it sends them to its foreman once a second, and to the storage when it ends."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from packhorse.core.clock import SECOND
from packhorse.monitor.stats import OPERATIONS_KEY, connections_report, operations_report
from packhorse.storage.records import OperationSums
from packhorse.worker.loop import WorkerLoop
from packhorse.worker.processes import resident_bytes

_EVERY = 1.0
_TIMES_EVERY = 5.0
_MAX_RUNNING = 100


class WorkerStats:
    """The figures of one worker. `rss` is its memory at the last report; above `max_rss` it is replaced. `measured`
    returns how long its calls of the storage took, `connections` how many it has."""

    def __init__(
        self,
        loop: WorkerLoop,
        slots: int,
        send: Callable[[dict[str, Any]], object],
        max_rss: int | None = None,
        measured: Callable[[], Sequence[OperationSums]] = tuple,
        connections: Callable[[], tuple[int, int]] = lambda: (0, 0),
    ) -> None:
        self._loop = loop
        self._slots = slots
        self._send = send
        self._max_rss = max_rss
        self._measured = measured
        self._connections = connections
        self._times: dict[str, list[int]] = {}
        self._timed_at = float("-inf")
        self._sent_at = 0.0
        self._used = time.process_time()
        self._cpu = 0
        self.rss = 0

    def report(self) -> None:
        """Send a report to the foreman, if a second has passed."""
        now = time.monotonic()
        if now - self._sent_at >= _EVERY:
            self._note_cpu(now)
            self._sent_at = now
            self.rss = resident_bytes()
            state = "working" if self._loop.fetcher.takes_jobs else "quiet"
            about = {
                OPERATIONS_KEY: self._storage_times(now),
                "running": self._running(now),
                **connections_report(self._connections()),
            }
            self._send({"say": "report", "state": state, **self.figures(), **about})

    def _storage_times(self, now: float) -> dict[str, list[int]]:
        """How long its calls of the storage took; computed as often as it is shown."""
        if now - self._timed_at >= _TIMES_EVERY:
            self._timed_at, self._times = now, operations_report(self._measured())
        return self._times

    def figures(self) -> dict[str, Any]:
        return {
            "busy": len(self._loop.busy),
            "slots": self._slots,
            "done": self._loop.finisher.done,
            "failed": self._loop.finisher.failed,
            "busy_seconds": round(self._loop.finisher.ran / SECOND, 1),
            "rss": self.rss,
            "cpu_percent": self._cpu,
            **({} if self._max_rss is None else {"max_rss": self._max_rss}),
        }

    def _note_cpu(self, now: float) -> None:
        """The share of one CPU that this process has used since the last report."""
        used, before = time.process_time(), self._used
        self._used = used
        if self._sent_at:
            self._cpu = round(100 * (used - before) / (now - self._sent_at))

    def _running(self, now: float) -> list[dict[str, Any]]:
        """The jobs that run, as many as fit on a page. The foreman has the rest from the shared status."""
        return [
            {"slot": held.slot, "job_id": held.job.id, "task": held.task.name, "since_s": round(now - held.began_at, 1)}
            for held in self._loop.busy
            if held.began_at is not None
        ][:_MAX_RUNNING]
