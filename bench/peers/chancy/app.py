"""Chancy: coroutines."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager

from chancy import Chancy, Queue, job

from bench import jobs
from bench.peers import URL

PACE = {"postgres": 1_500}
SLOTS = 10
PACKAGES = ("chancy", "psycopg")
SETTING = "asynchronous executor (default: processes), 10 jobs at once, eager polling; it keeps no results"

logging.disable(logging.INFO)  # a line for each job otherwise
app = Chancy(URL)


@job()
async def noop(*, number: float) -> float:
    return jobs.noop(number)


@job()
async def nap(*, number: float) -> float:
    return await jobs.anap(number)


def work(processes: int) -> list[list[str]]:
    return [["-m", "chancy.cli.cli", "--app", f"{__name__}.app", "worker", "start"]] * processes


async def prepare() -> None:
    async with app:
        await app.migrate()
        await app.declare(Queue("default", concurrency=SLOTS, executor=Chancy.Executor.Async, eager_polling=True))


def opened() -> AbstractAsyncContextManager[object]:
    return app


async def enqueue(number: float) -> None:
    await app.push(noop.job.with_kwargs(number=number))


async def enqueue_many(numbers: Sequence[float]) -> None:
    async for _ in app.push_many([noop.job.with_kwargs(number=number) for number in numbers]):
        pass


async def enqueue_nap(number: float) -> None:
    await app.push(nap.job.with_kwargs(number=number))
