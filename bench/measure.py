"""Measuring: rates of several contenders, taken in turns so that a noisy machine disturbs them alike."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

Contender = Callable[[Path], float]
"""Given an empty directory, does its work there and answers jobs per second."""


def rate(number: int, work: Callable[[], object]) -> float:
    """How many a second, if `work` does `number` of them."""
    began_at = time.perf_counter()
    work()
    return number / (time.perf_counter() - began_at)


def race(contenders: Sequence[Contender], rounds: int) -> list[float]:
    """The median rate of each, over rounds in which each runs once."""
    rates: list[list[float]] = [[] for _ in contenders]
    for _ in range(rounds):
        for place, contender in enumerate(contenders):
            with tempfile.TemporaryDirectory(prefix="packhorse-bench-") as directory:
                rates[place].append(contender(Path(directory)))
    return [statistics.median(one) for one in rates]
