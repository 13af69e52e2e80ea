"""What watching costs the workers: how many jobs end in a stretch of time with viewers, between two without.

Counted are jobs that ended; each stretch with viewers is held against the mean of its two neighbours, so that what the
machine does meanwhile cancels out. Web, viewers and workers share the machine's cores; what each of them used is told.
"""

from __future__ import annotations

import os
import statistics
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from bench.web.processor import milliseconds
from bench.web.viewers import Viewers
from packhorse.core.ids import new_id
from packhorse.core.job import NewJob
from packhorse.storage import Storage
from packhorse.storage.records import LogLine, WorkerInfo

_SETTLING = 0.7  # seconds after viewers have come or gone
_QUEUE = "watched"


class Stretch(NamedTuple):
    """What was done in a stretch of time."""

    jobs: float  # a second
    work: float  # of the workers for one job, in microseconds of a processor
    web: float  # of the web, in processors
    viewers: float  # of those who watch
    asked: float  # pages and logs a second


class Course(NamedTuple):
    """Where it takes place."""

    storage: Storage
    host: str
    port: int
    web: int
    workers: list[int]


class Share(NamedTuple):
    """What workers keep while they are watched: of the jobs that end in a second, and of those that they do with a
    second of their processor. `spread` are the first and the last quarter of what the single turns came to."""

    throughput: float
    spread: tuple[float, float]
    thrift: float


def watched_share(course: Course, viewers: int, seconds: float, turns: int, feed: Callable[[], None]) -> Share:
    """Medians of several turns; before each, `feed` sees that there are jobs for it."""
    alone: list[Stretch] = []
    watched: list[Stretch] = []
    with LoggingJob(course.storage) as job_id:
        feed()
        _stretch(course, seconds)  # to warm up
        for _ in range(turns):
            feed()
            before = _stretch(course, seconds)
            with Viewers(course.host, course.port, viewers, job_id) as present:
                watched.append(_stretch(course, seconds, present))
            alone += [before, _stretch(course, seconds)]
    for title, stretches in (("alone", alone), ("watched", watched)):
        print(f"  {title:8}", " ".join(f"{each.jobs:,.0f}" for each in stretches), "jobs/s;", end=" ")
        print(f"{_median(stretches, 'work'):.1f} µs of a processor for a job,", end=" ")
        print(f"the web uses {_median(stretches, 'web'):.1%} of one")
    asked, used = _median(watched, "asked"), _median(watched, "viewers")
    print(f"  {viewers} viewers ask for {asked:.1f} pages a second, and themselves use {used:.1%} of a processor")
    pairs = list(zip(alone[::2], watched, alone[1::2], strict=True))
    shares = [each.jobs / statistics.mean((before.jobs, after.jobs)) for before, each, after in pairs]
    thrift = [statistics.mean((before.work, after.work)) / each.work for before, each, after in pairs]
    quarters = statistics.quantiles(shares, n=4) if len(shares) > 1 else shares * 3
    return Share(statistics.median(shares), (quarters[0], quarters[2]), statistics.median(thrift))


def _median(stretches: list[Stretch], name: str) -> float:
    return float(statistics.median(getattr(each, name) for each in stretches))


def _stretch(course: Course, seconds: float, viewers: Viewers | None = None) -> Stretch:
    time.sleep(_SETTLING)

    def used() -> tuple[int, int, float, float, float]:
        asked = viewers.asked if viewers else 0
        done = course.storage.totals().get("completed", 0)
        return done, asked, milliseconds(course.workers), milliseconds([course.web]), 1_000 * sum(os.times()[:2])

    before, began_at = used(), time.monotonic()
    time.sleep(seconds)
    after, took = used(), time.monotonic() - began_at
    jobs, asked, worked, served, seen = (last - first for first, last in zip(before, after, strict=True))
    return Stretch(jobs / took, 1_000 * worked / max(1, jobs), served / 1_000 / took, seen / 1_000 / took, asked / took)


class LoggingJob:
    """A job that runs and writes a line each second, watched or not, so that somebody can follow its log. A context
    manager, which gives its id."""

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
