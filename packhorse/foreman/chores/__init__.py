"""Chores: upkeep on a timer. Every foreman does all of them; each step is one atomic operation of the storage, so any
number of foremen may do them concurrently, and none is needed for correctness."""

from __future__ import annotations

from collections.abc import Callable, Collection

from packhorse.core.outcome import Overrun
from packhorse.core.settings import Settings
from packhorse.foreman.chores.chore import Chore, EndWorker, StuckJobs, TrustedTime
from packhorse.foreman.chores.end_pauses import EndPauses
from packhorse.foreman.chores.enforce_limits import EnforceLimits
from packhorse.foreman.chores.expire import Expire
from packhorse.foreman.chores.promote import Promote
from packhorse.foreman.chores.prune import Prune
from packhorse.foreman.chores.rescue import Rescue
from packhorse.foreman.chores.roll_up import RollUp
from packhorse.foreman.chores.schedules import TickSchedules
from packhorse.foreman.chores.skip_dead import SkipDead
from packhorse.storage import Storage

__all__ = ["Chore", "EndWorker", "StuckJobs", "TrustedTime", "all_chores"]


def _not_ours(overrun: Overrun) -> bool:
    return False


def all_chores(
    storage: Storage,
    settings: Settings,
    trusted_time: TrustedTime,
    end_workers: Callable[[Collection[str]], None] = lambda owners: None,
    end_worker: EndWorker = _not_ours,
    frozen_workers: Callable[[], Collection[str]] = lambda: (),
    stuck_jobs: StuckJobs = dict,
) -> list[Chore]:
    """The chores of a foreman. `trusted_time` returns the storage's time, or None if the foreman must not act on it.
    `end_workers` kills workers of this machine that lose their jobs to others, and `frozen_workers` lists those that a
    signal has stopped. `end_worker` ends a worker of this foreman with an overrun job, and `stuck_jobs` lists the jobs
    of stuck workers."""
    return [
        Promote(storage),
        TickSchedules(storage),
        Expire(storage),
        EndPauses(storage),
        Rescue(storage, settings, trusted_time, end_workers, frozen_workers),
        EnforceLimits(storage, settings, trusted_time, end_worker, stuck_jobs),
        Prune(storage, settings, trusted_time),
        SkipDead(storage),
        RollUp(storage),
    ]
