"""taskiq: coroutines, on the Redis broker that acknowledges."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from taskiq_redis import RedisAsyncResultBackend, RedisStreamBroker

from bench import jobs
from bench.peers import URL

PACE = {"redis": 1_500}
SLOTS = 10
PACKAGES = ("taskiq", "taskiq-redis", "redis")
SETTING = "RedisStreamBroker, 10 jobs at once a process (default 100); result backend Redis, uvloop installed"

broker = RedisStreamBroker(URL).with_result_backend(RedisAsyncResultBackend(URL))


@broker.task
async def noop(number: float) -> float:
    return jobs.noop(number)


@broker.task
async def nap(number: float) -> float:
    return await jobs.anap(number)


def work(processes: int) -> list[list[str]]:
    scale = ["--workers", str(processes), "--max-async-tasks", str(SLOTS)]
    return [["-m", "taskiq", "worker", f"{__name__}:broker", *scale, "--log-level", "ERROR"]]


@asynccontextmanager
async def opened() -> AsyncIterator[None]:
    await broker.startup()
    yield
    await broker.shutdown()


async def enqueue(number: float) -> None:
    await noop.kiq(number)


async def enqueue_nap(number: float) -> None:
    await nap.kiq(number)
