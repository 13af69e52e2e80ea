"""Expire: jobs that waited or lived longer than they may are aborted."""

from __future__ import annotations

from packhorse.storage import Storage
from packhorse.storage.records import PollResult

_AT_ONCE = 500


class Expire:
    """Waiting jobs end here; held ones are asked to stop, and their worker ends them."""

    name = "expire"
    interval = 60.0

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    def due_in(self, outlook: PollResult) -> int | None:
        return outlook.expires_in

    def run(self) -> float | None:
        """One batch; more of them follow at once."""
        return 0.0 if self._storage.expire(limit=_AT_ONCE) == _AT_ONCE else None
