"""Statistics: totals, runs and waits, storage calls, connections. Pure: callers read the records."""

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
    """How everything stands. `ever` and `today` (since midnight UTC) have added, completed, failed, dead, aborted and
    halted; `processed` are attempts that ended, `failed` those that raised or ran too long: halts are in `ever`.

    Since ever is counted for all queues together: for whom only some concern, `ever` is empty and these are null."""

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
    """The numbers; `ever` are the counts since ever, if they may be told, `today` those that `today_of` tells."""
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
    """What these points, which are the hours of the last two days, come to since midnight."""
    today = [point.values for point in points if point.at >= midnight]
    return {name: sum(values.get(name, 0) for values in today) for name in _COUNTED}


def midnight_before(now: int) -> int:
    """When the present day began (UTC)."""
    return from_datetime(to_datetime(now).astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0))


def ended_attempts(counts: Mapping[str, int]) -> int:
    """How many attempts have ended, however."""
    return sum(counts.get(name, 0) for name in ("completed", "failed", "halted"))


# --- runs: what the points of the charts come to ----------------------------------------------------------------------


SHORTEST_STEP = LIMITS[0] / SECOND
LONGEST_STEP = LIMITS[-1] / SECOND
# What stands for whatever fell into a step: of what is within the two limits, nothing is further away than a fifth.
_MIDDLES = (
    SHORTEST_STEP,
    *(float(f"{2 * low * high / (low + high) / SECOND:.2g}") for low, high in pairwise(LIMITS)),
    2 * LONGEST_STEP,
)
_PLACES = {kind: {f"{kind}_{step}": place for place, step in enumerate(STEPS)} for kind in ("run", "wait")}
_SHARES = (0.5, 0.95, 0.99)

K = TypeVar("K")


class RunStats(msgspec.Struct, kw_only=True):
    """What attempts came to. A run is an attempt whose end somebody saw: `failed` are some of the `runs`, and `halted`,
    whose worker died, are counted apart. Times are seconds. `wait` is how long they had been in line when they began,
    `run` how long they ran then: on average, and at most for 50, 95 and 99 of 100. Those percentiles come from
    counts in steps and are right to a fifth; 0.001 means "at most that", and twice the longest step "longer than it".
    They are null for a time in which something was counted without steps, by a version that had none."""

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
    """What these points come to together."""
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
    """About how long the attempt had waited that had waited the longest, in seconds."""
    sums: Counter[str] = Counter()
    for point in points:
        sums.update(point.values)
    steps = step_counts(sums, "wait")
    if not any(steps):
        return None
    alike = _alike(steps, sums["waited"] / sum(steps))
    return alike if alike is not None else _MIDDLES[max(place for place, number in enumerate(steps) if number)]


def percentile_bound(percentile: float) -> tuple[str, float]:
    """What a percentile says: a sign, "≤" or ">", where it is only known to lie beyond all steps, and seconds."""
    if percentile <= SHORTEST_STEP:
        return "≤", SHORTEST_STEP
    return (">", LONGEST_STEP) if percentile > LONGEST_STEP else ("", percentile)


def stats_by_task(points: Iterable[Point]) -> dict[str, RunStats]:
    """The same for each task."""
    return _grouped(points, lambda point: point.task)


def stats_by_queue(points: Iterable[Point]) -> dict[str, RunStats]:
    """The same for each queue."""
    return _grouped(points, lambda point: point.queue)


def stats_by_time(points: Iterable[Point]) -> dict[int, RunStats]:
    """The same for each moment at which an interval begins, in their order."""
    return dict(sorted(_grouped(points, lambda point: point.at).items()))


def _grouped(points: Iterable[Point], name_of: Callable[[Point], K]) -> dict[K, RunStats]:
    groups: dict[K, list[Point]] = {}
    for point in points:
        groups.setdefault(name_of(point), []).append(point)
    return {name: run_stats(group) for name, group in groups.items()}


