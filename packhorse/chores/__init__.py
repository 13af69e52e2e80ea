"""Chores: upkeep on a timer. Every foreman does all of them; each step is one atomic call of the storage, so any number
of foremen may do them at once, and none is needed for correctness."""

from __future__ import annotations

from packhorse.chores.chore import Chore, SteadyTime
from packhorse.chores.end_pauses import EndPauses
from packhorse.chores.expire import Expire
from packhorse.chores.promote import Promote
from packhorse.chores.prune import Prune
from packhorse.chores.rescue import Rescue
from packhorse.chores.roll_up import RollUp
from packhorse.chores.schedules import TickSchedules
from packhorse.settings import Settings
from packhorse.storage import Storage

__all__ = ["Chore", "SteadyTime", "all_chores"]


def all_chores(storage: Storage, settings: Settings, steady_time: SteadyTime) -> list[Chore]:
    """Everything that a foreman does on a timer; `steady_time` says whether it may believe the clock, and so that who
    seems silent is."""
    return [
        Promote(storage),
        TickSchedules(storage),
        Expire(storage),
        EndPauses(storage),
        Rescue(storage, settings, steady_time),
        Prune(storage, settings, steady_time),
        RollUp(storage),
    ]
