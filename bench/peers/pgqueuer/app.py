"""PgQueuer: coroutines."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import asyncpg
from pgqueuer import AsyncpgDriver, PgQueuer, Queries
from pgqueuer.models import Job

from bench import jobs
from bench.peers import URL

PACE = {"postgres": 5_000}
SLOTS = 10
PACKAGES = ("pgqueuer", "asyncpg")
SETTING = "batches of 10 and no limit of jobs at once (its defaults), 10 in the crash; it keeps no results"

queries: Queries


@asynccontextmanager
async def connected() -> AsyncIterator[AsyncpgDriver]:
    connection = await asyncpg.connect(URL)
    yield AsyncpgDriver(connection)
    await connection.close()


@asynccontextmanager
async def manager() -> AsyncIterator[PgQueuer]:
    async with connected() as driver:
        queuer = PgQueuer(driver)

        @queuer.entrypoint("noop")
        async def noop(job: Job) -> None:
            jobs.noop(float(job.payload or b""))

        @queuer.entrypoint("nap", concurrency_limit=SLOTS)
        async def nap(job: Job) -> None:
            await jobs.anap(float(job.payload or b""))

        yield queuer


def work(processes: int) -> list[list[str]]:
    return [["-m", "pgqueuer", "run", f"{__name__}:manager", "--log-level", "ERROR"]] * processes


async def prepare() -> None:
    async with opened():
        await queries.install()


@asynccontextmanager
async def opened() -> AsyncIterator[None]:
    global queries
    async with connected() as driver:
        queries = Queries(driver)
        yield


async def enqueue(number: float) -> None:
    await queries.enqueue("noop", repr(number).encode())


async def enqueue_many(numbers: Sequence[float]) -> None:
    payloads: list[bytes | None] = [repr(number).encode() for number in numbers]
    await queries.enqueue(["noop"] * len(payloads), payloads, [0] * len(payloads))


async def enqueue_nap(number: float) -> None:
    await queries.enqueue("nap", repr(number).encode())
