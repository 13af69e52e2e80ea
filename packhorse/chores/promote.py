"""Promote: scheduled and retrying jobs come into line when they are due, to the millisecond."""

from __future__ import annotations

from packhorse.clock import SECOND
from packhorse.storage import Storage


class Promote:
    """Knows when the next job is due and asks to run just then; a second ahead at most, because another process may
    schedule one sooner."""

    name = "promote"
    interval = 1.0

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    def run(self) -> float | None:
        """A read while nothing is due; a write only when something is."""
        due_in = self._storage.next_due()
        if due_in == 0:
            self._storage.promote()
            due_in = self._storage.next_due()
        return None if due_in is None else min(due_in / SECOND, self.interval)
