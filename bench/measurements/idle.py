"""Workers with ten slots that keep running: start-up, idle latency, cost of idling, latency at half load."""

from __future__ import annotations

import time

from bench import processes
from bench.contender import Contender
from bench.measurements import Figures
from bench.percentile import percentile
from bench.plan import Plan
from bench.storages.storage import Storage
from bench.trial import Trial

_SLOTS = 10
_IDLE_RATE = 20  # jobs per second on an otherwise idle worker
_SETTLING_SECONDS = 1
_PATIENCE = 60


def measure_idle(contender: Contender, storage: Storage, plan: Plan, *, drained: float, idles: bool = True) -> Figures:
    """Every figure. `drained` is the worker's drain rate; half of it is half load. The cost of idling does not vary,
    so only the first lap measures it."""
    with Trial(contender, storage) as trial:
        figures = {"start_up": _start_up(trial)}
        time.sleep(_SETTLING_SECONDS)
        figures |= _latency(trial, "idle", _IDLE_RATE, plan.latency_seconds)
        if idles:
            time.sleep(storage.settles_after)
            figures |= _idle(trial, plan.idle_seconds)
        if plan.half_seconds:
            # A peer that polls less and less often would start with a backlog and run at more than half load.
            _latency(trial, "awake", _IDLE_RATE, _SETTLING_SECONDS)
            figures |= _latency(trial, "half", drained / 2, plan.half_seconds)
    return figures


def _start_up(trial: Trial) -> float:
    """Seconds from starting the workers until a waiting job has run."""
    trial.feed("single", 1)
    began = trial.start(trial.contender.processes_for(_SLOTS))
    trial.wait_for(1, _PATIENCE)
    return trial.run_log.entries()[0].at - began


def _latency(trial: Trial, when: str, rate: float, seconds: float) -> Figures:
    """Milliseconds from just before the call that enqueues to the job's first line.

    The first job does not count: its producer opens connections.
    """
    before = len(trial.run_log)
    sent = trial.feed("paced", rate, seconds)
    trial.wait_for(before + int(sent["sent"]), _PATIENCE)
    entries = sorted(trial.run_log.entries(since=before), key=lambda entry: entry.number)
    waits = [(entry.at - entry.number) * 1e3 for entry in entries[1:]]
    figures = {f"{when}_p{share}": percentile(waits, share) for share in (50, 95, 99)}
    return figures | {f"{when}_rate": sent["rate"]}


def _idle(trial: Trial, seconds: float) -> Figures:
    """CPU, memory and storage operations of workers that wait for jobs."""
    before, operations = processes.cost(trial.processes()), trial.storage.operations()
    began = time.monotonic()
    time.sleep(seconds)
    after, elapsed = processes.cost(trial.processes()), time.monotonic() - began
    figures = {
        "idle_cpu": 100 * (after.cpu_seconds - before.cpu_seconds) / elapsed,
        "processes": float(after.processes),
        "memory": after.memory_mb,
        "largest": after.largest_mb,
    }
    return figures | {name: (now - operations[name]) / elapsed for name, now in trial.storage.operations().items()}
