"""Huey: threads, on Redis or on its own SQLite storage."""

from __future__ import annotations

from huey import RedisHuey, SqliteHuey

from bench import jobs
from bench.peers import URL

PACE = {"redis": 1_800, "sqlite": 1_200}
SLOTS = 10
PACKAGES = ("huey", "redis")
SETTING = "10 threads a process (default 1)"

huey = SqliteHuey(filename=URL.removeprefix("sqlite:///")) if URL.startswith("sqlite") else RedisHuey(url=URL)


@huey.task()
def noop(number: float) -> float:
    return jobs.noop(number)


@huey.task()
def nap(number: float) -> float:
    return jobs.nap(number)


def work(processes: int) -> list[list[str]]:
    words = ["-m", "huey.bin.huey_consumer", f"{__name__}.huey", "--workers", str(SLOTS), "--quiet"]
    return [words] * processes


def enqueue(number: float) -> None:
    noop(number)


def enqueue_nap(number: float) -> None:
    nap(number)
