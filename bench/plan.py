"""How much is measured: the whole race, or what is done in less than five minutes."""

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
    strain: int  # jobs waiting in the deep backlog; 0: no strain


FULL = Plan(
    laps=3,
    single=3_000,
    many=50_000,
    drain_seconds=5,
    has_two=True,
    latency_seconds=10,
    half_seconds=5,
    idle_seconds=20,
    crash_patience=90,
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
    strain=0,
)
