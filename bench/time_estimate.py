"""How long a run will take: the planned duration of each part, corrected by how long the finished parts took.

`bench.race` prints the estimate; nothing else depends on it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bench.contender import Contender
from bench.plan import Plan

_START = 0.7  # seconds until the processes of a contender run
_SINGLE_RATE = 1_500  # jobs per second, one by one, roughly
_MANY_RATE = 15_000  # the same in bulk
_BARE_LOOPS = 12.0  # seconds for all loops of a storage
_LOST_WORKER = 12.0


class TimeEstimate:
    """The planned durations of all parts of a run by name, and the real ones of the finished parts."""

    def __init__(self, parts: Mapping[str, float]) -> None:
        self._expected = dict(parts)
        self._done: dict[str, float] = {}

    def note(self, part: str, seconds: float) -> None:
        """Record how long a part took."""
        self._done[part] = seconds

    def left(self) -> float:
        """Seconds that remain: the planned ones, times the ratio of real to planned so far."""
        planned = sum(self._expected[part] for part in self._done)
        pace = sum(self._done.values()) / planned if planned else 1.0
        return pace * sum(seconds for part, seconds in self._expected.items() if part not in self._done)


def lap_seconds(contender: Contender, plan: Plan, *, is_first: bool) -> float:
    """The planned duration of one lap of one contender."""
    many = plan.many / _MANY_RATE if contender.facts.has_many else 0.0
    drains = (2 if plan.has_two else 1) * (2 * _START + 2 * plan.drain_seconds)  # enqueueing takes as long as draining
    presence = 4 * _START + 1 + plan.latency_seconds + plan.half_seconds + (1 + plan.idle_seconds if is_first else 0)
    seconds = 2 * _START + plan.single / _SINGLE_RATE + many + drains + presence
    if contender.peer == "packhorse":
        seconds += _BARE_LOOPS + (_stress_seconds(plan) if is_first and plan.stress else 0.0)
    return seconds


def _stress_seconds(plan: Plan) -> float:
    return 5 * (2 * _START + 2 * plan.drain_seconds) + plan.stress / _MANY_RATE


def crash_seconds(contenders: Sequence[Contender], plan: Plan) -> float:
    """The planned duration of all crashes. Most peers run into the time limit, several at a time; the crash of a single
    Packhorse worker runs alone."""
    ours = sum(contender.peer == "packhorse" for contender in contenders)
    theirs = len(contenders) - ours
    return ours * _LOST_WORKER + plan.crash_patience * (theirs + ours) / plan.crashes_at_once


def minutes(seconds: float) -> str:
    """The duration as it is printed.

    >>> minutes(150)
    '3 minutes'
    >>> minutes(40)
    '1 minute'
    """
    number = max(1, round(seconds / 60))
    return f"{number} minute{'' if number == 1 else 's'}"
