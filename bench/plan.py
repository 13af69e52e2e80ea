"""How much is measured: the whole race in about 45 minutes, or what is done in less than five.

What varies from run to run is measured in every lap. What does not, or takes long, is measured in the first lap only:
the cost of idling, the crashes, Packhorse under strain.
"""

from __future__ import annotations

from typing import NamedTuple


class Plan(NamedTuple):
    """Numbers and durations of one run."""

    laps: int
    single: int  # jobs enqueued one by one
    many: int  # jobs enqueued in bulk, where that is possible
    drain_seconds: float  # how long a drain should last, by the contender's pace
    has_two: bool  # drain with two processes as well
    latency_seconds: float
    half_seconds: float  # at half load; 0: not at all
    idle_seconds: float
    crash_patience: float  # seconds after the restart; 0: no crash
    crashes_at_once: int  # they mostly wait
    strain: int  # jobs waiting in the deep backlog; 0: no strain


FULL = Plan(
    laps=3,
    single=2_000,
    many=30_000,
    drain_seconds=3.5,
    has_two=True,
    latency_seconds=6,
    half_seconds=4,
    idle_seconds=10,
    crash_patience=90,
    crashes_at_once=6,
    strain=1_000_000,
)
QUICK = Plan(
    laps=1,
    single=1_000,
    many=20_000,
    drain_seconds=1.5,
    has_two=False,
    latency_seconds=2,
    half_seconds=0,
    idle_seconds=5,
    crash_patience=0,
    crashes_at_once=1,
    strain=0,
)
