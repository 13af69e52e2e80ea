"""What viewers cost the workers: jobs that end in an interval with viewers, between two intervals without.

Each interval with viewers is compared with the mean of its two neighbours, so that other load cancels out. Web, viewers
and workers share the cores; the CPU time of each is printed.
"""

from __future__ import annotations

import os
import statistics
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from bench.web.cpu_time import milliseconds
from bench.web.viewers import Viewers
from packhorse.core.ids import new_id
from packhorse.core.job import NewJob
from packhorse.storage import Storage
from packhorse.storage.records import LogLine, WorkerInfo

_SETTLING = 0.7  # seconds after viewers start or stop
_QUEUE = "watched"


class Interval(NamedTuple):
    """The figures of one interval."""

    jobs: float  # per second
    work: float  # CPU microseconds of the workers per job
    web: float  # CPU share of the web
    viewers: float  # CPU share of the viewers
    requests: float  # pages and logs per second


class Setup(NamedTuple):
    """The storage and the processes that are measured."""

    storage: Storage
    host: str
    port: int
    web: int
    workers: list[int]


class Share(NamedTuple):
    """The share of its figures that a worker keeps with viewers: jobs per second, and jobs per CPU second.

    `spread` is the first and the third quartile of the turns."""

    throughput: float
    spread: tuple[float, float]
    per_cpu: float


def watched_share(setup: Setup, viewers: int, seconds: float, turns: int, feed: Callable[[], None]) -> Share:
    """Medians of several turns; before each, `feed` enqueues enough jobs."""
    alone: list[Interval] = []
    watched: list[Interval] = []
    with LoggingJob(setup.storage) as job_id:
        feed()
        _interval(setup, seconds)  # warm up
        for _ in range(turns):
            feed()
            before = _interval(setup, seconds)
            with Viewers(setup.host, setup.port, viewers, job_id) as present:
                watched.append(_interval(setup, seconds, present))
            alone += [before, _interval(setup, seconds)]
    for title, intervals in (("alone", alone), ("watched", watched)):
        print(f"  {title:8}", " ".join(f"{each.jobs:,.0f}" for each in intervals), "jobs/s;", end=" ")
        print(f"{_median(intervals, 'work'):.1f} µs of CPU per job,", end=" ")
        print(f"the web uses {_median(intervals, 'web'):.1%} of a core")
    asked, used = _median(watched, "requests"), _median(watched, "viewers")
    print(f"  {viewers} viewers request {asked:.1f} pages per second and use {used:.1%} of a core")
    pairs = list(zip(alone[::2], watched, alone[1::2], strict=True))
    shares = [each.jobs / statistics.mean((before.jobs, after.jobs)) for before, each, after in pairs]
    per_cpu = [statistics.mean((before.work, after.work)) / each.work for before, each, after in pairs]
    quarters = statistics.quantiles(shares, n=4) if len(shares) > 1 else shares * 3
    return Share(statistics.median(shares), (quarters[0], quarters[2]), statistics.median(per_cpu))


def _median(intervals: list[Interval], name: str) -> float:
    return float(statistics.median(getattr(each, name) for each in intervals))


def _interval(setup: Setup, seconds: float, viewers: Viewers | None = None) -> Interval:
    time.sleep(_SETTLING)

    def used() -> tuple[int, int, float, float, float]:
        asked = viewers.requests if viewers else 0
        done = setup.storage.totals().get("completed", 0)
        return done, asked, milliseconds(setup.workers), milliseconds([setup.web]), 1_000 * sum(os.times()[:2])

    before, began_at = used(), time.monotonic()
    time.sleep(seconds)
    after, took = used(), time.monotonic() - began_at
    jobs, asked, worked, served, seen = (last - first for first, last in zip(before, after, strict=True))
    return Interval(
        jobs / took, 1_000 * worked / max(1, jobs), served / 1_000 / took, seen / 1_000 / took, asked / took
    )


class LoggingJob:
    """A running job that logs one line per second, so that viewers can follow its log. Entering returns its id."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._owner = f"bench-{new_id()}"
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> str:
        self._storage.join(WorkerInfo(self._owner, host="bench", pid=os.getpid(), queues=[_QUEUE], concurrency=1))
        self._storage.enqueue([NewJob(new_id(), _QUEUE, _QUEUE, "{}")])
        [job] = self._storage.reserve(self._owner, {_QUEUE: 1}, 1)
        self._token = job.token
        self._storage.start([job.token])
        self._thread.start()
        return job.id

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()
        self._storage.release([self._token], "the bench is over")
        self._storage.leave(self._owner)

    def _run(self) -> None:
        number = 0
        while not self._end.wait(1):
            number += 1
            self._storage.append_log(self._token, [LogLine(f"step {number} of many")])
            if number % 5 == 0:
                self._storage.heartbeat({self._owner: {}})
