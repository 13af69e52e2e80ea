"""Packhorse under strain: the same drain with a million jobs waiting, 500 queues, unique jobs, every priority.

`bench/peers/packhorse/strained.py` is the program.
"""

from __future__ import annotations

from bench.contender import Contender
from bench.disciplines import Figures
from bench.disciplines.drain import patience, rate
from bench.plan import Plan
from bench.storages.storage import Storage
from bench.trial import Trial

STRAINS = {
    "plain": "one queue",
    "deep": "1,000,000 jobs waiting",
    "queues": "500 queues",
    "unique": "unique jobs",
    "priorities": "10 priorities in 2 queues",
}


def strain(contender: Contender, storage: Storage, plan: Plan) -> Figures:
    """Jobs a second under each strain, with one process: `…_many` going in, `…_drain` coming out."""
    strained = contender._replace(module="strained")
    figures: Figures = {}
    for kind in STRAINS:
        measured = int(contender.pace * plan.drain_seconds)
        waiting = plan.strain if kind == "deep" else measured
        with Trial(strained, storage, BENCH_STRAIN=kind) as trial:
            figures[f"{kind}_many"] = trial.feed("many", waiting)["rate"]
            trial.start(1)
            trial.wait_for(measured, patience(plan))
            figures[f"{kind}_drain"] = rate(trial.ledger.entries()[:measured], measured)
    return figures
