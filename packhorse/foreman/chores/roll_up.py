"""Roll up: the minutes of the charts are folded into hours, and the hours into days."""

from __future__ import annotations

from packhorse.storage import Storage


class RollUp:
    """Once a minute, because a minute is the finest there is to fold."""

    name = "roll_up"
    interval = 60.0

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    def run(self) -> float | None:
        """One step; what was folded is not folded again."""
        self._storage.roll_up()
        return None
