"""Promote: scheduled and retrying jobs come into line when they are due, to the millisecond."""

from __future__ import annotations

from packhorse.core.clock import SECOND
from packhorse.storage import Storage
from packhorse.storage.records import PollResult


class Promote:
    """Knows when the next job is due and asks to run just then."""

    name = "promote"
    interval = 60.0

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    def due_in(self, outlook: PollResult) -> int | None:
        return outlook.due_in

    def run(self) -> float | None:
        """A read while nothing is due; a write only when something is. However late the next job is, it comes again
        after its interval: it relies on nobody to tell of one that is sooner."""
        due_in = self._storage.next_due()
        if due_in == 0:
            self._storage.promote()
            due_in = self._storage.next_due()
        return None if due_in is None or due_in >= self.interval * SECOND else due_in / SECOND
