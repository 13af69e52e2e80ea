"""Celery: its default pool of processes."""

from __future__ import annotations

from celery import Celery

from bench import jobs
from bench.peers import URL

PACE = {"redis": 700}
SLOTS = 1
PACKAGES = ("celery", "kombu", "redis")
SETTING = "prefork, a process for each slot; result backend Redis"

app = Celery("bench", broker=URL, backend=URL)


@app.task
def noop(number: float) -> float:
    return jobs.noop(number)


@app.task
def nap(number: float) -> float:
    return jobs.nap(number)


def work(processes: int) -> list[list[str]]:
    return [["-m", "celery", "-A", __name__, "worker", "--concurrency", str(processes), "--loglevel", "ERROR"]]


def enqueue(number: float) -> None:
    noop.delay(number)


def enqueue_nap(number: float) -> None:
    nap.delay(number)
