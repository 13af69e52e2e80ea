"""Measures: what the points of the charts come to, for a task, a queue or everything. Pure arithmetic."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import TypeVar

import msgspec

from packhorse.core.clock import SECOND
from packhorse.core.metrics import LIMITS, STEPS
from packhorse.storage.records import Point

SHORTEST = LIMITS[0] / SECOND
LONGEST = LIMITS[-1] / SECOND
# What stands for whatever fell into a step: of what is within the two limits, nothing is further away than a fifth.
_MIDDLES = (
    SHORTEST,
    *(float(f"{2 * low * high / (low + high) / SECOND:.2g}") for low, high in pairwise(LIMITS)),
    2 * LONGEST,
)
_PLACES = {kind: {f"{kind}_{step}": place for place, step in enumerate(STEPS)} for kind in ("run", "wait")}
_SHARES = (0.5, 0.95, 0.99)

K = TypeVar("K")


class Measured(msgspec.Struct, kw_only=True):
    """What attempts came to. A run is an attempt whose end somebody saw: `failed` are some of the `runs`, and `halted`,
    whose worker died, are counted apart. Times are seconds. `wait` is how long they had been in line when they began,
    `run` how long they ran then: on average, and at most for 50, 95 and 99 of 100. Those percentiles come from
    counts in steps and are right to a fifth; 0.001 means "at most that", and twice the longest step "longer than it".
    They are null for a time in which something was counted without steps, by a version that had none."""

    added: int = 0
    runs: int = 0
    completed: int = 0
    failed: int = 0
    dead: int = 0
    aborted: int = 0
    halted: int = 0
    ran: float = 0.0
    waited: float = 0.0
    wait_mean: float | None = None
    wait_p50: float | None = None
    wait_p95: float | None = None
    wait_p99: float | None = None
    run_mean: float | None = None
    run_p50: float | None = None
    run_p95: float | None = None
    run_p99: float | None = None


def measured(points: Iterable[Point]) -> Measured:
    """What these points come to together."""
    sums: Counter[str] = Counter()
    for point in points:
        sums.update(point.values)
    runs_in, waits_in = steps_of(sums, "run"), steps_of(sums, "wait")
    runs = _runs(sums, runs_in)
    run_p50, run_p95, run_p99 = _percentiles(runs_in, runs, sums["ran"])
    wait_p50, wait_p95, wait_p99 = _percentiles(waits_in, runs, sums["waited"])
    return Measured(
        **{name: sums[name] for name in ("added", "completed", "failed", "dead", "aborted", "halted")},
        runs=runs,
        ran=sums["ran"] / SECOND,
        waited=sums["waited"] / SECOND,
        wait_mean=sums["waited"] / SECOND / runs if runs else None,
        wait_p50=wait_p50,
        wait_p95=wait_p95,
        wait_p99=wait_p99,
        run_mean=sums["ran"] / SECOND / runs if runs else None,
        run_p50=run_p50,
        run_p95=run_p95,
        run_p99=run_p99,
    )


def steps_of(sums: Mapping[str, int], kind: str) -> list[int]:
    """How many attempts fell into each of `STEPS`; `kind` is "run" or "wait"."""
    return [sums.get(name, 0) for name in _PLACES[kind]]


def longest_wait(points: Iterable[Point]) -> float | None:
    """About how long the attempt had waited that had waited the longest, in seconds."""
    sums: Counter[str] = Counter()
    for point in points:
        sums.update(point.values)
    steps = steps_of(sums, "wait")
    if not any(steps):
        return None
    alike = _alike(steps, sums["waited"] / sum(steps))
    return alike if alike is not None else _MIDDLES[max(place for place, number in enumerate(steps) if number)]


def bounded(percentile: float) -> tuple[str, float]:
    """What a percentile says: a sign, "≤" or ">", where it is only known to lie beyond all steps, and seconds."""
    if percentile <= SHORTEST:
        return "≤", SHORTEST
    return (">", LONGEST) if percentile > LONGEST else ("", percentile)


def by_task(points: Iterable[Point]) -> dict[str, Measured]:
    """The same for each task."""
    return _grouped(points, lambda point: point.task)


def by_queue(points: Iterable[Point]) -> dict[str, Measured]:
    """The same for each queue."""
    return _grouped(points, lambda point: point.queue)


def by_time(points: Iterable[Point]) -> dict[int, Measured]:
    """The same for each moment at which an interval begins, in their order."""
    return dict(sorted(_grouped(points, lambda point: point.at).items()))


def _grouped(points: Iterable[Point], name_of: Callable[[Point], K]) -> dict[K, Measured]:
    groups: dict[K, list[Point]] = {}
    for point in points:
        groups.setdefault(name_of(point), []).append(point)
    return {name: measured(group) for name, group in groups.items()}


def _runs(sums: Mapping[str, int], steps: Sequence[int]) -> int:
    """How many attempts: those in these steps, and those that were counted in coarser ones, `ran_…`, in former days."""
    return sum(steps) + sum(number for name, number in sums.items() if name.startswith("ran_"))


def _percentiles(steps: Sequence[int], runs: int, total: int) -> list[float | None]:
    if not runs or sum(steps) < runs:  # of what nobody has counted nothing is known
        return [None] * len(_SHARES)
    if (alike := _alike(steps, total / runs)) is not None:
        return [alike] * len(_SHARES)
    below = list(accumulate(steps))
    return [_MIDDLES[bisect_left(below, share * runs)] for share in _SHARES]


def _alike(steps: Sequence[int], mean: float) -> float | None:
    """The mean in seconds, if all fell into one step: unlike the middle of that, it lies between the shortest and the
    longest. None for several steps, and for those that are open at one end."""
    place = next(place for place, number in enumerate(steps) if number)
    if not 0 < place < len(LIMITS) or any(steps[place + 1 :]) or not LIMITS[place - 1] < mean <= LIMITS[place]:
        return None
    return float(f"{mean / SECOND:.3g}")
