"""How many workers are wanted, from the backlog and the load of the workers; no I/O, no clock.

The foreman asks about once a second. It starts with the minimum, adds workers while jobs wait and no slot is idle, and
stops workers that have been idle for a while. Forced jobs that find every slot busy get extra workers, counted
separately, which end with the job.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from contextlib import suppress

import msgspec
from msgspec.structs import asdict, replace

from packhorse.core.clock import SECOND
from packhorse.core.event import ForemanOrder
from packhorse.core.settings import Settings

PATIENCE = 0.25
"""Seconds that a job waits before a worker is added for it: bursts of short jobs need none."""
TOO_LONG = 5.0
"""Seconds of waiting after which half-busy workers count as saturated: their jobs are too short to be seen."""
EXTRA_IDLE = 2.0
"""Seconds after which an extra worker that found no job ends."""


class Demand(msgspec.Struct, frozen=True):
    """The jobs that wait in the queues of the workers."""

    backlog: int = 0  # jobs that could be reserved now
    oldest_wait: float = 0.0  # seconds
    forced: int = 0  # the forced ones among them


class WorkerLoad(msgspec.Struct, frozen=True):
    """The load of a worker that takes jobs, or will soon."""

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
    """The number of ordinary workers to have, of extra ones to start, and the workers to stop."""

    wanted: int
    extra: int = 0
    stop: list[str] = []


def plan(demand: Demand, loads: Sequence[WorkerLoad], wanted: int, limits: ScalingLimits) -> ScalingPlan:
    """The next plan; `wanted` is the number of ordinary workers wanted so far."""
    ordinary = [load for load in loads if not load.is_extra]
    extra = [load for load in loads if load.is_extra]
    grown = _grown(demand, ordinary, wanted, limits)
    idle = [] if grown > wanted else _idle(demand, ordinary, grown, limits)
    over = [load.id for load in extra if _has_served(load)]
    return ScalingPlan(grown - len(idle), _extra(demand, ordinary, extra, grown, limits), idle + over)


def _grown(demand: Demand, loads: Sequence[WorkerLoad], wanted: int, limits: ScalingLimits) -> int:
    """`wanted`, plus the workers that the waiting jobs could keep busy."""
    coming = max(0, wanted - _online(loads)) * limits.slots
    lack = demand.backlog - coming
    if lack > 0 and (wanted == 0 or (demand.oldest_wait >= PATIENCE and _is_saturated(demand, loads))):
        wanted += -(-lack // limits.slots)
    return min(max(wanted, limits.least), limits.most)


def _is_saturated(demand: Demand, loads: Sequence[WorkerLoad]) -> bool:
    if _idle_slots(loads) == 0:
        return True
    # Reports are samples: with jobs of a millisecond, many slots are empty when the sample is taken.
    busy, slots = sum(load.busy for load in loads), sum(load.slots for load in loads)
    return demand.oldest_wait >= TOO_LONG and 2 * busy >= slots


def _idle(demand: Demand, loads: Sequence[WorkerLoad], wanted: int, limits: ScalingLimits) -> list[str]:
    """The workers to stop: the longest idle first, and never below the minimum."""
    if demand.backlog > 0:
        return []
    idle = [load for load in loads if load.is_online and load.busy == 0 and load.idle_for >= limits.idle_stop]
    idle.sort(key=lambda load: -load.idle_for)
    return [load.id for load in idle[: max(0, wanted - limits.least)]]


def _extra(
    demand: Demand, ordinary: Sequence[WorkerLoad], extra: Sequence[WorkerLoad], wanted: int, limits: ScalingLimits
) -> int:
    """The number of extra workers to start: one for each forced job without a free or coming slot."""
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
    """The limits and the wanted number of one foreman. With `burst`, workers that find nothing more to run are not
    replaced."""

    def __init__(self, settings: Settings, *, burst: bool = False) -> None:
        self._set = self.limits = _limits_of(settings)
        self.wanted = max(self.limits.least, int(burst))
        if burst:
            self.limits = replace(self.limits, least=0)

    def plan(self, demand: Demand, loads: Sequence[WorkerLoad]) -> ScalingPlan:
        """The next plan for this demand and load."""
        found = plan(demand, loads, self.wanted, self.limits)
        self.wanted = found.wanted
        return found

    def one_less(self) -> None:
        """A worker has ended and needs no replacement."""
        self.wanted = max(0, self.wanted - 1)

    def lower(self) -> None:
        """Lower the minimum to the number wanted now."""
        self.limits = replace(self.limits, least=min(self.limits.least, self.wanted))

    def scale(self, order: ForemanOrder) -> None:
        """Apply an operator's order; what it leaves out stays."""
        least = self.limits.least if order.least is None else order.least
        most = max(least, self.limits.most if order.most is None else order.most)
        self.limits = replace(self.limits, least=least, most=most)
        self.wanted = min(max(self.wanted, least), most)

    def reset(self, settings: Settings) -> bool:
        """Apply settings that were read again. Limits that did not change there stay as operators set them. Return
        whether anything changed."""
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
        """The slots of workers that start from now on."""
        self.limits = replace(self.limits, slots=slots)


def most_workers(settings: Settings) -> int:
    """The maximum of the settings, by default the number of CPUs for this process."""
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


# --- how soon to replace workers that die young -----------------------------------------------------------------------

YOUNG = 10.0
"""Seconds. A worker that ends sooner, without having finished a job, died young."""
TOLERATED = 3
"""So many early deaths in a row are followed by an immediate restart."""
BROKEN_AFTER = 5
"""After so many early deaths without any success, the app itself is broken."""
LONGEST_WAIT = 60.0


class CrashBackoff:
    """Counts the early deaths in a row of all workers of a foreman, so that a broken app causes no storm of starts.
    With `gives_up`, no worker starts after `BROKEN_AFTER` of them until `start_over`."""

    def __init__(self, *, gives_up: bool = False) -> None:
        self._gives_up = gives_up
        self.deaths = 0
        self._succeeded = False
        self._not_before = 0.0

    def died_young(self, at: float) -> None:
        self.deaths += 1
        self._not_before = at + self.wait

    def succeeded(self) -> None:
        """A worker has finished a job, or has lived long enough."""
        self.deaths = 0
        self._succeeded = True

    def start_over(self) -> None:
        """The code of the workers has changed: earlier deaths no longer count."""
        self.deaths = 0

    @property
    def wait(self) -> float:
        """Seconds between the last early death and the next start."""
        if self.deaths < TOLERATED:
            return 0.0
        if self._gives_up and self.deaths >= BROKEN_AFTER:
            return math.inf
        if self.is_broken:
            return LONGEST_WAIT
        return min(LONGEST_WAIT, 2.0 ** min(self.deaths - TOLERATED, 10))

    @property
    def is_broken(self) -> bool:
        return self.deaths >= BROKEN_AFTER and not self._succeeded

    def seconds_left(self, at: float) -> float:
        """Seconds until the next start is allowed."""
        return max(0.0, self._not_before - at) if self.deaths >= TOLERATED else 0.0

    def may_start(self, at: float, starting: int) -> bool:
        """In doubt, start one worker at a time; `starting` is the number of those not online yet."""
        if self.deaths < TOLERATED:
            return True
        return starting == 0 and self.seconds_left(at) == 0.0
