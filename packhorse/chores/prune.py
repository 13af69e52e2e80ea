"""Prune: finished jobs, old events and silent clients go when their time to be kept is over."""

from __future__ import annotations

from msgspec.structs import replace

from packhorse.chores.chore import IsSteady
from packhorse.clock import DAY, MINUTE, SECOND
from packhorse.settings import Settings
from packhorse.storage import Storage
from packhorse.storage.records import Retention

_ROUNDS = 10
_SOON = 1.0
_FOR_EVER = 1_000 * 365 * DAY


class Prune:
    """A bounded number of small steps, so that nobody waits long for the storage; after a break it goes on."""

    name = "prune"

    def __init__(self, storage: Storage, settings: Settings, is_steady: IsSteady) -> None:
        self._storage = storage
        self._is_steady = is_steady
        self._keep = retention(settings)
        # A client that went is to be noticed soon after its time is over.
        self.interval = min(max(settings.client_timeout // 3, 5 * SECOND), MINUTE) / SECOND

    def run(self) -> float | None:
        """Answers that it wants to go on soon, if more is left than one run removes."""
        # After an outage or a step of the clock living clients seem silent too, and would be forgotten.
        keep = self._keep if self._is_steady() else replace(self._keep, clients=_FOR_EVER)
        for _ in range(_ROUNDS):
            if not self._storage.prune(keep).more:
                return None
        return _SOON


def retention(settings: Settings) -> Retention:
    """How long things are kept."""
    return Retention(
        completed=settings.keep_completed,
        dead=settings.keep_dead,
        aborted=settings.keep_aborted,
        events=settings.keep_events,
        clients=settings.client_timeout,
    )
