"""The data of the charts: counts and durations per minute, hour and day, for each queue and task.

Storages add to the current minute in the same write as the change that is counted; the roll-up chore adds minutes up
into hours and hours into days. Pure arithmetic, no I/O.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence

import msgspec

from packhorse.core.clock import DAY, HOUR, MINUTE, SECOND
from packhorse.core.job import FINAL, Job

Measures = dict[tuple[str, str, str], int]
"""(queue, task, measure) -> number."""

CAME = ("added", "retried", "moved_in")
WENT = ("completed", "dead", "aborted", "deleted", "moved_out")
"""The measures by which the number of unfinished jobs rises and falls, also of one queue."""

# Steps of durations: each is at most one and a half times the one before, so that the middle of a step is within a
# fifth of each duration in it. `lua/parts/complete.lua` has them too.
_DIGITS = (10, 15, 20, 30, 40, 60, 80)
LIMITS = (*(digit * 10**power for power in range(2, 10) for digit in _DIGITS), 10**11)
"""The upper limit of each step: from a millisecond to a bit more than a day."""
STEPS = (*(f"{limit / 1_000:g}ms" if limit < SECOND else f"{limit / SECOND:g}s" for limit in LIMITS), "longer")
"""The name of each step; a measure is called `run_3ms` or `wait_3ms`. The last has no limit."""


def step_of(duration: int) -> str:
    """The name of the smallest step that contains this duration.

    >>> step_of(2_500), step_of(90_000_000)
    ('3ms', '100s')
    """
    return STEPS[bisect_left(LIMITS, duration)]


class Level(msgspec.Struct, frozen=True):
    """One resolution of the charts."""

    name: str
    width: int  # of one point
    keep: int  # before it is rolled up into the next level

    def start_of(self, at: int) -> int:
        return at - at % self.width


MINUTES = Level("minute", MINUTE, 3 * HOUR)
HOURS = Level("hour", HOUR, 3 * DAY)
DAYS = Level("day", DAY, 92 * DAY)
EVER = Level("ever", 1 << 60, 1 << 60)
LEVELS = (MINUTES, HOURS, DAYS, EVER)

# Failures by cause are counted separately, so that many causes do not slow down the charts: the cause takes the place
# of the queue. Points older than the retention of the coarsest level are dropped.
CAUSED = "caused"
CAUSE_MINUTES = Level("cause_minute", MINUTE, MINUTES.keep)
CAUSE_HOURS = Level("cause_hour", HOUR, HOURS.keep)
CAUSE_DAYS = Level("cause_day", DAY, DAYS.keep)
CAUSE_LEVELS = (CAUSE_MINUTES, CAUSE_HOURS, CAUSE_DAYS)

FOLDS = (*itertools.pairwise(LEVELS), *itertools.pairwise(CAUSE_LEVELS))
"""Each level with the one into which it is rolled up."""
ALL_LEVELS = (*LEVELS, *CAUSE_LEVELS)


def measure(into: Measures, before: Job | None, job: Job, ran: int | None = None) -> None:
    """Count the outcome of a job; `ran` is the duration of its attempt, if one has just ended."""
    for counted in _counted(before, job):
        _add(into, job.queue, job.task, counted, 1)
    if before is not None and before.queue != job.queue and job.state not in FINAL:
        _add(into, before.queue, job.task, "moved_out", 1)
        _add(into, job.queue, job.task, "moved_in", 1)
    if ran is not None and before is not None and job.started_at is not None:
        # The wait comes from the job before the change: a failed one may be queued again.
        waited = job.started_at - before.queued_at if before.queued_at is not None else 0
        measure_runs(into, job.queue, job.task, [(ran, waited)])


def measure_deleted(into: Measures, job: Job) -> None:
    """Count a job that is removed before it has ended; one that has ended was counted then."""
    if job.state not in FINAL:
        _add(into, job.queue, job.task, "deleted", 1)


def has_failed(before: Job | None, job: Job) -> bool:
    """Has an attempt just failed, or halted?"""
    return before is not None and (job.failures > before.failures or job.halts > before.halts)


def measure_runs(into: Measures, queue: str, task: str, runs: Sequence[tuple[int, int]]) -> None:
    """Count the attempts of one task, at least one: how long each ran, and how long it waited before."""
    rans, waits = zip(*runs, strict=True)
    for total, kind, durations in (("ran", "run_", rans), ("waited", "wait_", waits)):
        shortest, longest = min(durations), max(durations)
        _add(into, queue, task, total, sum(durations) if shortest >= 0 else sum([max(0, each) for each in durations]))
        low, high = bisect_left(LIMITS, shortest), bisect_left(LIMITS, longest)
        if low == high:  # attempts of a batch are mostly equal, and need no loop then
            _add(into, queue, task, kind + STEPS[low], len(durations))
            continue
        for place, number in Counter([bisect_left(LIMITS, each, low, high) for each in durations]).items():
            _add(into, queue, task, kind + STEPS[place], number)


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
