"""Measures: what the points of the charts come to, for a task, a queue or everything. Pure arithmetic."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

import msgspec

from packhorse.clock import SECOND
from packhorse.series import RAN_STEPS
from packhorse.storage.records import Point

_STEPS = [(limit, name) for limit, name in RAN_STEPS]
_LONGEST = 2 * RAN_STEPS[-1][0]


class Measured(msgspec.Struct, kw_only=True):
    """What attempts came to. A run is an attempt whose end somebody saw: `failed` are some of the `runs`, and `halted`,
    whose worker died, are counted apart. Times are seconds. `run_p50` and `run_p95` are not measured to the moment:
    attempts are counted in steps (1 ms, 3 ms, 10 ms … 3 s, 10 s … 1 h), and these are the upper limit of the step that
    holds them, so 10 means "at most 10 s". Of attempts that took longer than an hour it is 7200, which means just
    that."""

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
    run_mean: float | None = None
    run_p50: float | None = None
    run_p95: float | None = None


def measured(points: Iterable[Point]) -> Measured:
    """What these points come to together."""
    sums: Counter[str] = Counter()
    for point in points:
        sums.update(point.values)
    runs = _runs(sums)
    return Measured(
        **{name: sums[name] for name in ("added", "completed", "failed", "dead", "aborted", "halted")},
        runs=runs,
        ran=sums["ran"] / SECOND,
        waited=sums["waited"] / SECOND,
        wait_mean=sums["waited"] / SECOND / runs if runs else None,
        run_mean=sums["ran"] / SECOND / runs if runs else None,
        run_p50=_percentile(sums, runs, 0.5),
        run_p95=_percentile(sums, runs, 0.95),
    )


def limit_of(percentile: float) -> tuple[str, float]:
    """What a percentile says: "≤" and a number of seconds, or ">" and the longest limit that there is."""
    longest = _STEPS[-1][0] / SECOND
    return (">", longest) if percentile > longest else ("≤", percentile)


def by_task(points: Iterable[Point]) -> dict[str, Measured]:
    """The same for each task."""
    return _grouped(points, lambda point: point.task)


def by_queue(points: Iterable[Point]) -> dict[str, Measured]:
    """The same for each queue."""
    return _grouped(points, lambda point: point.queue)


def _grouped(points: Iterable[Point], name_of: Callable[[Point], str]) -> dict[str, Measured]:
    groups: dict[str, list[Point]] = {}
    for point in points:
        groups.setdefault(name_of(point), []).append(point)
    return {name: measured(group) for name, group in groups.items()}


def _runs(sums: Counter[str]) -> int:
    return sum(sums[name] for _, name in _STEPS) + sums["ran_longer"]


def _percentile(sums: Counter[str], runs: int, share: float) -> float | None:
    if not runs:
        return None
    below = 0
    for limit, name in _STEPS:
        below += sums[name]
        if below >= share * runs:
            return limit / SECOND
    return _LONGEST / SECOND
