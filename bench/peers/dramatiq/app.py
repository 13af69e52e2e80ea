"""Dramatiq: threads in processes."""

from __future__ import annotations

import dramatiq
from dramatiq.brokers.redis import RedisBroker
from dramatiq.results import Results
from dramatiq.results.backends import RedisBackend

from bench import jobs
from bench.peers import URL

PACE = {"redis": 1_500}
SLOTS = 10
PACKAGES = ("dramatiq", "redis")
SETTING = "10 threads a process (default 8); Results middleware on Redis"

broker = RedisBroker(url=URL)
broker.add_middleware(Results(backend=RedisBackend(url=URL)))
dramatiq.set_broker(broker)


@dramatiq.actor(store_results=True)
def noop(number: float) -> float:
    return jobs.noop(number)


@dramatiq.actor(store_results=True)
def nap(number: float) -> float:
    return jobs.nap(number)


def work(processes: int) -> list[list[str]]:
    return [["-m", "dramatiq", __name__, "--processes", str(processes), "--threads", str(SLOTS)]]


def enqueue(number: float) -> None:
    noop.send(number)


def enqueue_nap(number: float) -> None:
    nap.send(number)
