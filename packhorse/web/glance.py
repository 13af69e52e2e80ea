"""A glance at the whole storage: queues, workers, tasks, totals, failures, charts, and the pages that browsers fetch
again by themselves. Everybody who looks shares it.

What was read less than a second ago is not read again, so twenty viewers cost the storage what one does, and none costs
nothing. What takes long to read is read less often.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple, TypeVar

from packhorse.core.event import Event, Kind, Subject
from packhorse.storage import Storage
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
from packhorse.storage.transfer import Move
from packhorse.web.departures import Departure, departures
from packhorse.web.growth import Growth
from packhorse.web.latencies import Latencies
from packhorse.web.looking_back import look_back, newest_id, stretches
from packhorse.web.writing import Writing

T = TypeVar("T")
_FRESH = 0.9  # seconds
_REST = 10  # times as long as a read took: so it takes no more than a tenth of a core, or of the storage
_LONGEST_REST = 5.0
_FRESH_SERIES = {Span.TWO_HOURS: 5.0, Span.TWO_DAYS: 15.0, Span.NINETY_DAYS: 60.0}  # an interval is far longer
_FRESH_TURNS = 10.0
_FRESH_LEFT = 20.0
_TURNS = 50  # of a kind
_OF_FOREMEN = frozenset({Kind.STARTED, Kind.DIED, Kind.DEPLOYED})
_FIRST, _LOOKS = 100_000, 10  # events: among them those of foremen, workers and queues are few, and found by an index
_MOST_FAILURES = 500
_MOST_KNOWN = 100


class _Known(NamedTuple):
    """What was read: when, until when it is fresh, and what it is."""

    read_at: float
    until: float
    value: Any


_NOTHING = _Known(float("-inf"), float("-inf"), None)


class Glance:
    """Reads shared by all viewers of this process. `now` is a clock in seconds."""

    def __init__(self, storage: Storage, now: Callable[[], float] = time.monotonic) -> None:
        self._storage = storage
        self._now = now
        self._lock = threading.Lock()
        self._locks: dict[Hashable, threading.Lock] = {}
        self._known: dict[Hashable, _Known] = {}
        self._reckoned: dict[Hashable, tuple[object, Any]] = {}
        self.latencies = Latencies(now)
        self.growth = Growth(now)
        self.writing = Writing(now)

    def queues(self) -> list[QueueInfo]:
        return self._shared("queues", self._storage.queues)

    def last_queues(self) -> tuple[float, list[QueueInfo]] | None:
        """What was last known of them, and how many seconds ago; for when the storage is away."""
        with self._lock:
            known = self._known.get("queues", _NOTHING)
        return None if known.value is None else (self._now() - known.read_at, known.value)

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

    def failure_counts(self, span: Span) -> dict[str, dict[int, int]]:
        """How many failures of each cause there were in each interval."""

        def read() -> dict[str, dict[int, int]]:
            return {group.cause: group.counts for group in self._storage.failures(limit=_MOST_FAILURES, span=span)}

        return self._shared(("failure counts", span), read, _FRESH_SERIES[span])

    def left_of(self, key: Hashable, read: Callable[[], T]) -> T:
        """How many jobs of a cause are left, which may take a while to count."""
        return self._shared(("left", key), read, _FRESH_LEFT)

    def is_known(self, key: Hashable) -> bool:
        """Is that number at hand?"""
        with self._lock:
            return self._now() < self._known.get(("left", key), _NOTHING).until

    def totals(self) -> dict[str, int]:
        return self._shared("totals", self._storage.totals)

    def health(self) -> Health:
        return self._shared("health", self._felt)

    def _felt(self) -> Health:
        health = self._storage.health()
        self.latencies.add(health.latency)
        self.growth.add(health.size)
        self.writing.add(self.workers())
        return health

    def move(self) -> Move | None:
        return self._shared("move", self._storage.move)

    def series(self, span: Span) -> list[Point]:
        return self._shared(span, lambda: self._storage.series(span), _FRESH_SERIES[span])

    def turning_points(self) -> list[Event]:
        """The latest that happened to foremen, lost workers and queues, and what was deployed, the newest first."""
        return self._shared("turning points", self._turned, _FRESH_TURNS)

    def _turned(self) -> list[Event]:
        wanted = [
            EventFilter(subject=Subject.FOREMAN, kinds=_OF_FOREMEN),
            EventFilter(subject=Subject.WORKER, kind=Kind.DIED),
            EventFilter(subject=Subject.QUEUE),
        ]
        top, found = newest_id(self._storage) + 1, []
        for where in wanted:
            most = _TURNS * max(1, len(where.kinds))
            found += look_back(self._storage, where, top, most, stretches(self._storage, _LOOKS, _FIRST))[0]
        return sorted(found, key=lambda event: -event.at)

    def departures(self) -> list[Departure]:
        """The workers that have ended lately."""
        return self._shared("departures", lambda: departures(self._storage), _FRESH_TURNS)

    def reckoned(self, name: Hashable, source: object, reckon: Callable[[], T]) -> T:
        """What comes of something that was read, which is `source`: reckoned anew once that was read anew."""
        with self._lock:
            known = self._reckoned.get(name)
        if known is None or known[0] is not source:
            known = (source, reckon())
            with self._lock:
                if len(self._reckoned) > _MOST_KNOWN:
                    self._reckoned.clear()
                self._reckoned[name] = known
        value: T = known[1]
        return value

    def page(self, key: Hashable, draw: Callable[[], T]) -> T:
        """A page, as it is drawn for all who would see the same."""
        return self._shared(("page", key), draw)

    def drawn(self, key: Hashable) -> Any:
        """That page, if somebody has had it just now; None costs nothing, and neither does the page."""
        with self._lock:
            known = self._known.get(("page", key), _NOTHING)
        return known.value if self._now() < known.until else None

    def forget(self) -> None:
        """Somebody has changed something and wants to see it."""
        with self._lock:
            self._known = {name: known for name, known in self._known.items() if isinstance(name, Span)}

    def _shared(self, name: Hashable, read: Callable[[], T], fresh: float = _FRESH) -> T:
        with self._lock:
            lock = self._locks.setdefault(name, threading.Lock())
        with lock:  # those who ask meanwhile wait for the one who reads
            with self._lock:
                known = self._known.get(name, _NOTHING)
            read_at = self._now()
            if read_at < known.until:
                return known.value  # type: ignore[no-any-return]
            value = read()
            rest = min(_REST * (self._now() - read_at), _LONGEST_REST)
            with self._lock:
                self._make_room()
                self._known[name] = _Known(read_at, read_at + max(fresh, rest), value)
            return value

    def _make_room(self) -> None:
        """Forget the pages that nobody gets any more, and half of the others, the older ones, once there are many."""
        pages = sorted(
            (known.until, place, name)
            for place, (name, known) in enumerate(self._known.items())
            if isinstance(name, tuple)
        )
        many = len(pages) // 2 if len(self._known) > _MOST_KNOWN else 0
        for place, (until, _, name) in enumerate(pages):
            if until <= self._now() or place < many:
                del self._known[name]
                lock = self._locks.get(name)
                if lock is not None and not lock.locked():  # else somebody reads it anew, and others wait for that one
                    del self._locks[name]
