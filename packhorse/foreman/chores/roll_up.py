"""Rolls up the minutes of the charts into hours, and the hours into days."""

from __future__ import annotations

from packhorse.storage import Storage


class RollUp:
    """Runs once a minute, the finest resolution."""

    name = "roll_up"
    interval = 60.0

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    def run(self) -> float | None:
        """Roll up what is complete; each point is rolled up once."""
        self._storage.roll_up()
        return None
