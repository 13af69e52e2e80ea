"""Enqueue without workers: one by one, and in bulk if the contender has such a call."""

from __future__ import annotations

from bench.contender import Contender
from bench.measurements import Figures
from bench.plan import Plan
from bench.storages.storage import Storage
from bench.trial import Trial


def enqueue(contender: Contender, storage: Storage, plan: Plan) -> Figures:
    """`single`, and `many` if there is such a call."""
    with Trial(contender, storage) as trial:
        figures = {"single": trial.feed("single", plan.single)["rate"]}
    if contender.facts.has_many:
        with Trial(contender, storage) as trial:
            figures["many"] = trial.feed("many", plan.many)["rate"]
    return figures
