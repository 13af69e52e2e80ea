"""A crash: 200 jobs of 0.2 s, every process killed after 2 s, workers started again. How many jobs ever finish?"""

from __future__ import annotations

import time
from collections.abc import Sequence

from bench import processes
from bench.contender import Contender
from bench.measurements import Figures
from bench.plan import Plan
from bench.run_log import Entry
from bench.storages.storage import Storage
from bench.trial import Trial
from bench.wait import wait_until

_JOBS = 200
_SLOTS = 10
_KILLED_AFTER = 2.0
_PATIENCE = 30


def crash(contender: Contender, storage: Storage, plan: Plan) -> Figures:
    """Kill every process and start again on the same host."""
    with Trial(contender, storage) as trial:
        return _restarted(trial, contender, plan)


def lost_machine(contender: Contender, storage: Storage, plan: Plan) -> Figures:
    """Kill every process and start Packhorse on another host, which cannot know that those processes are dead."""
    with Trial(contender, storage) as trial:
        return _named("machine", _restarted(trial, contender._replace(module="other_host"), plan))


def lost_worker(contender: Contender, storage: Storage, plan: Plan) -> Figures:
    """Kill only the worker; its foreman lives."""
    with Trial(contender, storage) as trial:
        _begin(trial)
        killed = time.monotonic()
        processes.kill(trial.processes()[1:2])
        _wait(trial, plan.crash_patience)
        return _named("worker", crash_figures(trial.run_log.entries(), killed))


def _restarted(trial: Trial, successor: Contender, plan: Plan) -> Figures:
    _begin(trial)
    killed = time.monotonic()
    trial.kill()
    trial.contender = successor
    trial.start(successor.processes_for(_SLOTS))
    _wait(trial, plan.crash_patience)
    return crash_figures(trial.run_log.entries(), killed)


def _named(what: str, figures: Figures) -> Figures:
    return {f"{what}_{name}": value for name, value in figures.items()}


def _begin(trial: Trial) -> None:
    """Run until the moment of the crash."""
    trial.feed("naps", _JOBS)
    trial.start(trial.contender.processes_for(_SLOTS))
    trial.wait_for(1, _PATIENCE)
    time.sleep(_KILLED_AFTER)


def _wait(trial: Trial, patience: float) -> None:
    """Wait until every job has ended once, or the patience runs out."""

    def is_done() -> bool:
        return len({entry.number for entry in trial.run_log.entries() if entry.has_ended}) >= _JOBS

    try:
        wait_until(is_done, patience, "the rest")
    except TimeoutError:
        return  # the figures show how many are missing


def crash_figures(entries: Sequence[Entry], killed: float) -> Figures:
    """How many jobs finished, when the last one did, and when those in flight ran again."""
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
