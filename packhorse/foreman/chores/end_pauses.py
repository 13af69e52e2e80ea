"""End pauses: a queue that was paused for a while is resumed when that is over, whether anybody looks or not."""

from __future__ import annotations

from packhorse.core.errors import StorageClosed
from packhorse.storage import Storage
from packhorse.storage.records import PollResult


class EndPauses:
    """The storage tells when the next pause ends; the interval is for whatever was not foreseen."""

    name = "end_pauses"
    interval = 600.0

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    def due_in(self, outlook: PollResult) -> int | None:
        return outlook.resumes_in

    def run(self) -> float | None:
        """Resume what is over. Somebody who has paused it anew meanwhile is not overruled."""
        now = self._storage.now()
        for queue in [queue for queue in self._storage.queues() if queue.is_over(now)]:
            try:
                self._storage.resume(queue.name, over=True)
            except StorageClosed:  # it is moved, and its pauses with it; the new storage ends them
                return None
        return None
