"""Statistics: totals, runs and waits, storage calls, connections. Callers read the records."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC
from itertools import accumulate, pairwise
from typing import Any, TypeVar

import msgspec

from packhorse.core.clock import SECOND, from_datetime, to_datetime
from packhorse.core.event import Subject
from packhorse.core.job import HELD, State
from packhorse.core.metrics import LIMITS, STEPS
from packhorse.monitor.liveness import busy_slots, is_alive
from packhorse.storage.records import OperationSums, OperationTimes, Point, QueueInfo, WorkerInfo

_COUNTED = ("added", "completed", "failed", "dead", "aborted", "halted")


class Totals(msgspec.Struct, kw_only=True):
    """Totals of everything. `ever` and `today` (since midnight UTC) count added, completed, failed, dead, aborted and
    halted jobs. `processed` counts attempts that ended, `failed` those that raised or timed out; halts are in `ever`.

    All-time counts exist only for all queues together. For an operator who may see only some, `ever` is empty and these
    are null.
    """

    states: dict[State, int]
    ever: dict[str, int]
    today: dict[str, int]
    processed: int | None
    failed: int | None
    queues: int
    paused: int
    oldest: float | None
    workers: int
    foremen: int
    slots: int
    busy: int
    failure_kinds: int
    schedules: int


def totals_of(
    now: int,
    lease: int,
    queues: Sequence[QueueInfo],
    workers: Sequence[WorkerInfo],
    ever: Mapping[str, int] | None,
    today: Mapping[str, int],
    *,
    failure_kinds: int,
    schedules: int,
) -> Totals:
    """Compute the totals; `ever` are the all-time counts if the caller may see them, `today` those of
    `counts_since`."""
    states: Counter[State] = Counter()
    for queue in queues:
        states.update(queue.counts)
    waits = [now - queue.oldest_queued_at for queue in queues if queue.oldest_queued_at and not queue.is_paused]
    alive = [worker for worker in workers if is_alive(worker, now, lease)]
    crew = [worker for worker in alive if worker.subject is Subject.WORKER]
    slots = sum(worker.concurrency for worker in crew)
    return Totals(
        states={state: states[state] for state in State},
        ever={} if ever is None else {name: ever.get(name, 0) for name in _COUNTED},
        today={name: today.get(name, 0) for name in _COUNTED},
        processed=None if ever is None else ended_attempts(ever),
        failed=None if ever is None else ever.get("failed", 0),
        queues=len(queues),
        paused=sum(queue.is_paused for queue in queues),
        oldest=max(waits) / SECOND if waits else None,
        workers=len(crew),
        foremen=len(alive) - len(crew),
        slots=slots,
        busy=busy_slots(crew, running=states[State.RUNNING], held=sum(states[state] for state in HELD)),
        failure_kinds=failure_kinds,
        schedules=schedules,
    )


def counts_since(points: Iterable[Point], midnight: int) -> dict[str, int]:
    """Sum these points, which are the hours of the last two days, since midnight."""
    today = [point.values for point in points if point.at >= midnight]
    return {name: sum(values.get(name, 0) for values in today) for name in _COUNTED}


def midnight_before(now: int) -> int:
    """The start of the present day (UTC)."""
    return from_datetime(to_datetime(now).astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0))


def ended_attempts(counts: Mapping[str, int]) -> int:
    """How many attempts have ended, in whatever way."""
    return sum(counts.get(name, 0) for name in ("completed", "failed", "halted"))


# --- runs: what the points of the charts come to ----------------------------------------------------------------------


SHORTEST_STEP = LIMITS[0] / SECOND
LONGEST_STEP = LIMITS[-1] / SECOND
# The value that represents a step: nothing between its two limits differs from it by more than a fifth.
_MIDDLES = (
    SHORTEST_STEP,
    *(float(f"{2 * low * high / (low + high) / SECOND:.2g}") for low, high in pairwise(LIMITS)),
    2 * LONGEST_STEP,
)
_PLACES = {kind: {f"{kind}_{step}": place for place, step in enumerate(STEPS)} for kind in ("run", "wait")}
_SHARES = (0.5, 0.95, 0.99)

K = TypeVar("K")


class RunStats(msgspec.Struct, kw_only=True):
    """Statistics of attempts. A run is an attempt whose end was seen: `runs` includes `failed`, but not `halted`, whose
    worker died. Times are seconds. `wait` is the time in line before the start, `run` the time after it: the mean and
    the 50th, 95th and 99th percentile. Percentiles come from a histogram and are accurate to a fifth; 0.001 means "at
    most that", and twice the longest step "longer than it". They are null for a time in which an older version counted
    something without a histogram."""

    added: int = 0
    runs: int = 0
    completed: int = 0
    failed: int = 0
    dead: int = 0
    aborted: int = 0
    halted: int = 0
    ran: float = 0.0
    waited: float = 0.0
    wait_mean: float | None = None
    wait_p50: float | None = None
    wait_p95: float | None = None
    wait_p99: float | None = None
    run_mean: float | None = None
    run_p50: float | None = None
    run_p95: float | None = None
    run_p99: float | None = None


def run_stats(points: Iterable[Point]) -> RunStats:
    """Compute the statistics of all these points together."""
    sums: Counter[str] = Counter()
    for point in points:
        sums.update(point.values)
    runs_in, waits_in = step_counts(sums, "run"), step_counts(sums, "wait")
    runs = _runs(sums, runs_in)
    run_p50, run_p95, run_p99 = _percentiles(runs_in, runs, sums["ran"])
    wait_p50, wait_p95, wait_p99 = _percentiles(waits_in, runs, sums["waited"])
    return RunStats(
        **{name: sums[name] for name in ("added", "completed", "failed", "dead", "aborted", "halted")},
        runs=runs,
        ran=sums["ran"] / SECOND,
        waited=sums["waited"] / SECOND,
        wait_mean=sums["waited"] / SECOND / runs if runs else None,
        wait_p50=wait_p50,
        wait_p95=wait_p95,
        wait_p99=wait_p99,
        run_mean=sums["ran"] / SECOND / runs if runs else None,
        run_p50=run_p50,
        run_p95=run_p95,
        run_p99=run_p99,
    )


def step_counts(sums: Mapping[str, int], kind: str) -> list[int]:
    """How many attempts fell into each of `STEPS`; `kind` is "run" or "wait"."""
    return [sums.get(name, 0) for name in _PLACES[kind]]


def longest_wait(points: Iterable[Point]) -> float | None:
    """Roughly the longest wait of an attempt, in seconds."""
    sums: Counter[str] = Counter()
    for point in points:
        sums.update(point.values)
    steps = step_counts(sums, "wait")
    if not any(steps):
        return None
    alike = _alike(steps, sums["waited"] / sum(steps))
    return alike if alike is not None else _MIDDLES[max(place for place, number in enumerate(steps) if number)]


def percentile_bound(percentile: float) -> tuple[str, float]:
    """Return a percentile as a sign and seconds. The sign is "≤" or ">" if the value is outside all steps."""
    if percentile <= SHORTEST_STEP:
        return "≤", SHORTEST_STEP
    return (">", LONGEST_STEP) if percentile > LONGEST_STEP else ("", percentile)


def stats_by_task(points: Iterable[Point]) -> dict[str, RunStats]:
    """Like `run_stats`, for each task."""
    return _grouped(points, lambda point: point.task)


def stats_by_queue(points: Iterable[Point]) -> dict[str, RunStats]:
    """Like `run_stats`, for each queue."""
    return _grouped(points, lambda point: point.queue)


def stats_by_time(points: Iterable[Point]) -> dict[int, RunStats]:
    """Like `run_stats`, for the start of each interval, in order."""
    return dict(sorted(_grouped(points, lambda point: point.at).items()))


def _grouped(points: Iterable[Point], name_of: Callable[[Point], K]) -> dict[K, RunStats]:
    groups: dict[K, list[Point]] = {}
    for point in points:
        groups.setdefault(name_of(point), []).append(point)
    return {name: run_stats(group) for name, group in groups.items()}


def _runs(sums: Mapping[str, int], steps: Sequence[int]) -> int:
    """Count the attempts: those in these steps, and those that older versions counted in coarser ones, `ran_…`."""
    return sum(steps) + sum(number for name, number in sums.items() if name.startswith("ran_"))


def _percentiles(steps: Sequence[int], runs: int, total: int) -> list[float | None]:
    if not runs or sum(steps) < runs:  # some runs were counted without a histogram
        return [None] * len(_SHARES)
    if (alike := _alike(steps, total / runs)) is not None:
        return [alike] * len(_SHARES)
    below = list(accumulate(steps))
    return [_MIDDLES[bisect_left(below, share * runs)] for share in _SHARES]


def _alike(steps: Sequence[int], mean: float) -> float | None:
    """The mean in seconds, if all fell into one step: unlike the middle of the step, it is between the shortest and the
    longest. None for several steps, and for a step without an upper or lower limit."""
    place = next(place for place, number in enumerate(steps) if number)
    if not 0 < place < len(LIMITS) or any(steps[place + 1 :]) or not LIMITS[place - 1] < mean <= LIMITS[place]:
        return None
    return float(f"{mean / SECOND:.3g}")


# --- calls of the storage ---------------------------------------------------------------------------------------------


OPERATIONS_KEY = "storage"
"""The key of this part of a report."""
WRITES = frozenset({"enqueue", "start", "finish", "finish_and_reserve", "release", "check_in", "append_log"})
"""The writes of a worker for its jobs. `reserve` is left out: without waiting jobs it writes nothing."""

_MOST = 12  # kinds of calls in one process's report, which heartbeats carry
_FIGURES = OperationSums.__struct_fields__[1:]


def operations_report(operations: Sequence[OperationSums]) -> dict[str, list[int]]:
    """Report the calls that took most of this process's time: microseconds, in the order of the figures."""
    dearest = sorted(operations, key=lambda each: -(each.wait + each.run))[:_MOST]
    return {each.name: [getattr(each, figure) for figure in _FIGURES] for each in dearest}


