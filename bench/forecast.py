"""How long a run will take: what each part should need by the plan, mended by what the parts before it took.

`bench.race` says what it is about to do and what it has done; the answers are printed, nothing depends on them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bench.contender import Contender
from bench.plan import Plan

_START = 0.7  # seconds until a process of anybody is at work
_SINGLE_RATE = 1_500  # jobs a second that go in one by one, more or less
_MANY_RATE = 15_000  # and in bulk
_BARE_LOOPS = 12.0  # seconds for all of a storage
_LOST_WORKER = 12.0


class Forecast:
    """The parts of a run that are still to come, by name, and the pace of those that are over."""

    def __init__(self, parts: Mapping[str, float]) -> None:
        self._expected = dict(parts)
        self._done: dict[str, float] = {}

    def note(self, part: str, seconds: float) -> None:
        """A part is over."""
        self._done[part] = seconds

    def left(self) -> float:
        """Seconds. A part is expected to take as much longer than planned as those before it took in all."""
        planned = sum(self._expected[part] for part in self._done)
        pace = sum(self._done.values()) / planned if planned else 1.0
        return pace * sum(seconds for part, seconds in self._expected.items() if part not in self._done)


def lap_seconds(contender: Contender, plan: Plan, *, is_first: bool) -> float:
    """What one lap of one contender should take."""
    many = plan.many / _MANY_RATE if contender.facts.has_many else 0.0
    drains = (2 if plan.has_two else 1) * (2 * _START + 2 * plan.drain_seconds)  # to go in takes as long as to come out
    presence = 4 * _START + 1 + plan.latency_seconds + plan.half_seconds + (1 + plan.idle_seconds if is_first else 0)
    seconds = 2 * _START + plan.single / _SINGLE_RATE + many + drains + presence
    if contender.peer == "packhorse":
        seconds += _BARE_LOOPS + (_strain_seconds(plan) if is_first and plan.strain else 0.0)
    return seconds


def _strain_seconds(plan: Plan) -> float:
    return 5 * (2 * _START + 2 * plan.drain_seconds) + plan.strain / _MANY_RATE


def crash_seconds(contenders: Sequence[Contender], plan: Plan) -> float:
    """All crashes. Most peers use up all patience, several at a time; Packhorse's worker is killed with nobody near."""
    ours = sum(contender.peer == "packhorse" for contender in contenders)
    theirs = len(contenders) - ours
    return ours * _LOST_WORKER + plan.crash_patience * (theirs + ours) / plan.crashes_at_once


def minutes(seconds: float) -> str:
    """As it is printed.

    >>> minutes(150)
    '3 minutes'
    >>> minutes(40)
    '1 minute'
    """
    number = max(1, round(seconds / 60))
    return f"{number} minute{'' if number == 1 else 's'}"
