"""Rescue: the jobs of workers that have fallen silent are taken back.

A foreman sees its own workers die and rescues their jobs at once; this is for those whose foreman is gone as well. It
keeps still until the foreman is steady: after an outage everybody seems silent, and would lose all they hold. A worker
that loses its jobs in this way may still be there, as when its foreman is frozen: on this machine it is ended, before
anybody gets its jobs if a signal has stopped it or its foreman.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from time import monotonic

from packhorse.core.clock import SECOND
from packhorse.core.event import Subject
from packhorse.core.settings import Settings
from packhorse.foreman.chores.chore import TrustedTime
from packhorse.monitor.liveness import is_alive
from packhorse.storage import Storage
from packhorse.storage.records import Outlook

log = logging.getLogger("packhorse.chores")

_LONGEST = 10.0
"""Seconds between two looks while nobody holds a job. A job that seems held, by nobody, is found by them, too."""


class Rescue:
    """What a lone foreman finds on its first round was lost before it came: the whole application had died, and those
    jobs go first. While nobody holds a job, nobody can lose one: it looks less often then, only for those that are
    gone and still listed."""

    name = "rescue"

    def __init__(
        self,
        storage: Storage,
        settings: Settings,
        trusted_time: TrustedTime,
        end_workers: Callable[[Collection[str]], None] = lambda owners: None,
        frozen_workers: Callable[[], Collection[str]] = lambda: (),
    ) -> None:
        self._storage = storage
        self._lease = settings.lease
        self._why = f"its worker was silent for {settings.shown('lease')}"
        self._steady_time = trusted_time
        self._end_workers = end_workers
        self._frozen_workers = frozen_workers
        self._frozen: Collection[str] = ()
        self._look_at = 0.0
        self._is_first_round = True
        self._looked_at = float("-inf")
        # Often enough that whoever died with a whole machine is found soon after its lease, whenever that was.
        self._look_every = min(settings.heartbeat, settings.lease / 5) / SECOND
        self.interval = max(self._look_every, min(settings.lease * 2 / 3 / SECOND, _LONGEST))

    def due_in(self, outlook: Outlook) -> int | None:
        return round(max(0.0, self._looked_at + self._look_every - monotonic()) * SECOND) if outlook.held else None

    def run(self) -> float | None:
        """Rescue until nothing is left, or the foreman is steady no more."""
        self._looked_at = monotonic()
        now = self._steady_time()
        recovered = now is not None and self._is_first_round and self._is_alone(now)
        if now is not None:
            self._end_frozen(now)
        while now is not None:
            # By the time that was looked at: the clock may have been set since, and everybody would seem silent.
            rescued = self._storage.rescue(lease=self._lease, why=self._why, recovered=recovered, at=now)
            self._is_first_round = False
            if not rescued:
                break
            self._end_workers({job.owner for job in rescued})
            log.warning("rescued %d jobs of silent workers", len(rescued))
            now = self._steady_time()
        return None

    def _end_frozen(self, now: int) -> None:
        """End those of this machine that are about to lose their jobs."""
        if monotonic() >= self._look_at:  # more often than a lease ends, and not in every round: it goes through /proc
            self._look_at = monotonic() + self._lease / SECOND / 3
            self._frozen = self._frozen_workers()
        if self._frozen:
            workers = [each for each in self._storage.workers() if each.id in self._frozen]
            self._end_workers({each.id for each in workers if not each.is_beating(now, now, self._lease)})

    def _is_alone(self, now: int) -> bool:
        foremen = [each for each in self._storage.workers() if each.subject is Subject.FOREMAN]
        return sum(is_alive(foreman, now, self._lease) for foreman in foremen) <= 1
