"""Chores: upkeep on a timer. Every foreman does all of them; each step is one atomic call of the storage, so any number
of foremen may do them at once, and none is needed for correctness."""

from __future__ import annotations

from packhorse.chores.chore import Chore, IsSteady
from packhorse.chores.expire import Expire
from packhorse.chores.promote import Promote
from packhorse.chores.prune import Prune
from packhorse.chores.rescue import Rescue
from packhorse.chores.roll_up import RollUp
from packhorse.chores.schedules import TickSchedules
from packhorse.settings import Settings
from packhorse.storage import Storage

__all__ = ["Chore", "IsSteady", "all_chores"]


def all_chores(storage: Storage, settings: Settings, is_steady: IsSteady) -> list[Chore]:
    """Everything that a foreman does on a timer; `is_steady` says whether it may believe that
    who seems silent is."""
    return [
        Promote(storage),
        TickSchedules(storage),
        Expire(storage),
        Rescue(storage, settings, is_steady),
        Prune(storage, settings, is_steady),
        RollUp(storage),
    ]
