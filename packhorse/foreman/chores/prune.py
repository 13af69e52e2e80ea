"""Prune: finished jobs, old events and silent clients go when their time to be kept is over.

It keeps still until the foreman is steady: by a clock that is wrong everything seems old, and would be lost for good.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

from packhorse.core.clock import MINUTE, SECOND
from packhorse.core.settings import Settings
from packhorse.foreman.chores.chore import TrustedTime
from packhorse.monitor.actions import retention
from packhorse.storage import Storage

_LONGEST = 0.25
"""Seconds of work after which a run ends: the other chores wait for it."""
_REST = 1.0
"""Seconds of rest for each second of work, while more is left: half of the storage's time is everybody else's."""


class Prune:
    """Small steps for a bounded time, so that nobody waits long; after a rest it goes on."""

    name = "prune"

    def __init__(
        self, storage: Storage, settings: Settings, trusted_time: TrustedTime, time: Callable[[], float] = monotonic
    ) -> None:
        self._storage = storage
        self._steady_time = trusted_time
        self._time = time
        self.adjust(settings)

    def adjust(self, settings: Settings) -> None:
        """Keep things for as long as these say."""
        self._keep = retention(settings)
        # A client that went is to be noticed soon after its time is over.
        self.interval = min(max(settings.client_timeout // 3, 5 * SECOND), MINUTE) / SECOND

    def run(self) -> float | None:
        """Answers how long it wants to rest, if more is left than one run removes."""
        began = self._time()
        while (now := self._steady_time()) is not None:
            # By the time that was looked at: were the clock set the next moment, everything would seem old.
            if not self._storage.prune(self._keep, at=now).more:
                return None
            worked = self._time() - began
            if worked >= _LONGEST:
                return worked * _REST
        return None
