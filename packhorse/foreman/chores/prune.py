"""Removes finished jobs, old events and silent clients when their retention is over.

It waits for the rescue guard: by a wrong clock, everything would seem old and would be lost.
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
"""Seconds of rest for each second of work, so that half of the storage's time is left to others."""


class Prune:
    """Works in small steps for a bounded time, then rests, so that nothing waits for it for long."""

    name = "prune"

    def __init__(
        self, storage: Storage, settings: Settings, trusted_time: TrustedTime, time: Callable[[], float] = monotonic
    ) -> None:
        self._storage = storage
        self._trusted_time = trusted_time
        self._time = time
        self.adjust(settings)

    def adjust(self, settings: Settings) -> None:
        """Use the retention of these settings."""
        self._keep = retention(settings)
        # Remove a silent client soon after its timeout.
        self.interval = min(max(settings.client_timeout // 3, 5 * SECOND), MINUTE) / SECOND

    def run(self) -> float | None:
        """Return the seconds to rest, if more is left than one run removes."""
        began = self._time()
        while (now := self._trusted_time()) is not None:
            # By the trusted time: if the clock were set now, everything would seem old.
            if not self._storage.prune(self._keep, at=now).more:
                return None
            worked = self._time() - began
            if worked >= _LONGEST:
                return worked * _REST
        return None
