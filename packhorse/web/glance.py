"""A glance at the whole storage: queues, workers, tasks, totals, failures, charts, and the pages that browsers fetch
again by themselves. Everybody who looks shares it.

What was read less than a second ago is not read again, so twenty viewers cost the storage what one does, and none costs
nothing.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

from packhorse.event import Event, Kind, Subject
from packhorse.storage import Storage
from packhorse.storage.moving import Move
from packhorse.storage.records import (
    ClientInfo,
    EventFilter,
    FailureGroup,
    Health,
    Point,
    QueueInfo,
    ScheduleInfo,
    Span,
    TaskInfo,
    WorkerInfo,
)
from packhorse.web.growth import Growth
from packhorse.web.latencies import Latencies

T = TypeVar("T")
_FRESH = 0.9  # seconds
_FRESH_SERIES = {Span.TWO_HOURS: 2.0, Span.TWO_DAYS: 15.0, Span.NINETY_DAYS: 60.0}  # an interval is far longer
_FRESH_TURNS = 10.0
_TURNS = 50  # of a kind
_MOST_FAILURES = 500
_MOST_KNOWN = 100


class Glance:
    """Reads shared by all viewers of this process. `now` is a clock in seconds."""

    def __init__(self, storage: Storage, now: Callable[[], float] = time.monotonic) -> None:
        self._storage = storage
        self._now = now
        self._lock = threading.Lock()
        self._locks: dict[Hashable, threading.Lock] = {}
        self._known: dict[Hashable, tuple[float, Any]] = {}
        self.latencies = Latencies(now)
        self.growth = Growth(now)

    def queues(self) -> list[QueueInfo]:
        return self._shared("queues", self._storage.queues)

    def tasks(self) -> list[TaskInfo]:
        return self._shared("tasks", self._storage.tasks)

    def workers(self) -> list[WorkerInfo]:
        return self._shared("workers", self._storage.workers)

    def clients(self) -> list[ClientInfo]:
        return self._shared("clients", self._storage.clients)

    def schedules(self) -> list[ScheduleInfo]:
        return self._shared("schedules", self._storage.schedules)

    def failures(self) -> list[FailureGroup]:
        return self._shared("failures", lambda: self._storage.failures(limit=_MOST_FAILURES))

    def totals(self) -> dict[str, int]:
        return self._shared("totals", self._storage.totals)

    def health(self) -> Health:
        return self._shared("health", self._felt)

    def _felt(self) -> Health:
        health = self._storage.health()
        self.latencies.add(health.latency)
        self.growth.add(health.size)
        return health

    def move(self) -> Move | None:
        return self._shared("move", self._storage.move)

    def series(self, span: Span) -> list[Point]:
        return self._shared(span, lambda: self._storage.series(span), _FRESH_SERIES[span])

    def turning_points(self) -> list[Event]:
        """The latest that happened to foremen, lost workers and queues, the newest first."""
        return self._shared("turning points", self._turned, _FRESH_TURNS)

    def _turned(self) -> list[Event]:
        wanted = [
            EventFilter(subject=Subject.FOREMAN, kind=Kind.STARTED),
            EventFilter(subject=Subject.FOREMAN, kind=Kind.DIED),
            EventFilter(subject=Subject.WORKER, kind=Kind.DIED),
            EventFilter(subject=Subject.QUEUE),
        ]
        found = [event for where in wanted for event in self._storage.events(where, limit=_TURNS, newest_first=True)]
        return sorted(found, key=lambda event: -event.at)

    def page(self, key: Hashable, draw: Callable[[], T]) -> T:
        """A page, as it is drawn for all who would see the same."""
        return self._shared(("page", key), draw)

    def forget(self) -> None:
        """Somebody has changed something and wants to see it."""
        with self._lock:
            self._known = {name: known for name, known in self._known.items() if isinstance(name, Span)}

    def _shared(self, name: Hashable, read: Callable[[], T], fresh: float = _FRESH) -> T:
        with self._lock:
            lock = self._locks.setdefault(name, threading.Lock())
        with lock:  # those who ask meanwhile wait for the one who reads
            with self._lock:
                at, value = self._known.get(name, (float("-inf"), None))
            if self._now() - at < fresh:
                return value  # type: ignore[no-any-return]
            read_at, value = self._now(), read()
            with self._lock:
                self._make_room()
                self._known[name] = (read_at, value)
            return value

    def _make_room(self) -> None:
        """Forget the pages that were drawn the longest time ago, once there are many."""
        if len(self._known) > _MOST_KNOWN:
            pages = [name for name in self._known if isinstance(name, tuple)]
            for name in sorted(pages, key=lambda name: self._known[name][0])[: len(pages) // 2]:
                del self._known[name]
                self._locks.pop(name, None)
