"""Percentiles and medians of measurements."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` per cent of the values do not exceed.

    >>> percentile([5.0, 1.0, 9.0, 3.0], 50)
    3.0
    """
    if not values:
        raise ValueError("nothing was measured")
    ordered = sorted(values)
    return ordered[max(0, -int(-share * len(ordered) // 100) - 1)]


def medians(laps: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """The median of each figure over the laps that have it.

    >>> medians([{"single": 1.0}, {"single": 3.0, "many": 7.0}, {"single": 2.0}])
    {'single': 2.0, 'many': 7.0}
    """
    values: dict[str, list[float]] = {}
    for lap in laps:
        for name, value in lap.items():
            values.setdefault(name, []).append(value)
    return {name: statistics.median(its) for name, its in values.items()}
