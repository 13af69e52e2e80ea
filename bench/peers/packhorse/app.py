"""Packhorse: plain functions on threads."""

from __future__ import annotations

from collections.abc import Sequence

from bench import jobs
from bench.peers import URL
from packhorse import Packhorse

PACE = {"sqlite": 25_000, "redis": 20_000, "postgres": 12_000, "mysql": 6_000}
SLOTS = 10
PACKAGES = ("msgspec", "hiredis", "psycopg", "pymysql")
SETTING = "defaults: 10 threads a worker, results and events kept, SQLite with durable commits"

app = Packhorse(URL)


@app.task
def noop(number: float) -> float:
    return jobs.noop(number)


@app.task
def nap(number: float) -> float:
    return jobs.nap(number)


def work(processes: int) -> list[list[str]]:
    scale = ["--min", str(processes), "--max", str(processes)]
    return [["-m", "packhorse", "work", f"{__name__}:app", *scale, "--quiet", "--log-level", "warning"]]


def enqueue(number: float) -> None:
    noop.enqueue(number)


def enqueue_many(numbers: Sequence[float]) -> None:
    app.enqueue_many([noop.call(number) for number in numbers])


def enqueue_nap(number: float) -> None:
    nap.enqueue(number)
