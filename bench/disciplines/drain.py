"""Draining: jobs wait, then workers start. Counted are jobs that have run, from the first twentieth to the last."""

from __future__ import annotations

from collections.abc import Sequence

from bench.contender import Contender
from bench.disciplines import Figures
from bench.ledger import Entry
from bench.plan import Plan
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
        return rate(trial.ledger.entries(), number)


def patience(plan: Plan) -> float:
    """Seconds that a drain may take: twenty times what its contender's pace promises."""
    return 20 * max(1, plan.drain_seconds)


def rate(entries: Sequence[Entry], number: int) -> float:
    """Jobs a second between the first twentieth and the last, so that neither start nor stragglers count.

    A job that ran twice, or not at all, makes the figure worthless: ValueError.
    """
    different = len({entry.number for entry in entries})
    if not different == len(entries) == number:
        raise ValueError(f"of {number:,} jobs {different:,} ran, {len(entries):,} times")
    first, last = number // 20, number - 1 - number // 20
    return (last - first) / (entries[last].at - entries[first].at)
