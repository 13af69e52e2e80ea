"""arq: coroutines."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from arq import ArqRedis, create_pool
from arq.connections import RedisSettings

from bench import jobs
from bench.peers import URL

PACE = {"redis": 900}
SLOTS = 10
PACKAGES = ("arq", "redis")
SETTING = "10 jobs at once (its default), uvloop installed"
QUIET = {"version": 1}

pool: ArqRedis


async def noop(context: object, number: float) -> float:
    return jobs.noop(number)


async def nap(context: object, number: float) -> float:
    return await jobs.anap(number)


class Settings:
    """What `arq` reads."""

    functions = (noop, nap)
    redis_settings = RedisSettings.from_dsn(URL)
    max_jobs = SLOTS


def work(processes: int) -> list[list[str]]:
    return [["-m", "arq", f"{__name__}.Settings", "--custom-log-dict", f"{__name__}.QUIET"]] * processes


@asynccontextmanager
async def opened() -> AsyncIterator[None]:
    global pool
    pool = await create_pool(Settings.redis_settings)
    yield
    await pool.aclose()


async def enqueue(number: float) -> None:
    await pool.enqueue_job("noop", number)


async def enqueue_nap(number: float) -> None:
    await pool.enqueue_job("nap", number)
