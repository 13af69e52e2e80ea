"""Rescues the jobs of workers that have fallen silent.

A foreman sees its own workers die and rescues their jobs immediately; this chore is for workers whose foreman is gone
too. It waits for the rescue guard: after an outage every worker seems silent, and would lose its jobs. A worker that
loses its jobs this way may still exist, for example if its foreman is frozen. On this machine it is killed; if a signal
has stopped it or its foreman, before others get its jobs.
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
from packhorse.storage.records import PollResult

log = logging.getLogger("packhorse.chores")

_LONGEST = 10.0
"""Seconds between two runs while no job is held. They also find jobs that are held by no existing worker."""


class Rescue:
    """If this is the only foreman, its first round rescues jobs that were lost before it started: the whole application
    had died, and these jobs go first. While no job is held, it runs less often, only for dead workers that are still
    listed."""

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
        self._trusted_time = trusted_time
        self._end_workers = end_workers
        self._frozen_workers = frozen_workers
        self._frozen: Collection[str] = ()
        self._check_frozen_at = 0.0
        self._is_first_round = True
        self._ran_at = float("-inf")
        # Often enough to find the workers of a dead machine soon after their lease.
        self._run_every = min(settings.heartbeat, settings.lease / 5) / SECOND
        self.interval = max(self._run_every, min(settings.lease * 2 / 3 / SECOND, _LONGEST))

    def due_in(self, result: PollResult) -> int | None:
        return round(max(0.0, self._ran_at + self._run_every - monotonic()) * SECOND) if result.held else None

    def run(self) -> float | None:
        """Rescue until nothing is left, or the time is no longer trusted."""
        self._ran_at = monotonic()
        now = self._trusted_time()
        recovered = now is not None and self._is_first_round and self._is_alone(now)
        if now is not None:
            self._end_frozen(now)
        while now is not None:
            # By the trusted time: if the clock were set now, every worker would seem silent.
            rescued = self._storage.rescue(lease=self._lease, why=self._why, recovered=recovered, at=now)
            self._is_first_round = False
            if not rescued:
                break
            self._end_workers({job.owner for job in rescued})
            log.warning("rescued %d jobs of silent workers", len(rescued))
            now = self._trusted_time()
        return None

    def _end_frozen(self, now: int) -> None:
        """Kill the frozen workers of this machine that are about to lose their jobs."""
        if monotonic() >= self._check_frozen_at:  # reading /proc is slow: three times a lease
            self._check_frozen_at = monotonic() + self._lease / SECOND / 3
            self._frozen = self._frozen_workers()
        if self._frozen:
            workers = [each for each in self._storage.workers() if each.id in self._frozen]
            self._end_workers({each.id for each in workers if not each.is_beating(now, now, self._lease)})

    def _is_alone(self, now: int) -> bool:
        foremen = [each for each in self._storage.workers() if each.subject is Subject.FOREMAN]
        return sum(is_alive(foreman, now, self._lease) for foreman in foremen) <= 1
