"""Packhorse under stress: the same drain with a million waiting jobs, 500 queues, unique jobs, all priorities.

The program is `bench/peers/packhorse/stress.py`.
"""

from __future__ import annotations

from bench.contender import Contender
from bench.measurements import Figures
from bench.measurements.drain import patience, rate
from bench.plan import Plan
from bench.storages.storage import Storage
from bench.trial import Trial

STRESS_KINDS = {
    "plain": "one queue",
    "deep": "1,000,000 jobs waiting",
    "queues": "500 queues",
    "unique": "unique jobs",
    "priorities": "10 priorities in 2 queues",
}


def stress(contender: Contender, storage: Storage, plan: Plan) -> Figures:
    """Jobs per second for each kind of stress with one process: `…_many` enqueued, `…_drain` run."""
    stressed = contender._replace(module="stress")
    figures: Figures = {}
    for kind in STRESS_KINDS:
        measured = int(contender.pace * plan.drain_seconds)
        waiting = plan.stress if kind == "deep" else measured
        with Trial(stressed, storage, BENCH_STRESS=kind) as trial:
            figures[f"{kind}_many"] = trial.feed("many", waiting)["rate"]
            trial.start(1)
            trial.wait_for(measured, patience(plan))
            figures[f"{kind}_drain"] = rate(trial.run_log.entries()[:measured], measured)
    return figures
