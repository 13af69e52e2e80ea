"""Queues scheduled and retrying jobs when they are due, to the millisecond."""

from __future__ import annotations

from packhorse.core.clock import SECOND
from packhorse.storage import Storage
from packhorse.storage.records import PollResult


class Promote:
    """Reads when the next job is due, and runs then."""

    name = "promote"
    interval = 60.0

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    def due_in(self, result: PollResult) -> int | None:
        return result.due_in

    def run(self) -> float | None:
        """Reads while nothing is due, and writes only when something is. It runs at least once in its interval, in case
        a job was enqueued that is due sooner."""
        due_in = self._storage.next_due()
        if due_in == 0:
            self._storage.promote()
            due_in = self._storage.next_due()
        return None if due_in is None or due_in >= self.interval * SECOND else due_in / SECOND
