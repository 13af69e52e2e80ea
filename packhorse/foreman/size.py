"""How large a foreman's crew is to be: between which limits, and how many workers are wanted just now.

The limits come from the settings, and operators change them; between them `scaling.py` decides. Only the foreman's main
thread changes it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress

from msgspec.structs import asdict, replace

from packhorse.core.clock import SECOND
from packhorse.core.event import ForemanOrder
from packhorse.core.settings import Settings
from packhorse.foreman.scaling import Hand, Limits, Need, Plan, plan


class Size:
    """Of one crew. With `burst`, workers that find nothing more to do are not missed."""

    def __init__(self, settings: Settings, *, burst: bool = False) -> None:
        self._set = self.limits = _limits_of(settings)
        self.wanted = max(self.limits.least, int(burst))
        if burst:
            self.limits = replace(self.limits, least=0)

    def plan(self, need: Need, hands: Sequence[Hand]) -> Plan:
        """The next step, while so much waits for these."""
        found = plan(need, hands, self.wanted, self.limits)
        self.wanted = found.wanted
        return found

    def one_less(self) -> None:
        """A worker has gone, and need not be replaced."""
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


def _limits_of(settings: Settings) -> Limits:
    return Limits(
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
