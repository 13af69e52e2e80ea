"""While the storage is away: when to try again, and what the log says meanwhile. Everything stays with the worker until
the storage is back; the tokens decide then whether it still counts."""

from __future__ import annotations

import logging
import random
import time

from packhorse.core.errors import StorageUnavailable
from packhorse.storage.contract import BATCH

log = logging.getLogger("packhorse.worker")

FIRST_PAUSE, LONGEST_PAUSE = 0.05, 5.0
"""Seconds between two tries."""
TELL_AGAIN = 60.0
"""Seconds after which it is told again."""


class Outage:
    """Of one worker's storage; there may be none."""

    def __init__(self) -> None:
        self.next_try = 0.0
        self.most = BATCH  # outcomes in one call: perhaps it was too much at once, for a server's time or for a proxy
        self._pause = 0.0
        self._tell_again_at = 0.0

    def noticed(self, error: StorageUnavailable, waiting: int) -> None:
        """The storage does not answer, and so many outcomes wait to be written down."""
        now = time.monotonic()
        self.most = max(1, self.most // 2)
        self._pause = min(LONGEST_PAUSE, max(FIRST_PAUSE, self._pause * 2))
        self.next_try = now + random.uniform(0.5, 1.0) * self._pause
        if now >= self._tell_again_at:
            self._tell_again_at = now + TELL_AGAIN
            log.warning("the storage does not answer; %s outcomes wait: %s", waiting, error)

    @property
    def is_under_way(self) -> bool:
        return self._pause > 0.0

    def ended(self) -> None:
        """The storage has answered."""
        self.most = min(BATCH, self.most * 2)
        if self._tell_again_at:
            log.info("the storage answers again")
        self._pause = self._tell_again_at = 0.0
