"""Packhorse under stress: 500 queues, unique jobs, or all priorities; `BENCH_STRESS` selects one.

The program of `bench.measurements.stress`, with the names of `bench.peers.Peer` that a drain needs.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from bench import jobs
from bench.peers import URL
from packhorse import Packhorse
from packhorse.client.job_builder import NewCall

_QUEUES = 500
_PRIORITIES = range(1, 11)  # all of them; with two queues there are twenty lines

app = Packhorse(URL)

Call = Callable[[float], NewCall[float]]


def _plain() -> list[Call]:
    return [app.task(jobs.noop).call]


def _queues() -> list[Call]:
    return [app.task(name=f"noop_{number}")(jobs.noop).call for number in range(_QUEUES)]


def _unique() -> list[Call]:
    return [app.task(unique=True)(jobs.noop).call]


def _priorities() -> list[Call]:
    tasks = [app.task(name=name)(jobs.noop) for name in ("left", "right")]
    return [task.using(priority=priority).call for priority in _PRIORITIES for task in tasks]


_STRESS_KINDS = {"plain": _plain, "deep": _plain, "queues": _queues, "unique": _unique, "priorities": _priorities}
_calls = _STRESS_KINDS[os.environ["BENCH_STRESS"]]()


def work(processes: int) -> list[list[str]]:
    scale = ["--min", str(processes), "--max", str(processes)]
    return [["-m", "packhorse", "work", f"{__name__}:app", *scale, "--quiet", "--log-level", "warning"]]


def enqueue(number: float) -> None:
    enqueue_many([number])


enqueue_nap = enqueue


def enqueue_many(numbers: Sequence[float]) -> None:
    app.enqueue_many([_calls[int(number) % len(_calls)](number) for number in numbers])
