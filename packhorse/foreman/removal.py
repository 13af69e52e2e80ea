"""The removal: a foreman whose storage is moved, or was, finds nothing to do there, and says why in its log.

The lookout tells what it has seen. What is new is told at once, and the same again every few minutes.
"""

from __future__ import annotations

import logging

from packhorse.storage.contract import Storage
from packhorse.storage.records import Outlook
from packhorse.storage.transfer import Move, Stage, closed

log = logging.getLogger("packhorse")

_LOOK_AGAIN = 10.0
"""Seconds between two looks at how far a move is."""
_TELL_AGAIN = 600.0
"""Seconds after which it is told again."""


class Removal:
    """Of one foreman's storage; mostly there is none."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._told: Stage | None = None
        self._look_at = self._tell_again_at = 0.0

    def heed(self, outlook: Outlook, now: float) -> None:
        """What the lookout has seen; `now` is in seconds, by a clock that nobody turns."""
        if not outlook.moved:
            self._told, self._look_at = None, 0.0
        elif now >= self._look_at:
            self._look_at = now + _LOOK_AGAIN
            self._tell(self._storage.move(), now)

    def _tell(self, move: Move | None, now: float) -> None:
        if move is not None and (move.stage is not self._told or now >= self._tell_again_at):
            self._told, self._tell_again_at = move.stage, now + _TELL_AGAIN
            log.warning("%s", _text(move))


def _text(move: Move) -> str:
    ends = "nothing more will come from it: start workers on the new one"
    return f"{closed(move).what}; {ends if move.stage is Stage.MOVED else 'meanwhile no job begins'}"
