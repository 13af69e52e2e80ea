"""How many workers are wanted? From what waits and how busy the crew is to numbers; no I/O, no clock.

The foreman asks about once a second. It starts with the minimum, adds workers while jobs wait and no slot is idle, and
lets those go that have been idle for a while. Forced jobs that find every slot busy get workers of their own, counted
apart, which end with the job.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

PATIENCE = 0.25
"""Seconds that a job may wait before a worker is added for it: bursts of short jobs need none."""
TOO_LONG = 5.0
"""Seconds after which half a crew that looks idle is busy all the same, with jobs too short to be seen."""
EXTRA_IDLE = 2.0
"""Seconds after which an extra worker that found no job goes."""


class Need(msgspec.Struct, frozen=True):
    """What waits, of the queues that the crew knows."""

    backlog: int = 0  # jobs that could be reserved now
    oldest_wait: float = 0.0  # seconds
    forced: int = 0  # those among them that an operator has forced


class Hand(msgspec.Struct, frozen=True):
    """One worker that takes jobs, or is about to."""

    id: str
    slots: int
    busy: int = 0
    done: int = 0
    idle_for: float = 0.0  # seconds
    is_online: bool = True
    is_extra: bool = False


class Limits(msgspec.Struct, frozen=True):
    least: int
    most: int
    slots: int  # of each worker
    idle_stop: float  # seconds
    most_extra: int


class Plan(msgspec.Struct, frozen=True):
    """What to do: have so many ordinary workers, start so many extra ones, and let these go."""

    wanted: int
    extra: int = 0
    stop: list[str] = []


def plan(need: Need, hands: Sequence[Hand], wanted: int, limits: Limits) -> Plan:
    """The next step; `wanted` is how many ordinary workers were wanted until now."""
    ordinary = [hand for hand in hands if not hand.is_extra]
    extra = [hand for hand in hands if hand.is_extra]
    grown = _grown(need, ordinary, wanted, limits)
    idle = [] if grown > wanted else _idle(need, ordinary, grown, limits)
    over = [hand.id for hand in extra if _has_served(hand)]
    return Plan(grown - len(idle), _extra(need, ordinary, extra, grown, limits), idle + over)


def _grown(need: Need, hands: Sequence[Hand], wanted: int, limits: Limits) -> int:
    """`wanted`, and as many more as the jobs that wait could keep busy."""
    coming = max(0, wanted - _online(hands)) * limits.slots
    lack = need.backlog - coming
    if lack > 0 and (wanted == 0 or (need.oldest_wait >= PATIENCE and _is_saturated(need, hands))):
        wanted += -(-lack // limits.slots)
    return min(max(wanted, limits.least), limits.most)


def _is_saturated(need: Need, hands: Sequence[Hand]) -> bool:
    if _idle_slots(hands) == 0:
        return True
    # Reports are moments. Jobs of a millisecond leave many a slot empty at the moment of looking.
    busy, slots = sum(hand.busy for hand in hands), sum(hand.slots for hand in hands)
    return need.oldest_wait >= TOO_LONG and 2 * busy >= slots


def _idle(need: Need, hands: Sequence[Hand], wanted: int, limits: Limits) -> list[str]:
    """Who may go: the longest idle first, and never below the minimum."""
    if need.backlog > 0:
        return []
    idle = [hand for hand in hands if hand.is_online and hand.busy == 0 and hand.idle_for >= limits.idle_stop]
    idle.sort(key=lambda hand: -hand.idle_for)
    return [hand.id for hand in idle[: max(0, wanted - limits.least)]]


def _extra(need: Need, ordinary: Sequence[Hand], extra: Sequence[Hand], wanted: int, limits: Limits) -> int:
    """How many extra workers to start: one for each forced job that no slot is free or coming for."""
    if _idle_slots(ordinary) > 0:
        return 0
    coming = max(0, wanted - _online(ordinary)) * limits.slots
    free = sum(hand.busy == 0 and not _has_served(hand) for hand in extra)
    return max(0, min(need.forced - coming - free, limits.most_extra - len(extra)))


def _has_served(extra: Hand) -> bool:
    return extra.done > 0 or (extra.is_online and extra.busy == 0 and extra.idle_for >= EXTRA_IDLE)


def _online(hands: Sequence[Hand]) -> int:
    return sum(hand.is_online for hand in hands)


def _idle_slots(hands: Sequence[Hand]) -> int:
    return sum(max(0, hand.slots - hand.busy) for hand in hands if hand.is_online)
