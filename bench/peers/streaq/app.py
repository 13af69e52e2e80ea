"""streaQ: coroutines."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager

from streaq import Worker

from bench import jobs
from bench.peers import URL

PACE = {"redis": 800}
SLOTS = 10
PACKAGES = ("streaq", "coredis")
SETTING = "10 jobs at once a process (default 16)"

logging.disable(logging.INFO)  # a line for each job otherwise
worker = Worker(redis_url=URL, concurrency=SLOTS)


@worker.task
async def noop(number: float) -> float:
    return jobs.noop(number)


@worker.task
async def nap(number: float) -> float:
    return await jobs.anap(number)


def work(processes: int) -> list[list[str]]:
    return [["-m", "streaq", "run", f"{__name__}:worker", "--workers", str(processes)]]


def opened() -> AbstractAsyncContextManager[object]:
    return worker


async def enqueue(number: float) -> None:
    await noop.enqueue(number)


async def enqueue_many(numbers: Sequence[float]) -> None:
    await worker.enqueue_many([noop.enqueue(number) for number in numbers])


async def enqueue_nap(number: float) -> None:
    await nap.enqueue(number)
