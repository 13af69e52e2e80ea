"""Drain: jobs wait, then workers start. The rate counts runs, without the first and the last twentieth."""

from __future__ import annotations

from collections.abc import Sequence

from bench.contender import Contender
from bench.measurements import Figures
from bench.plan import Plan
from bench.run_log import Entry
from bench.storages.storage import Storage
from bench.trial import Trial


def drain(contender: Contender, storage: Storage, plan: Plan) -> Figures:
    """`drain_one` and `drain_two`: with one process and with two."""
    figures = {"drain_one": _drain(contender, storage, plan, 1)}
    if plan.has_two:
        figures["drain_two"] = _drain(contender, storage, plan, 2)
    return figures


def _drain(contender: Contender, storage: Storage, plan: Plan, processes: int) -> float:
    number = max(50, int(contender.pace * plan.drain_seconds))
    with Trial(contender, storage) as trial:
        trial.feed("many", number)
        trial.start(processes)
        trial.wait_for(number, patience(plan))
        return rate(trial.run_log.entries(), number)


def patience(plan: Plan) -> float:
    """Seconds that a drain may take: twenty times the planned duration."""
    return 20 * max(1, plan.drain_seconds)


def rate(entries: Sequence[Entry], number: int) -> float:
    """Jobs per second without the first and the last twentieth, so that neither start nor stragglers count.

    Raise ValueError if a job ran twice or not at all.
    """
    different = len({entry.number for entry in entries})
    if not different == len(entries) == number:
        raise ValueError(f"of {number:,} jobs {different:,} ran, {len(entries):,} times")
    first, last = number // 20, number - 1 - number // 20
    return (last - first) / (entries[last].at - entries[first].at)
