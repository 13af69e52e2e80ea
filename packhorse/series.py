"""What charts are made of: counts and durations per minute, hour and day, for each queue and task.

Storages add to the present minute in the same write as the change that is counted; the roll-up chore folds minutes
into hours and hours into days. Pure arithmetic, no I/O.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence

import msgspec

from packhorse.clock import DAY, HOUR, MINUTE, SECOND
from packhorse.job import FINAL, Job

Measures = dict[tuple[str, str, str], int]
"""(queue, task, what is counted) -> how much."""

CAME = ("added", "retried")
WENT = ("completed", "dead", "aborted", "deleted")
"""What makes the number of unfinished jobs grow and shrink: every job comes as often as it goes, or is there still."""

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


def measure(into: Measures, before: Job | None, job: Job, ran: int | None = None) -> None:
    """Count what became of a job; `ran` is how long its attempt took, if one has just ended."""
    for counted in _counted(before, job):
        _add(into, job.queue, job.task, counted, 1)
    if ran is not None and before is not None and job.started_at is not None:
        # The wait is taken from the job before: one that failed may already be in line again.
        waited = job.started_at - before.queued_at if before.queued_at is not None else 0
        measure_runs(into, job.queue, job.task, [(ran, waited)])


def measure_deleted(into: Measures, job: Job) -> None:
    """Count a job that goes for good before it has ended; one that has ended was counted then."""
    if job.state not in FINAL:
        _add(into, job.queue, job.task, "deleted", 1)


def has_failed(before: Job | None, job: Job) -> bool:
    """Has an attempt just failed, or halted?"""
    return before is not None and (job.failures > before.failures or job.halts > before.halts)


def measure_runs(into: Measures, queue: str, task: str, runs: Sequence[tuple[int, int]]) -> None:
    """Count attempts of one task: how long each ran, and how long it had waited before."""
    _add(into, queue, task, "ran", sum([ran for ran, _ in runs if ran > 0]))
    _add(into, queue, task, "waited", sum([waited for _, waited in runs if waited > 0]))
    for step, number in Counter([ran_step(ran) for ran, _ in runs]).items():
        _add(into, queue, task, step, number)


def _counted(before: Job | None, job: Job) -> Iterator[str]:
    if before is None:
        yield "added"
        return
    if job.failures > before.failures:
        yield "failed"
    if job.halts > before.halts:
        yield "halted"
    if job.state is not before.state and job.state in FINAL:
        yield job.state.value
    if before.state in FINAL and job.state not in FINAL:
        yield "retried"


def _add(into: Measures, queue: str, task: str, counted: str, amount: int) -> None:
    key = (queue, task, counted)
    into[key] = into.get(key, 0) + amount
