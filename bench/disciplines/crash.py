"""A crash: 200 jobs of 0.2 s, every process killed after 2 s, workers started again. How many jobs ever finish?"""

from __future__ import annotations

import time
from collections.abc import Sequence

from bench import family
from bench.contender import Contender
from bench.disciplines import Figures
from bench.ledger import Entry
from bench.plan import Plan
from bench.storages.storage import Storage
from bench.trial import Trial
from bench.waiting import wait_until

_JOBS = 200
_SLOTS = 10
_KILLED_AFTER = 2.0
_PATIENCE = 30


def crash(contender: Contender, storage: Storage, plan: Plan) -> Figures:
    """Everything is killed, and started again on the same machine."""
    with Trial(contender, storage) as trial:
        return _restarted(trial, contender, plan)


def lost_machine(contender: Contender, storage: Storage, plan: Plan) -> Figures:
    """Everything is killed, and Packhorse starts where nobody can know that those processes are dead."""
    with Trial(contender, storage) as trial:
        return _named("machine", _restarted(trial, contender._replace(module="elsewhere"), plan))


def lost_worker(contender: Contender, storage: Storage, plan: Plan) -> Figures:
    """Only the process that the first one started is killed: Packhorse's worker, while its foreman lives."""
    with Trial(contender, storage) as trial:
        _begin(trial)
        killed = time.monotonic()
        family.kill(trial.processes()[1:2])
        _wait(trial, plan.crash_patience)
        return _named("worker", aftermath(trial.ledger.entries(), killed))


def _restarted(trial: Trial, successor: Contender, plan: Plan) -> Figures:
    _begin(trial)
    killed = time.monotonic()
    trial.kill()
    trial.contender = successor
    trial.start(successor.processes_for(_SLOTS))
    _wait(trial, plan.crash_patience)
    return aftermath(trial.ledger.entries(), killed)


def _named(what: str, figures: Figures) -> Figures:
    return {f"{what}_{name}": value for name, value in figures.items()}


def _begin(trial: Trial) -> None:
    """Up to the moment of the crash."""
    trial.feed("naps", _JOBS)
    trial.start(trial.contender.processes_for(_SLOTS))
    trial.wait_for(1, _PATIENCE)
    time.sleep(_KILLED_AFTER)


def _wait(trial: Trial, patience: float) -> None:
    """Until every job has ended once, or no longer."""

    def is_done() -> bool:
        return len({entry.number for entry in trial.ledger.entries() if entry.has_ended}) >= _JOBS

    try:
        wait_until(is_done, patience, "the rest")
    except TimeoutError:
        return  # the figures tell how many are missing


def aftermath(entries: Sequence[Entry], killed: float) -> Figures:
    """What became of the jobs: how many ended, when the last did, and when those in flight began again."""
    ended = {entry.number for entry in entries if entry.has_ended}
    ended_before = {entry.number for entry in entries if entry.has_ended and entry.at <= killed}
    in_flight = {entry.number for entry in entries if not entry.has_ended and entry.at <= killed} - ended_before
    again = [entry for entry in entries if not entry.has_ended and entry.at > killed]
    reruns = [entry.at - killed for entry in again if entry.number in in_flight]
    figures = {
        "crash_finished": float(len(ended)),
        "crash_lost": float(_JOBS - len(ended)),
        "crash_in_flight": float(len(in_flight)),
        "crash_twice": float(sum(entry.number in ended_before for entry in again)),
        "crash_seconds": max([killed, *(entry.at for entry in entries if entry.has_ended)]) - killed,
    }
    return figures | ({"crash_rerun": max(reruns)} if reruns else {})
