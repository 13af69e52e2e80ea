"""The cache: reads of the storage that all viewers of this process share, and histories of its latencies, its size and
the writes of workers.

The histories live in memory. Each read of the storage's health adds to them, so they cause no reads of their own; a
minute without a viewer is a gap.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterable
from typing import Any, NamedTuple, TypeVar

import msgspec

from packhorse.core.event import Event, Kind, Subject
from packhorse.monitor.stats import WRITES, reported_operations
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
from packhorse.web.history import ExitedWorker, exited_workers, newest_id, scan_back, scan_widths

MINUTES = 60


class Minute(msgspec.Struct):
    """The calls of one minute, in microseconds."""

    number: int  # of the minute, by the clock of this process
    calls: int
    total: int
    longest: float

    @property
    def mean(self) -> float:
        return self.total / self.calls


class LatencyHistory:
    """The last hour, minute by minute. `now` is a clock in seconds. Thread-safe."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._lock = threading.Lock()
        self._minutes: deque[Minute] = deque(maxlen=MINUTES)

    def add(self, took: int, calls: int = 1) -> None:
        """Add `calls` calls that took `took` microseconds together."""
        number = int(self._now() // 60)
        with self._lock:
            if not self._minutes or self._minutes[-1].number < number:
                self._minutes.append(Minute(number, 0, 0, 0))
            minute = self._minutes[-1]
            minute.calls += calls
            minute.total += took
            minute.longest = max(minute.longest, took / calls)

    def last_hour(self) -> list[Minute | None]:
        """Every minute from the first known one, at most an hour ago, to the current one; None is a gap."""
        present = int(self._now() // 60)
        with self._lock:
            known = {each.number: each for each in self._minutes if each.number > present - MINUTES}
        return [known.get(number) for number in range(min(known, default=present + 1), present + 1)]


_EVERY = 600.0  # seconds between two samples
_SAMPLES = 7 * 144  # a week of them
_ENOUGH = 900.0  # seconds that the samples must span before a growth rate is returned
_DAY = 86_400.0


class SizeHistory:
    """Sizes of the last week. `now` is a clock in seconds. Thread-safe."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._lock = threading.Lock()
        self._samples: deque[tuple[float, int]] = deque(maxlen=_SAMPLES)
        self._last: tuple[float, int] | None = None

    def add(self, size: int | None) -> None:
        """Add the size in bytes; None is unknown and is skipped."""
        if size is None:
            return
        with self._lock:
            self._last = (self._now(), size)
            if not self._samples or self._last[0] - self._samples[-1][0] >= _EVERY:
                self._samples.append(self._last)

    def per_day(self) -> int | None:
        """Growth in bytes per day, negative if the storage shrank; None until the samples span long enough."""
        with self._lock:
            if self._last is None:
                return None
            (began, first), (ended, last) = self._samples[0], self._last
        return round((last - first) * _DAY / (ended - began)) if ended - began >= _ENOUGH else None


class _Written(NamedTuple):
    """The writes of one worker since it started: how many, and the microseconds of all of them."""

    calls: int
    run: int


class WriteHistory:
    """The last hour, minute by minute; `longest` is the mean of the slowest worker. Thread-safe."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self.minutes = LatencyHistory(now)
        self._lock = threading.Lock()
        self._known: dict[str, _Written] = {}

    def add(self, workers: Iterable[WorkerInfo]) -> None:
        """Add what these workers have written since the last call."""
        present = {worker.id: _written(worker) for worker in workers}
        with self._lock:
            known, self._known = self._known, present
        for owner, written in present.items():
            calls, run = written.calls - known.get(owner, written).calls, written.run - known.get(owner, written).run
            if calls > 0 and run >= 0:
                self.minutes.add(run, calls)


def _written(worker: WorkerInfo) -> _Written:
    writes = [each for each in reported_operations(worker) if each.name in WRITES]
    return _Written(sum(each.calls for each in writes), sum(each.run for each in writes))


T = TypeVar("T")
_MAX_AGE = 0.9  # seconds
_REST = 10  # times the duration of a read: reads take at most a tenth of a core, or of the storage
_LONGEST_REST = 5.0
_FRESH_SERIES = {Span.TWO_HOURS: 5.0, Span.TWO_DAYS: 15.0, Span.NINETY_DAYS: 60.0}  # far shorter than an interval
_FRESH_TURNS = 10.0
_FRESH_LEFT = 20.0
_TURNS = 50  # per kind
_OF_FOREMEN = frozenset({Kind.STARTED, Kind.DIED, Kind.DEPLOYED})
_FIRST, _LOOKS = 100_000, 10  # events; those of foremen, workers and queues are few, and indexed
_MOST_FAILURES = 500
_MOST_KNOWN = 100


class _Entry(NamedTuple):
    """A cached value: when it was read, and until when it is fresh."""

    read_at: float
    until: float
    value: Any


_NO_ENTRY = _Entry(float("-inf"), float("-inf"), None)


class Cache:
    """Reads shared by all viewers of this process. `now` is a clock in seconds."""

    def __init__(self, storage: Storage, now: Callable[[], float] = time.monotonic) -> None:
        self._storage = storage
        self._now = now
        self._lock = threading.Lock()
        self._locks: dict[Hashable, threading.Lock] = {}
        self._known: dict[Hashable, _Entry] = {}
        self._computed: dict[Hashable, tuple[object, Any]] = {}
        self.latencies = LatencyHistory(now)
        self.growth = SizeHistory(now)
        self.writing = WriteHistory(now)

    def queues(self) -> list[QueueInfo]:
        return self._shared("queues", self._storage.queues)

    def last_queues(self) -> tuple[float, list[QueueInfo]] | None:
        """The queues as last read, and how many seconds ago; for when the storage is unavailable."""
        with self._lock:
            known = self._known.get("queues", _NO_ENTRY)
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
        """How many jobs of a cause are left; counting them may be slow."""
        return self._shared(("left", key), read, _FRESH_LEFT)

    def is_known(self, key: Hashable) -> bool:
        """Return whether `left_of` has a fresh number for this key."""
        with self._lock:
            return self._now() < self._known.get(("left", key), _NO_ENTRY).until

    def totals(self) -> dict[str, int]:
        return self._shared("totals", self._storage.totals)

    def health(self) -> Health:
        return self._shared("health", self._read_health)

    def _read_health(self) -> Health:
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
        """The latest events of foremen, dead workers, queues and deployments, newest first."""
        return self._shared("turning points", self._read_turning_points, _FRESH_TURNS)

    def _read_turning_points(self) -> list[Event]:
        wanted = [
            EventFilter(subject=Subject.FOREMAN, kinds=_OF_FOREMEN),
            EventFilter(subject=Subject.WORKER, kind=Kind.DIED),
            EventFilter(subject=Subject.QUEUE),
        ]
        top, found = newest_id(self._storage) + 1, []
        for where in wanted:
            most = _TURNS * max(1, len(where.kinds))
            found += scan_back(self._storage, where, top, most, scan_widths(self._storage, _LOOKS, _FIRST))[0]
        return sorted(found, key=lambda event: -event.at)

    def exited_workers(self) -> list[ExitedWorker]:
        """The workers that have exited recently."""
        return self._shared("departures", lambda: exited_workers(self._storage), _FRESH_TURNS)

    def computed(self, name: Hashable, source: object, compute: Callable[[], T]) -> T:
        """Return a value computed from `source`; compute it again when the source has been read again."""
        with self._lock:
            known = self._computed.get(name)
        if known is None or known[0] is not source:
            known = (source, compute())
            with self._lock:
                if len(self._computed) > _MOST_KNOWN:
                    self._computed.clear()
                self._computed[name] = known
        value: T = known[1]
        return value

    def page(self, key: Hashable, draw: Callable[[], T]) -> T:
        """A rendered page, shared by all viewers who would see the same."""
        return self._shared(("page", key), draw)

    def fresh_page(self, key: Hashable) -> Any:
        """That page if it is cached and fresh, else None; never renders."""
        with self._lock:
            known = self._known.get(("page", key), _NO_ENTRY)
        return known.value if self._now() < known.until else None

    def forget(self) -> None:
        """Drop everything but the series, so that a change shows immediately."""
        with self._lock:
            self._known = {name: known for name, known in self._known.items() if isinstance(name, Span)}

    def _shared(self, name: Hashable, read: Callable[[], T], fresh: float = _MAX_AGE) -> T:
        with self._lock:
            lock = self._locks.setdefault(name, threading.Lock())
        with lock:  # other threads wait for the one that reads
            with self._lock:
                known = self._known.get(name, _NO_ENTRY)
            read_at = self._now()
            if read_at < known.until:
                return known.value  # type: ignore[no-any-return]
            value = read()
            rest = min(_REST * (self._now() - read_at), _LONGEST_REST)
            with self._lock:
                self._make_room()
                self._known[name] = _Entry(read_at, read_at + max(fresh, rest), value)
            return value

    def _make_room(self) -> None:
        """Drop stale pages and, once the cache is full, the older half of all pages."""
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
                if lock is not None and not lock.locked():  # a locked one is in use: a thread reads the page again
                    del self._locks[name]