def reported_operations(worker: WorkerInfo) -> list[OperationSums]:
    """Read the calls that a process reported. Other programs write reports too, so bad values are skipped."""
    report = worker.report.get(OPERATIONS_KEY)
    if not isinstance(report, dict):
        return []
    return [OperationSums(str(name), *figures) for name, figures in report.items() if _are_figures(figures)]


def _are_figures(figures: Any) -> bool:
    is_list = isinstance(figures, list) and len(figures) == len(_FIGURES)
    return is_list and all(type(each) is int and each >= 0 for each in figures) and figures[0] > 0


def total_operation_times(workers: Iterable[WorkerInfo]) -> list[OperationTimes]:
    """Sum the reported calls, slowest in total first. Processes report their own 95th percentiles, so the total has the
    highest of them."""
    by_name: dict[str, list[OperationSums]] = {}
    for worker in workers:
        for sums in reported_operations(worker):
            by_name.setdefault(sums.name, []).append(sums)
    dearest = sorted(map(_sum, by_name.values()), key=lambda each: (-each.run, each.name))
    return [each.times for each in dearest]


def _sum(parts: Sequence[OperationSums]) -> OperationSums:
    return OperationSums(
        name=parts[0].name,
        calls=sum(each.calls for each in parts),
        wait=sum(each.wait for each in parts),
        wait_max=max(each.wait_max for each in parts),
        run=sum(each.run for each in parts),
        run_p95=max(each.run_p95 for each in parts),
        run_max=max(each.run_max for each in parts),
    )


# --- connections to the storage ---------------------------------------------------------------------------------------


_OPEN, _IN_USE = "connections_open", "connections_in_use"


class ConnectionTotals(msgspec.Struct):
    """Connections of this many processes: live workers and foremen, and the process that was asked."""

    open: int
    in_use: int
    processes: int


def connections_report(connections: tuple[int, int]) -> dict[str, int]:
    """Report the connections of this process."""
    return dict(zip((_OPEN, _IN_USE), connections, strict=True))


def connection_totals(ours: Iterable[tuple[int, int]], alive: Iterable[WorkerInfo]) -> ConnectionTotals:
    """Sum the connections of this process and of all live ones that report theirs."""
    reports = [worker.report for worker in alive if isinstance(worker.report.get(_OPEN), int)]
    mine = list(ours)
    return ConnectionTotals(
        open=sum(number for number, _ in mine) + sum(report[_OPEN] for report in reports),
        in_use=sum(number for _, number in mine) + sum(_whole(report.get(_IN_USE)) for report in reports),
        processes=1 + len(reports),
    )


def _whole(value: object) -> int:
    return value if isinstance(value, int) else 0
