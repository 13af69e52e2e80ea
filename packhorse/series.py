"""What charts are made of: counts and durations per minute, hour and day, for each queue and task.

Storages add to the present minute in the same write as the change that is counted; the roll-up chore folds minutes
into hours and hours into days. Pure arithmetic, no I/O.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence

import msgspec

from packhorse.changes import Changed
from packhorse.clock import DAY, HOUR, MINUTE, SECOND
from packhorse.event import Event, Kind
from packhorse.job import Job, Reason

Measures = dict[tuple[str, str, str], int]
"""(queue, task, what is counted) -> how much."""

_COUNTED = {
    Kind.ADDED: "added",
    Kind.COMPLETED: "completed",
    Kind.FAILED: "failed",
    Kind.ABORTED: "aborted",
    Kind.HALTED: "halted",
}
_ATTEMPT_ENDS = frozenset({Kind.COMPLETED, Kind.FAILED, Kind.BROKEN, Kind.SNOOZED})

# How long attempts ran, in steps of about three: enough for a median and a 95th percentile on a chart.
RAN_STEPS = (
    (1_000, "ran_1ms"),
    (3_000, "ran_3ms"),
    (10_000, "ran_10ms"),
    (30_000, "ran_30ms"),
    (100_000, "ran_100ms"),
    (300_000, "ran_300ms"),
    (SECOND, "ran_1s"),
    (3 * SECOND, "ran_3s"),
    (10 * SECOND, "ran_10s"),
    (30 * SECOND, "ran_30s"),
    (MINUTE, "ran_1m"),
    (5 * MINUTE, "ran_5m"),
    (15 * MINUTE, "ran_15m"),
    (HOUR, "ran_1h"),
)
_LIMITS = [limit for limit, _ in RAN_STEPS]
_NAMES = [name for _, name in RAN_STEPS]


def ran_step(ran: int) -> str:
    """The name of the smallest step that holds this duration.

    >>> ran_step(2_500)
    'ran_3ms'
    """
    index = bisect_left(_LIMITS, ran)
    return _NAMES[index] if index < len(_NAMES) else "ran_longer"


class Level(msgspec.Struct, frozen=True):
    """One fineness of the charts."""

    name: str
    width: int  # of one point
    keep: int  # before it is folded into the next level

    def start_of(self, at: int) -> int:
        return at - at % self.width


MINUTES = Level("minute", MINUTE, 3 * HOUR)
HOURS = Level("hour", HOUR, 3 * DAY)
DAYS = Level("day", DAY, 92 * DAY)
EVER = Level("ever", 1 << 60, 1 << 60)
LEVELS = (MINUTES, HOURS, DAYS, EVER)


def measure(into: Measures, before: Job | None, change: Changed) -> None:
    """Count what one change of a job says."""
    job = change.job
    for event in change.events:
        for counted in _counted(event, job):
            _add(into, job.queue, job.task, counted, 1)
        if event.kind in _ATTEMPT_ENDS and job.started_at is not None:
            # The wait is taken from the job before: one that failed may already be in line again.
            queued_at = before.queued_at if before is not None else None
            waited = job.started_at - queued_at if queued_at is not None else 0
            measure_runs(into, job.queue, job.task, [(event.at - job.started_at, waited)])


def measure_runs(into: Measures, queue: str, task: str, runs: Sequence[tuple[int, int]]) -> None:
    """Count attempts of one task: how long each ran, and how long it had waited before."""
    _add(into, queue, task, "ran", sum([ran for ran, _ in runs if ran > 0]))
    _add(into, queue, task, "waited", sum([waited for _, waited in runs if waited > 0]))
    for step, number in Counter([ran_step(ran) for ran, _ in runs]).items():
        _add(into, queue, task, step, number)


def _counted(event: Event, job: Job) -> tuple[str, ...]:
    if event.kind is Kind.BROKEN:
        return ("dead", "halted") if job.reason is Reason.RUNNER_TIMEOUT else ("dead", "failed")
    name = _COUNTED.get(event.kind)
    return (name,) if name else ()


def _add(into: Measures, queue: str, task: str, counted: str, amount: int) -> None:
    key = (queue, task, counted)
    into[key] = into.get(key, 0) + amount
