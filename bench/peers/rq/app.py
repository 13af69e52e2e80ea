"""RQ: its default worker, which forks for each job."""

from __future__ import annotations

from collections.abc import Sequence

from redis import Redis
from rq import Queue

from bench import jobs
from bench.peers import URL

PACE = {"redis": 70}
SLOTS = 1
PACKAGES = ("rq", "redis")
SETTING = "a process for each slot, a fork for each job"

queue = Queue(connection=Redis.from_url(URL))


def work(processes: int) -> list[list[str]]:
    return [["-m", "rq.cli", "worker", "--url", URL, "--quiet"]] * processes


def enqueue(number: float) -> None:
    queue.enqueue(jobs.noop, number)


def enqueue_many(numbers: Sequence[float]) -> None:
    queue.enqueue_many([Queue.prepare_data(jobs.noop, (number,)) for number in numbers])


def enqueue_nap(number: float) -> None:
    queue.enqueue(jobs.nap, number)
