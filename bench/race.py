"""The race on SQLite: drain, latency, idle cost, memory and start-up, each system as its users run it."""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from bench.contenders import HUEY, PACKHORSE, Contender, stop

_TICK = os.sysconf("SC_CLK_TCK")
_JOBS = {"packhorse": 40_000, "huey": 3_000}


class Lap(NamedTuple):
    """What one system did."""

    single: float
    many: float
    drain_one: float
    drain_two: float
    latency_p50: float  # milliseconds
    latency_p99: float
    idle_cpu: float  # per cent of a core
    memory: float  # MiB, of all its processes
    start_up: float  # seconds until the first job is done


def run(contender: Contender) -> Lap:
    """One lap of one system."""
    single = _enqueue(contender, "single", 1_000)
    many = _enqueue(contender, "many", 5_000)
    drain_one, _ = _drain(contender, 1)
    drain_two, _ = _drain(contender, 2)
    with tempfile.TemporaryDirectory(prefix="packhorse-race-") as name:
        folder = Path(name)
        began = time.perf_counter()
        contender.enqueue(folder, "single", 1)
        sent = time.perf_counter() - began
        began = time.perf_counter()
        workers = contender.start(folder, 1)
        try:
            _until_done(contender, folder)
            start_up = time.perf_counter() - began
            latencies = _latencies(contender, folder)
            time.sleep(2)
            idle_cpu, memory = _idle(workers[0].pid)
        finally:
            stop(workers)
    del sent
    return Lap(
        single,
        many,
        drain_one,
        drain_two,
        statistics.median(latencies) * 1e3,
        sorted(latencies)[int(len(latencies) * 0.99)] * 1e3,
        idle_cpu,
        memory,
        start_up,
    )


def _enqueue(contender: Contender, what: str, number: int) -> float:
    with tempfile.TemporaryDirectory(prefix="packhorse-race-") as name:
        return contender.enqueue(Path(name), what, number)


def _drain(contender: Contender, processes: int) -> tuple[float, float]:
    """Jobs a second between the first twentieth and the last: without the start-up, which is told apart."""
    number = _JOBS[contender.name]
    with tempfile.TemporaryDirectory(prefix="packhorse-race-") as name:
        folder = Path(name)
        contender.enqueue(folder, "many", number)
        workers = contender.start(folder, processes)
        try:
            seen = _watch(contender, folder, number)
        finally:
            stop(workers)
    (first_at, first_left), (last_at, last_left) = seen
    return (first_left - last_left) / (last_at - first_at), last_at - first_at


def _watch(contender: Contender, folder: Path, number: int) -> tuple[tuple[float, int], tuple[float, int]]:
    first: tuple[float, int] | None = None
    until = time.perf_counter() + 120
    while time.perf_counter() < until:
        left, now = contender.number_left(folder), time.perf_counter()
        if first is None and left < number * 0.95:
            first = (now, left)
        if first is not None and left <= number * 0.05 and now > first[0]:
            return first, (now, left)
        time.sleep(0.02)
    raise TimeoutError(f"{contender.name} has not drained {number} jobs in two minutes; see {folder}/work.log")


def _until_done(contender: Contender, folder: Path) -> None:
    until = time.perf_counter() + 60
    while contender.number_left(folder) > 0:
        if time.perf_counter() > until:
            raise TimeoutError(f"{contender.name} has not run its first job in a minute")
        time.sleep(0.005)


def _latencies(contender: Contender, folder: Path, number: int = 60) -> list[float]:
    file = folder / "stamps"
    contender.enqueue(folder, "stamp", number, str(file))
    _until_done(contender, folder)
    time.sleep(0.5)
    return [float(line) for line in file.read_text().split()]


def _idle(pid: int, seconds: float = 5.0) -> tuple[float, float]:
    """(per cent of a core, MiB) of a process and its descendants, doing nothing."""
    before, began = _cpu(pid), time.perf_counter()
    time.sleep(seconds)
    used = _cpu(pid) - before
    return 100 * used / (time.perf_counter() - began), sum(_memory(one) for one in _tree(pid)) / 2**20


def _tree(pid: int) -> list[int]:
    parents: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
            parents[int(path.parent.name)] = int(fields[1])
        except (OSError, ValueError):
            continue
    tree = [pid]
    for parent in tree:
        tree += [child for child, its in parents.items() if its == parent]
    return tree


def _cpu(pid: int) -> float:
    total = 0.0
    for one in _tree(pid):
        try:
            fields = Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()
            total += (int(fields[11]) + int(fields[12])) / _TICK
        except OSError:
            continue
    return total


def _memory(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def race(rounds: int) -> dict[str, Lap]:
    """The median lap of each, taken in turns."""
    laps: dict[str, list[Lap]] = {PACKHORSE.name: [], HUEY.name: []}
    for _ in range(rounds):
        for contender in (PACKHORSE, HUEY):
            laps[contender.name].append(run(contender))
    return {name: Lap(*(statistics.median(values) for values in zip(*its, strict=True))) for name, its in laps.items()}
