"""What watching costs the workers: how many jobs end in a stretch of time with viewers, and in one without, in turn."""

from __future__ import annotations

import http.client
import statistics
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from bench.web.processor import milliseconds
from packhorse.storage import Storage

_STREAM = "/api/v1/stream?topics=overview"
_AGAIN = 2.5  # seconds after which a page fetches its tables again


class Viewers:
    """People with the overview open: each listens to the stream and, as the page does, fetches it again when something
    has changed. A context manager."""

    def __init__(self, host: str, port: int, number: int) -> None:
        self._address = (host, port)
        self._number = number
        self._leave = threading.Event()
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Viewers:
        self._threads = [threading.Thread(target=self._watch, daemon=True) for _ in range(self._number)]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._leave.set()
        for thread in self._threads:
            thread.join(10)

    def _watch(self) -> None:
        stream = http.client.HTTPConnection(*self._address, timeout=30)
        pages = http.client.HTTPConnection(*self._address, timeout=30)
        stream.request("GET", _STREAM)
        answer = stream.getresponse()
        fetched_at = time.monotonic()
        while not self._leave.is_set():
            if not answer.readline().startswith(b"event: overview") or time.monotonic() - fetched_at < _AGAIN:
                continue
            pages.request("GET", "/")
            pages.getresponse().read()
            fetched_at = time.monotonic()
        stream.close()
        pages.close()


class Stretch(NamedTuple):
    """What was done in a stretch of time."""

    jobs: float  # a second
    work: float  # of the worker for one job, in microseconds of a processor
    web: float  # of the web, in processors


class Course(NamedTuple):
    """Where it takes place."""

    storage: Storage
    host: str
    port: int
    web: int
    workers: list[int]


def watched_share(
    course: Course, viewers: int, seconds: float, turns: int, feed: Callable[[], None]
) -> tuple[float, float]:
    """With so many viewers, and with none: the ratio of the jobs that end in a second, and of those that a worker does
    with a second of its processor. Medians of several turns; before each, `feed` sees that there are jobs for it."""
    alone: list[Stretch] = []
    watched: list[Stretch] = []
    for _ in range(turns):
        feed()
        alone.append(_stretch(course, seconds))
        with Viewers(course.host, course.port, viewers):
            time.sleep(1)
            watched.append(_stretch(course, seconds))
    for title, stretches in (("alone", alone), ("watched", watched)):
        print(f"  {title:8}", "  ".join(f"{each.jobs:,.0f}" for each in stretches), "jobs/s;", end=" ")
        print(f"{_median(stretches, 'work'):.1f} µs of a processor for a job,", end=" ")
        print(f"the web uses {_median(stretches, 'web'):.1%} of one")
    return (
        _median(watched, "jobs") / _median(alone, "jobs"),
        _median(alone, "work") / _median(watched, "work"),
    )


def _median(stretches: list[Stretch], name: str) -> float:
    return float(statistics.median(getattr(each, name) for each in stretches))


def _stretch(course: Course, seconds: float) -> Stretch:
    done, began_at = course.storage.totals().get("completed", 0), time.monotonic()
    worked, served = milliseconds(course.workers), milliseconds([course.web])
    time.sleep(seconds)
    jobs, took = course.storage.totals().get("completed", 0) - done, time.monotonic() - began_at
    worked, served = milliseconds(course.workers) - worked, milliseconds([course.web]) - served
    return Stretch(jobs / took, 1_000 * worked / max(1, jobs), served / 1_000 / took)
