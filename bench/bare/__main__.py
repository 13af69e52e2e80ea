"""The bare loops and Packhorse's calls without workers: `python -m bench.bare URL WHAT NUMBER` prints a figure.

`bench.measurements.bare_loops` runs it in Packhorse's environment, on an empty storage for each figure.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing

from bench.bare import OWNER, open_loops
from bench.bare.redis import BareRedis
from packhorse import Packhorse
from packhorse.core.outcome import Completed
from packhorse.storage.records import WorkerInfo

BATCH = 200
_BULK = 1_000
_THREADS = 8
_CONCURRENT = 500


def rate(number: int, work: Callable[[], object]) -> float:
    """Run `work`, which does `number` of something; return how many per second."""
    began = time.perf_counter()
    work()
    return number / (time.perf_counter() - began)


# --- bare loops -------------------------------------------------------------------------------------------------------


def bare_single(url: str, number: int) -> float:
    with closing(open_loops(url)) as bare:
        bare.enqueue(1, 1)
        return rate(number, lambda: bare.enqueue(number, 1))


def bare_many(url: str, number: int) -> float:
    with closing(open_loops(url)) as bare:
        bare.enqueue(1, 1)
        return rate(number, lambda: bare.enqueue(number, _BULK))


def bare_drain(url: str, number: int) -> float:
    with closing(open_loops(url)) as bare:
        bare.enqueue(number, _BULK)
        figure = rate(number, lambda: bare.drain(BATCH))
    with Packhorse(url) as app:
        found = app.count(state="completed")
    if found != number:
        raise AssertionError(f"the bare loop has completed {number} jobs, and Packhorse finds {found} of them")
    return figure


# --- Packhorse's own calls --------------------------------------------------------------------------------------------


def noop(number: float) -> None:
    """The job that does nothing."""


def threads(url: str, number: int) -> float:
    """Enqueue from eight threads."""
    with Packhorse(url) as app:
        task = app.task(noop)
        task.enqueue(0.0)

        def one() -> None:
            for _ in range(number // _THREADS):
                task.enqueue(1.0)

        def work() -> None:
            workers = [threading.Thread(target=one) for _ in range(_THREADS)]
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.join()

        return rate(number, work)


def coroutines(url: str, number: int) -> float:
    """Enqueue with 500 concurrent calls of `aenqueue`."""
    with Packhorse(url) as app:
        task = app.task(noop)

        async def work() -> None:
            for _ in range(number // _CONCURRENT):
                await asyncio.gather(*(task.aenqueue(1.0) for _ in range(_CONCURRENT)))

        task.enqueue(0.0)
        return rate(number, lambda: asyncio.run(work()))


def shared(url: str, number: int) -> float:
    """How many of these calls share one round trip to Redis, by its own count of scripts."""
    with closing(BareRedis(url)) as bare:
        before = bare.scripts_called()
        coroutines(url, number)
        return number / (bare.scripts_called() - before)


def exchange(url: str, number: int) -> float:
    """Reserve and finish through the storage, without a worker."""
    with Packhorse(url) as app:
        task = app.task(noop)
        app.storage.join(WorkerInfo(OWNER))
        for _ in range(number // _BULK):
            app.enqueue_many([task.call(1.0) for _ in range(_BULK)])

        def work() -> None:
            outcomes: list[Completed] = []
            while True:
                _, jobs = app.storage.finish_and_reserve(outcomes, OWNER, {"noop": 1}, BATCH)
                if not jobs:
                    return
                outcomes = [Completed(job.token, "null", ran=1) for job in jobs]

        return rate(number, work)


_CALLS = (bare_single, bare_many, bare_drain, threads, coroutines, shared, exchange)
FIGURES = {call.__name__: call for call in _CALLS}

if __name__ == "__main__":
    print(FIGURES[sys.argv[2]](sys.argv[1], int(sys.argv[3])))
