"""How many workers are wanted? From what waits and how busy the workers is to numbers; no I/O, no clock.

The foreman asks about once a second. It starts with the minimum, adds workers while jobs wait and no slot is idle, and
lets those go that have been idle for a while. Forced jobs that find every slot busy get workers of their own, counted
apart, which end with the job.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress

import msgspec
from msgspec.structs import asdict, replace

from packhorse.core.clock import SECOND
from packhorse.core.event import ForemanOrder
from packhorse.core.settings import Settings

PATIENCE = 0.25
"""Seconds that a job may wait before a worker is added for it: bursts of short jobs demand none."""
TOO_LONG = 5.0
"""Seconds after which half a workers that looks idle is busy all the same, with jobs too short to be seen."""
EXTRA_IDLE = 2.0
"""Seconds after which an extra worker that found no job goes."""


class Demand(msgspec.Struct, frozen=True):
    """What waits, of the queues that the workers knows."""

    backlog: int = 0  # jobs that could be reserved now
    oldest_wait: float = 0.0  # seconds
    forced: int = 0  # those among them that an operator has forced


class WorkerLoad(msgspec.Struct, frozen=True):
    """One worker that takes jobs, or is about to."""

    id: str
    slots: int
    busy: int = 0
    done: int = 0
    idle_for: float = 0.0  # seconds
    is_online: bool = True
    is_extra: bool = False


class ScalingLimits(msgspec.Struct, frozen=True):
    least: int
    most: int
    slots: int  # of each worker
    idle_stop: float  # seconds
    most_extra: int


class ScalingPlan(msgspec.Struct, frozen=True):
    """What to do: have so many ordinary workers, start so many extra ones, and let these go."""

    wanted: int
    extra: int = 0
    stop: list[str] = []


def plan(demand: Demand, loads: Sequence[WorkerLoad], wanted: int, limits: ScalingLimits) -> ScalingPlan:
    """The next step; `wanted` is how many ordinary workers were wanted until now."""
    ordinary = [load for load in loads if not load.is_extra]
    extra = [load for load in loads if load.is_extra]
    grown = _grown(demand, ordinary, wanted, limits)
    idle = [] if grown > wanted else _idle(demand, ordinary, grown, limits)
    over = [load.id for load in extra if _has_served(load)]
    return ScalingPlan(grown - len(idle), _extra(demand, ordinary, extra, grown, limits), idle + over)


def _grown(demand: Demand, loads: Sequence[WorkerLoad], wanted: int, limits: ScalingLimits) -> int:
    """`wanted`, and as many more as the jobs that wait could keep busy."""
    coming = max(0, wanted - _online(loads)) * limits.slots
    lack = demand.backlog - coming
    if lack > 0 and (wanted == 0 or (demand.oldest_wait >= PATIENCE and _is_saturated(demand, loads))):
        wanted += -(-lack // limits.slots)
    return min(max(wanted, limits.least), limits.most)


def _is_saturated(demand: Demand, loads: Sequence[WorkerLoad]) -> bool:
    if _idle_slots(loads) == 0:
        return True
    # Reports are moments. Jobs of a millisecond leave many a slot empty at the moment of looking.
    busy, slots = sum(load.busy for load in loads), sum(load.slots for load in loads)
    return demand.oldest_wait >= TOO_LONG and 2 * busy >= slots


def _idle(demand: Demand, loads: Sequence[WorkerLoad], wanted: int, limits: ScalingLimits) -> list[str]:
    """Who may go: the longest idle first, and never below the minimum."""
    if demand.backlog > 0:
        return []
    idle = [load for load in loads if load.is_online and load.busy == 0 and load.idle_for >= limits.idle_stop]
    idle.sort(key=lambda load: -load.idle_for)
    return [load.id for load in idle[: max(0, wanted - limits.least)]]


def _extra(
    demand: Demand, ordinary: Sequence[WorkerLoad], extra: Sequence[WorkerLoad], wanted: int, limits: ScalingLimits
) -> int:
    """How many extra workers to start: one for each forced job that no slot is free or coming for."""
    if _idle_slots(ordinary) > 0:
        return 0
    coming = max(0, wanted - _online(ordinary)) * limits.slots
    free = sum(load.busy == 0 and not _has_served(load) for load in extra)
    return max(0, min(demand.forced - coming - free, limits.most_extra - len(extra)))


def _has_served(extra: WorkerLoad) -> bool:
    return extra.done > 0 or (extra.is_online and extra.busy == 0 and extra.idle_for >= EXTRA_IDLE)


def _online(loads: Sequence[WorkerLoad]) -> int:
    return sum(load.is_online for load in loads)


def _idle_slots(loads: Sequence[WorkerLoad]) -> int:
    return sum(max(0, load.slots - load.busy) for load in loads if load.is_online)


# --- the limits of one foreman ------------------------------------------------------------------------------------


class Scaler:
    """Of one workers. With `burst`, workers that find nothing more to do are not missed."""

    def __init__(self, settings: Settings, *, burst: bool = False) -> None:
        self._set = self.limits = _limits_of(settings)
        self.wanted = max(self.limits.least, int(burst))
        if burst:
            self.limits = replace(self.limits, least=0)

    def plan(self, demand: Demand, loads: Sequence[WorkerLoad]) -> ScalingPlan:
        """The next step, while so much waits for these."""
        found = plan(demand, loads, self.wanted, self.limits)
        self.wanted = found.wanted
        return found

    def one_less(self) -> None:
        """A worker has gone, and demand not be replaced."""
        self.wanted = max(0, self.wanted - 1)

    def lower(self) -> None:
        """So few are enough from now on, unless more jobs wait than they can take."""
        self.limits = replace(self.limits, least=min(self.limits.least, self.wanted))

    def scale(self, order: ForemanOrder) -> None:
        """As an operator wants it; what the order leaves out stays."""
        least = self.limits.least if order.least is None else order.least
        most = max(least, self.limits.most if order.most is None else order.most)
        self.limits = replace(self.limits, least=least, most=most)
        self.wanted = min(max(self.wanted, least), most)

    def reset(self, settings: Settings) -> bool:
        """As the settings are by now. What they leave as it was stays as operators want it. False: nothing changed."""
        before, after = self._set, _limits_of(settings)
        if after == before:
            return False
        self._set = after
        changed = {name: new for name, new in asdict(after).items() if new != getattr(before, name)}
        limits = replace(self.limits, **changed)
        self.limits = replace(limits, most=max(limits.least, limits.most))
        self.wanted = min(max(self.wanted, self.limits.least), self.limits.most)
        return True

    def set_slots(self, slots: int) -> None:
        """Of each worker that is started from now on."""
        self.limits = replace(self.limits, slots=slots)


def most_workers(settings: Settings) -> int:
    """Where nothing is set, as many as there are CPUs for this process."""
    return settings.max_workers or _cpus()


def _limits_of(settings: Settings) -> ScalingLimits:
    return ScalingLimits(
        least=settings.min_workers,
        most=max(most_workers(settings), settings.min_workers),
        slots=settings.concurrency,
        idle_stop=settings.idle_stop / SECOND,
        most_extra=_cpus() if settings.max_forced is None else settings.max_forced,
    )


def _cpus() -> int:
    with suppress(AttributeError):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