def _runs(sums: Mapping[str, int], steps: Sequence[int]) -> int:
    """How many attempts: those in these steps, and those that were counted in coarser ones, `ran_…`, in former days."""
    return sum(steps) + sum(number for name, number in sums.items() if name.startswith("ran_"))


def _percentiles(steps: Sequence[int], runs: int, total: int) -> list[float | None]:
    if not runs or sum(steps) < runs:  # of what nobody has counted nothing is known
        return [None] * len(_SHARES)
    if (alike := _alike(steps, total / runs)) is not None:
        return [alike] * len(_SHARES)
    below = list(accumulate(steps))
    return [_MIDDLES[bisect_left(below, share * runs)] for share in _SHARES]


def _alike(steps: Sequence[int], mean: float) -> float | None:
    """The mean in seconds, if all fell into one step: unlike the middle of that, it lies between the shortest and the
    longest. None for several steps, and for those that are open at one end."""
    place = next(place for place, number in enumerate(steps) if number)
    if not 0 < place < len(LIMITS) or any(steps[place + 1 :]) or not LIMITS[place - 1] < mean <= LIMITS[place]:
        return None
    return float(f"{mean / SECOND:.3g}")


# --- calls of the storage ---------------------------------------------------------------------------------------------


OPERATIONS_KEY = "storage"
"""Of this part of a report."""
WRITES = frozenset({"enqueue", "start", "finish", "finish_and_reserve", "release", "check_in", "append_log"})
"""What a worker writes for its jobs. Reserving alone changes nothing where nothing waits, and is left out."""

_MOST = 12  # kinds of calls that one process tells of: heartbeats carry it
_FIGURES = OperationSums.__struct_fields__[1:]


def operations_report(operations: Sequence[OperationSums]) -> dict[str, list[int]]:
    """What a process says of its calls: of those that took most of its time, microseconds in the order of figures."""
    dearest = sorted(operations, key=lambda each: -(each.wait + each.run))[:_MOST]
    return {each.name: [getattr(each, figure) for figure in _FIGURES] for each in dearest}


def reported_operations(worker: WorkerInfo) -> list[OperationSums]:
    """What this one said, as far as it can be understood: a report is what somebody else wrote."""
    report = worker.report.get(OPERATIONS_KEY)
    if not isinstance(report, dict):
        return []
    return [OperationSums(str(name), *figures) for name, figures in report.items() if _are_figures(figures)]


def _are_figures(figures: Any) -> bool:
    is_list = isinstance(figures, list) and len(figures) == len(_FIGURES)
    return is_list and all(type(each) is int and each >= 0 for each in figures) and figures[0] > 0


def total_operation_times(workers: Iterable[WorkerInfo]) -> list[OperationTimes]:
    """What all of them said, the dearest calls first. As no process says more than that, 95 of 100 calls took no longer
    than they did in the slowest."""
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
    """Connections of so many processes: workers and foremen that are alive, and whoever was asked for this."""

    open: int
    in_use: int
    processes: int


def connections_report(connections: tuple[int, int]) -> dict[str, int]:
    """What a process says of its connections in its report."""
    return dict(zip((_OPEN, _IN_USE), connections, strict=True))


def connection_totals(ours: Iterable[tuple[int, int]], alive: Iterable[WorkerInfo]) -> ConnectionTotals:
    """Those of this process, and of all that are alive and say how many they have."""
    reports = [worker.report for worker in alive if isinstance(worker.report.get(_OPEN), int)]
    mine = list(ours)
    return ConnectionTotals(
        open=sum(number for number, _ in mine) + sum(report[_OPEN] for report in reports),
        in_use=sum(number for _, number in mine) + sum(_whole(report.get(_IN_USE)) for report in reports),
        processes=1 + len(reports),
    )


def _whole(value: object) -> int:
    return value if isinstance(value, int) else 0
