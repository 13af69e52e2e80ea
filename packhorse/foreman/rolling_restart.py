"""A rolling restart: every worker gives way to a fresh one, one after the other, each only when its substitute is
online. If the new code does not start, the old workers go on.
"""

from __future__ import annotations

from collections.abc import Callable

from packhorse.foreman.processes import WorkerGroup
from packhorse.foreman.worker_handle import WorkerHandle


class RollingRestart:
    """Where a restart stands. `start` starts a substitute, or answers None when it must wait."""

    def __init__(
        self, workers: WorkerGroup, start: Callable[[], WorkerHandle | None], drain: Callable[[WorkerHandle, str], None]
    ) -> None:
        self._workers = workers
        self._start = start
        self._drain = drain
        self._old: list[str] = []
        self._substitute: str | None = None

    @property
    def is_under_way(self) -> bool:
        return bool(self._old)

    def begin(self, only: str | None = None) -> None:
        """Replace all that are there now, or only this one; also those that came in during a restart that is still
        under way."""
        if only is not None:
            self._old = [*(old for old in self._old if old != only), only]
            return
        self._old = [worker.id for worker in self._workers.active]
        self._substitute = None

    def step(self) -> None:
        """Go as far as is possible now."""
        self._old = [worker.id for worker in self._workers.active if worker.id in self._old]
        if not self._old:
            return
        substitute = self._workers.get(self._substitute or "")
        if substitute is None:
            started = self._start()
            self._substitute = started.id if started else None
        elif substitute.is_online:
            self._substitute = None
            old = self._workers.get(self._old.pop(0))
            if old is not None:
                self._drain(old, "replaced by a fresh worker")
