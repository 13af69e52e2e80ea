"""How much a run measures: the full race takes about 45 minutes, the quick one less than five.

Every lap measures what varies from run to run. Only the first lap measures what does not vary or takes long: the cost
of idling, the crashes, Packhorse under stress.
"""

from __future__ import annotations

from typing import NamedTuple


class Plan(NamedTuple):
    """Numbers and durations of one run."""

    laps: int
    single: int  # jobs enqueued one by one
    many: int  # jobs enqueued in bulk, if the peer has such a call
    drain_seconds: float  # planned duration of a drain
    has_two: bool  # drain with two processes as well
    latency_seconds: float
    half_seconds: float  # at half load; 0 skips it
    idle_seconds: float
    crash_patience: float  # seconds after the restart; 0 skips crashes
    crashes_at_once: int  # crash trials that run in parallel: they mostly wait
    stress: int  # jobs waiting in the deep backlog; 0 skips stress


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
    stress=1_000_000,
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
    stress=0,
)
