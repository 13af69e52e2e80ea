"""The targets: what Packhorse must reach in the same run, relative to its peers and to the bare loops."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from bench.measurements.stress import STRESS_KINDS
from bench.results import Results


class Target(NamedTuple):
    """A figure and its bound. The figure is None if the run did not measure it."""

    storage: str
    what: str
    figure: float | None
    bound: float
    unit: str = "×"
    is_maximum: bool = False

    @property
    def is_reached(self) -> bool:
        """Whether the figure is within its bound. A figure that was not measured cannot fail."""
        if self.figure is None:
            return True
        return self.figure <= self.bound if self.is_maximum else self.figure >= self.bound

    @property
    def verdict(self) -> str:
        return "reached" if self.is_reached else "NOT REACHED"


class StorageFigures:
    """The figures of one storage, and the targets made from them."""

    def __init__(self, results: Results, storage: str) -> None:
        row = results.row("packhorse", storage)
        self.title = storage
        self._ours = row.figures if row else {}
        self._limits = results.limits.get(storage, {})
        self._stress = results.stress.get(storage, {})
        self._peers = [peer.figures for peer in results.peers_of(storage)]

    def __bool__(self) -> bool:
        return bool(self._ours)

    def target(self, what: str, figure: float | None, bound: float) -> Target:
        return Target(self.title, what, figure, bound)

    def at_most(self, what: str, name: str, bound: float, unit: str) -> Target:
        return Target(self.title, what, self._ours.get(name), bound, unit, is_maximum=True)

    def of_best_peer(self, what: str, name: str, bound: float) -> Target:
        best = max((peer[name] for peer in self._peers if name in peer), default=None)
        return self.target(f"{what} / fastest peer", _share(self._ours.get(name), best), bound)

    def of_bare(self, what: str, name: str, bare: str, bound: float) -> Target:
        ours = self._ours.get(name, self._limits.get(name))
        return self.target(f"{what} / bare loop", _share(ours, self._limits.get(bare)), bound)

    def of_own(self, what: str, name: str, other: str, bound: float) -> Target:
        return self.target(what, _share(self._ours.get(name), self._ours.get(other)), bound)

    def limit(self, what: str, name: str, bound: float) -> Target:
        return Target(self.title, what, self._limits.get(name), bound, unit="")

    def best_peers(self, name: str) -> float | None:
        return min((peer[name] for peer in self._peers if name in peer), default=None)

    def stressed(self, kinds: dict[str, float]) -> Iterator[Target]:
        for kind, bound in kinds.items():
            share = _share(self._stress.get(f"{kind}_drain"), self._stress.get("plain_drain"))
            yield self.target(f"drain, {STRESS_KINDS[kind]}, relative to one queue", share, bound)

    def crashes(self) -> Iterator[Target]:
        jobs = {"crash": "everything", "worker_crash": "a worker", "machine_crash": "the machine"}
        for name, killed in jobs.items():
            yield Target(self.title, f"finished of 200, {killed} killed", self._ours.get(f"{name}_finished"), 200, "")
        yield self.at_most("running again, a worker killed", "worker_crash_rerun", 1, "s")
        yield self.at_most("running again, the machine killed", "machine_crash_rerun", 20, "s")


def targets(results: Results) -> list[Target]:
    """Every target of the storages that Packhorse ran on."""
    found: list[Target] = []
    for storage, demands in (("sqlite", _sqlite), ("redis", _redis), ("postgres", _postgres), ("mysql", _mysql)):
        if figures := StorageFigures(results, storage):
            found += [*demands(figures), *figures.crashes()]
    return found


_ALL_STRESS = dict.fromkeys(("deep", "queues", "unique", "priorities"), 0.7)


def _sqlite(figures: StorageFigures) -> Iterator[Target]:
    yield figures.of_best_peer("drain, 1 process", "drain_one", 18)
    yield figures.of_bare("drain, 1 process", "drain_one", "bare_drain", 0.4)
    yield figures.of_own("drain, 2 processes, relative to 1", "drain_two", "drain_one", 1)
    yield figures.of_bare("reserve and finish", "exchange", "bare_drain", 0.4)
    yield figures.of_bare("enqueue", "single", "bare_single", 0.6)
    yield figures.of_bare("enqueue_many", "many", "bare_many", 0.4)
    yield figures.at_most("latency when idle, p50", "idle_p50", 3, "ms")
    yield figures.at_most("latency when idle, p99", "idle_p99", 20, "ms")
    yield figures.at_most("CPU when idle", "idle_cpu", 1, "%")
    yield from figures.stressed(_ALL_STRESS)


def _redis(figures: StorageFigures) -> Iterator[Target]:
    yield figures.of_best_peer("drain, 1 process", "drain_one", 8)
    yield figures.of_bare("drain, 1 process", "drain_one", "bare_drain", 0.4)
    yield figures.of_own("drain, 2 processes, relative to 1", "drain_two", "drain_one", 1.3)
    yield figures.of_bare("enqueue", "single", "bare_single", 0.8)
    yield figures.of_bare("enqueue_many", "many", "bare_many", 0.4)
    yield figures.limit("jobs in a round trip, 500 aenqueue at once", "shared", 10)
    if (best := figures.best_peers("idle_p50")) is not None:
        yield figures.at_most("latency when idle, p50 (bound: the best peer)", "idle_p50", best, "ms")
    yield figures.at_most("requests to Redis when idle", "idle_requests", 3, "/s")
    yield figures.at_most("CPU when idle", "idle_cpu", 0.5, "%")
    yield figures.at_most("memory of a worker", "largest", 45, "MB")
    yield from figures.stressed(_ALL_STRESS)


def _postgres(figures: StorageFigures) -> Iterator[Target]:
    yield figures.of_best_peer("drain, 1 process", "drain_one", 2)
    yield figures.of_bare("drain, 1 process", "drain_one", "bare_drain", 0.4)
    yield figures.of_best_peer("enqueue_many", "many", 2)
    yield figures.of_bare("enqueue", "single", "bare_single", 0.7)
    yield figures.at_most("latency when idle, p50", "idle_p50", 5, "ms")
    yield figures.at_most("transactions when idle", "idle_requests", 3, "/s")
    yield from figures.stressed({"deep": 0.5})


def _mysql(figures: StorageFigures) -> Iterator[Target]:
    yield figures.of_bare("drain, 1 process", "drain_one", "bare_drain", 0.25)
    yield figures.at_most("statements when idle", "idle_requests", 3, "/s")
    yield from figures.stressed({"deep": 0.5})


def _share(figure: float | None, whole: float | None) -> float | None:
    return figure / whole if figure is not None and whole else None
