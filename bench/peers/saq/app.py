"""SAQ: coroutines, on Redis or PostgreSQL."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from saq import Queue

from bench import jobs
from bench.peers import URL

PACE = {"redis": 1_400, "postgres": 350}
SLOTS = 10
PACKAGES = ("saq", "redis", "psycopg")
SETTING = "10 jobs at once (its default)"

queue = Queue.from_url(URL)


async def noop(context: object, *, number: float) -> float:
    return jobs.noop(number)


async def nap(context: object, *, number: float) -> float:
    return await jobs.anap(number)


settings = {"queue": queue, "functions": [noop, nap], "concurrency": SLOTS}


def work(processes: int) -> list[list[str]]:
    return [["-m", "saq", f"{__name__}.settings", "--workers", str(processes), "--quiet"]]


@asynccontextmanager
async def opened() -> AsyncIterator[None]:
    await queue.connect()
    yield
    await queue.disconnect()


async def enqueue(number: float) -> None:
    await queue.enqueue("noop", number=number)


async def enqueue_nap(number: float) -> None:
    await queue.enqueue("nap", number=number)
