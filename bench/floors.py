"""The floors: what Packhorse must reach in the same run, next to its peers and to the bare loops."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from bench.disciplines.strain import STRAINS
from bench.results import Results


class Floor(NamedTuple):
    """One demand: a figure, and how low or how high it may be. The figure is None where a run has not measured it."""

    storage: str
    what: str
    figure: float | None
    bound: float
    unit: str = "×"
    is_ceiling: bool = False

    @property
    def is_reached(self) -> bool:
        """Whether it holds; what was not measured cannot fail."""
        if self.figure is None:
            return True
        return self.figure <= self.bound if self.is_ceiling else self.figure >= self.bound

    @property
    def verdict(self) -> str:
        return "reached" if self.is_reached else "NOT REACHED"


class Sheet:
    """The figures of one storage, as floors ask for them."""

    def __init__(self, results: Results, storage: str) -> None:
        row = results.row("packhorse", storage)
        self.title = storage
        self._ours = row.figures if row else {}
        self._limits = results.limits.get(storage, {})
        self._strains = results.strains.get(storage, {})
        self._peers = [peer.figures for peer in results.peers_of(storage)]

    def __bool__(self) -> bool:
        return bool(self._ours)

    def floor(self, what: str, figure: float | None, bound: float) -> Floor:
        return Floor(self.title, what, figure, bound)

    def at_most(self, what: str, name: str, bound: float, unit: str) -> Floor:
        return Floor(self.title, what, self._ours.get(name), bound, unit, is_ceiling=True)

    def of_best_peer(self, what: str, name: str, bound: float) -> Floor:
        best = max((peer[name] for peer in self._peers if name in peer), default=None)
        return self.floor(f"{what}, next to the fastest peer", _share(self._ours.get(name), best), bound)

    def of_bare(self, what: str, name: str, bare: str, bound: float) -> Floor:
        ours = self._ours.get(name, self._limits.get(name))
        return self.floor(f"{what}, next to the bare loop", _share(ours, self._limits.get(bare)), bound)

    def of_own(self, what: str, name: str, other: str, bound: float) -> Floor:
        return self.floor(what, _share(self._ours.get(name), self._ours.get(other)), bound)

    def limit(self, what: str, name: str, bound: float) -> Floor:
        return Floor(self.title, what, self._limits.get(name), bound, unit="")

    def best_peers(self, name: str) -> float | None:
        return min((peer[name] for peer in self._peers if name in peer), default=None)

    def strained(self, kinds: dict[str, float]) -> Iterator[Floor]:
        for kind, bound in kinds.items():
            share = _share(self._strains.get(f"{kind}_drain"), self._strains.get("plain_drain"))
            yield self.floor(f"drain, {STRAINS[kind]}, next to one queue", share, bound)

    def crashes(self) -> Iterator[Floor]:
        jobs = {"crash": "everything", "worker_crash": "a worker", "machine_crash": "the machine"}
        for name, killed in jobs.items():
            yield Floor(self.title, f"finished of 200, {killed} killed", self._ours.get(f"{name}_finished"), 200, "")
        yield self.at_most("running again, a worker killed", "worker_crash_rerun", 1, "s")
        yield self.at_most("running again, the machine killed", "machine_crash_rerun", 20, "s")


def floors(results: Results) -> list[Floor]:
    """Every floor of the storages that Packhorse ran on."""
    found: list[Floor] = []
    for storage, demands in (("sqlite", _sqlite), ("redis", _redis), ("postgres", _postgres), ("mysql", _mysql)):
        if sheet := Sheet(results, storage):
            found += [*demands(sheet), *sheet.crashes()]
    return found


_ALL_STRAINS = dict.fromkeys(("deep", "queues", "unique", "priorities"), 0.7)


def _sqlite(sheet: Sheet) -> Iterator[Floor]:
    yield sheet.of_best_peer("drain, 1 process", "drain_one", 18)
    yield sheet.of_bare("drain, 1 process", "drain_one", "bare_drain", 0.4)
    yield sheet.of_own("drain, 2 processes, next to 1", "drain_two", "drain_one", 1)
    yield sheet.of_bare("reserve and finish", "exchange", "bare_drain", 0.4)
    yield sheet.of_bare("enqueue", "single", "bare_single", 0.6)
    yield sheet.of_bare("enqueue_many", "many", "bare_many", 0.4)
    yield sheet.at_most("latency when idle, p50", "idle_p50", 3, "ms")
    yield sheet.at_most("latency when idle, p99", "idle_p99", 20, "ms")
    yield sheet.at_most("CPU when idle", "idle_cpu", 1, "%")
    yield from sheet.strained(_ALL_STRAINS)


def _redis(sheet: Sheet) -> Iterator[Floor]:
    yield sheet.of_best_peer("drain, 1 process", "drain_one", 8)
    yield sheet.of_bare("drain, 1 process", "drain_one", "bare_drain", 0.4)
    yield sheet.of_own("drain, 2 processes, next to 1", "drain_two", "drain_one", 1.3)
    yield sheet.of_bare("enqueue", "single", "bare_single", 0.8)
    yield sheet.of_bare("enqueue_many", "many", "bare_many", 0.4)
    yield sheet.limit("jobs in a round trip, 500 aenqueue at once", "shared", 10)
    if (best := sheet.best_peers("idle_p50")) is not None:
        yield sheet.at_most("latency when idle, p50 (floor: the best peer's)", "idle_p50", best, "ms")
    yield sheet.at_most("requests to Redis when idle", "idle_requests", 3, "/s")
    yield sheet.at_most("CPU when idle", "idle_cpu", 0.5, "%")
    yield sheet.at_most("memory of a worker", "largest", 45, "MB")
    yield from sheet.strained(_ALL_STRAINS)


def _postgres(sheet: Sheet) -> Iterator[Floor]:
    yield sheet.of_best_peer("drain, 1 process", "drain_one", 2)
    yield sheet.of_bare("drain, 1 process", "drain_one", "bare_drain", 0.4)
    yield sheet.of_best_peer("enqueue_many", "many", 2)
    yield sheet.of_bare("enqueue", "single", "bare_single", 0.7)
    yield sheet.at_most("latency when idle, p50", "idle_p50", 5, "ms")
    yield sheet.at_most("transactions when idle", "idle_requests", 3, "/s")
    yield from sheet.strained({"deep": 0.5})


def _mysql(sheet: Sheet) -> Iterator[Floor]:
    yield sheet.of_bare("drain, 1 process", "drain_one", "bare_drain", 0.25)
    yield sheet.at_most("statements when idle", "idle_requests", 3, "/s")
    yield from sheet.strained({"deep": 0.5})


def _share(figure: float | None, whole: float | None) -> float | None:
    return figure / whole if figure is not None and whole else None
