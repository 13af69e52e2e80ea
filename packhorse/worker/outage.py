"""An outage of the storage, as one worker sees it: when to try again, how much to send, and what to log."""

from __future__ import annotations

import logging
import random
import time

from packhorse.core.errors import StorageUnavailable
from packhorse.storage.contract import BATCH

log = logging.getLogger("packhorse.worker")

FIRST_PAUSE, LONGEST_PAUSE = 0.05, 5.0
"""Seconds between two attempts."""
LOG_EVERY = 60.0
"""Seconds between two warnings about the same outage."""


class Outage:
    """Whether the storage is unavailable, and when to try again. Until then the worker keeps its outcomes; later the
    tokens decide which of them still count."""

    def __init__(self) -> None:
        self.next_try = 0.0
        self.most = BATCH  # outcomes in one call: a large one may take too long for the server or for a proxy
        self._pause = 0.0
        self._next_warning = 0.0

    def note(self, error: StorageUnavailable, waiting: int) -> None:
        """A call has failed, and so many outcomes wait."""
        now = time.monotonic()
        self.most = max(1, self.most // 2)
        self._pause = min(LONGEST_PAUSE, max(FIRST_PAUSE, self._pause * 2))
        self.next_try = now + random.uniform(0.5, 1.0) * self._pause
        if now >= self._next_warning:
            self._next_warning = now + LOG_EVERY
            log.warning("the storage does not answer; %s outcomes wait: %s", waiting, error)

    @property
    def is_on(self) -> bool:
        return self._pause > 0.0

    def end(self) -> None:
        """A call has succeeded."""
        self.most = min(BATCH, self.most * 2)
        if self._next_warning:
            log.info("the storage answers again")
        self._pause = self._next_warning = 0.0
