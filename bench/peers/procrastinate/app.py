"""Procrastinate: coroutines."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager

from procrastinate import App, PsycopgConnector

from bench import jobs
from bench.peers import URL

PACE = {"postgres": 300}
SLOTS = 10
PACKAGES = ("procrastinate", "psycopg")
SETTING = "10 jobs at once (default 1); it keeps no results"

app = App(connector=PsycopgConnector(conninfo=URL))


@app.task
async def noop(number: float) -> float:
    return jobs.noop(number)


@app.task
async def nap(number: float) -> float:
    return await jobs.anap(number)


def work(processes: int) -> list[list[str]]:
    words = ["-m", "procrastinate", "--log-level", "error", "--app", f"{__name__}.app", "worker"]
    return [[*words, "--concurrency", str(SLOTS)]] * processes


async def prepare() -> None:
    async with app.open_async():
        await app.schema_manager.apply_schema_async()


def opened() -> AbstractAsyncContextManager[object]:
    return app.open_async()


async def enqueue(number: float) -> None:
    await noop.defer_async(number=number)


async def enqueue_many(numbers: Sequence[float]) -> None:
    await noop.batch_defer_async(*({"number": number} for number in numbers))


async def enqueue_nap(number: float) -> None:
    await nap.defer_async(number=number)
