"""Aborts jobs that waited for longer than `expires`, or lived for longer than `total_timeout`."""

from __future__ import annotations

from packhorse.storage import Storage
from packhorse.storage.records import PollResult

_BATCH = 500


class Expire:
    """Waiting jobs end here; held ones are asked to stop, and their worker ends them."""

    name = "expire"
    interval = 60.0

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    def due_in(self, result: PollResult) -> int | None:
        return result.expires_in

    def run(self) -> float | None:
        """Abort one batch; if it was full, run again immediately."""
        return 0.0 if self._storage.expire(limit=_BATCH) == _BATCH else None
