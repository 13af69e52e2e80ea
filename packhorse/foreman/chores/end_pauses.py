"""Resumes queues whose pause is over."""

from __future__ import annotations

from packhorse.core.errors import StorageClosed
from packhorse.storage import Storage
from packhorse.storage.records import PollResult


class EndPauses:
    """The storage predicts when the next pause ends; the interval covers the unforeseen."""

    name = "end_pauses"
    interval = 600.0

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    def due_in(self, result: PollResult) -> int | None:
        return result.resumes_in

    def run(self) -> float | None:
        """Resume the queues. A queue that was paused again meanwhile stays paused."""
        now = self._storage.now()
        for queue in [queue for queue in self._storage.queues() if queue.is_over(now)]:
            try:
                self._storage.resume(queue.name, over=True)
            except StorageClosed:  # the storage was moved; the new one ends its pauses
                return None
        return None
