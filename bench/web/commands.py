"""Run every command that reads as people do: a new process each time, with its output in a pipe."""

from __future__ import annotations

import os
import random
import resource
import subprocess
import sys
import time

from bench.web.requests import Timed
from packhorse.core.job import DEAD
from packhorse.monitor.filters import find_all
from packhorse.storage import open_storage
from packhorse.storage.records import Filter

_ALONE = ("", "version", "help filters", "config")
_READS = (
    *("status", "status --json", "top --once", "failures", "failures 1", "failures task:task_00", "queues", "workers"),
    *("tasks", "stats", "stats --by queue --range 7d", "schedules", "storage", "check", "migrate --plan", "jobs"),
    *("jobs --json -n 50", "jobs dead", "jobs queued", "jobs completed", "jobs --ids -n 200", "jobs task:task_03"),
    *("jobs text:nowhere", "jobs error:broke", "jobs args:4711", "jobs since:1m", "jobs queue:mail halted"),
    *("events", "events --kind broken", "events --queue mail", "schedule next plan-1"),
)
_OF_ONE = ("job {id}", "job {id} --json", "job {id} --events", "job {end}", "events --job {id}")


def run_commands(url: str, rounds: int) -> list[Timed]:
    """Run each command in every round, in random order; return the slowest first."""
    storage = open_storage(url)
    job = next(find_all(storage, Filter(states=frozenset({DEAD})), limit=1))
    storage.close()
    of_one = [words.format(id=job.id, end=job.id[-8:]) for words in _OF_ONE]
    all_timed = [Timed(f"packhorse {words}".rstrip(), [], []) for words in (*_ALONE, *_READS, *of_one)]
    dice = random.Random(7)
    environment = {**os.environ, "PACKHORSE_URL": url}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed package is compiled
    for _ in range(rounds):
        for timed in dice.sample(all_timed, len(all_timed)):
            _run(timed, environment)
    return sorted(all_timed, key=lambda timed: -timed.work)


def _run(timed: Timed, environment: dict[str, str]) -> None:
    words = [sys.executable, "-m", *timed.path.split()]
    began_at, used = time.perf_counter(), _used()
    done = subprocess.run(words, env=environment, capture_output=True, check=False)
    timed.took.append(1_000 * (time.perf_counter() - began_at))
    timed.worked.append(1_000 * (_used() - used))
    if done.returncode not in (0, 6):  # 6: a storage without workers is unhealthy
        raise ValueError(f"{timed.path} ended with {done.returncode}: {done.stderr.decode()[:300]}")


def _used() -> float:
    """CPU seconds of ended children."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return children.ru_utime + children.ru_stime
