"""What charts are made of: counts and durations per minute, hour and day, for each queue and task.

Storages add to the present minute in the same write as the change that is counted; the roll-up chore folds minutes
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
"""(queue, task, what is counted) -> how much."""

CAME = ("added", "retried", "moved_in")
WENT = ("completed", "dead", "aborted", "deleted", "moved_out")
"""What makes the number of unfinished jobs grow and shrink, in one queue too: every job comes as often as it goes, or
is there still."""

# How long attempts waited and ran, in steps: one is at most half as long again as the one before, so that the middle of
# a step is within a fifth of whatever fell into it. `lua/parts/complete.lua` knows them too.
_DIGITS = (10, 15, 20, 30, 40, 60, 80)
LIMITS = (*(digit * 10**power for power in range(2, 10) for digit in _DIGITS), 10**11)
"""The longest duration of each step: from a millisecond to a bit more than a day."""
STEPS = (*(f"{limit / 1_000:g}ms" if limit < SECOND else f"{limit / SECOND:g}s" for limit in LIMITS), "longer")
"""The name of each step; what is counted is called `run_3ms` or `wait_3ms`. The last has no limit."""


def step_of(duration: int) -> str:
    """The name of the smallest step that holds this duration.

    >>> step_of(2_500), step_of(90_000_000)
    ('3ms', '100s')
    """
    return STEPS[bisect_left(LIMITS, duration)]


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

# Failures by cause are counted beside all that, so that many causes make no chart slower: the cause stands where else
# the queue stands. What is older than the coarsest level keeps is dropped.
CAUSED = "caused"
CAUSE_MINUTES = Level("cause_minute", MINUTE, MINUTES.keep)
CAUSE_HOURS = Level("cause_hour", HOUR, HOURS.keep)
CAUSE_DAYS = Level("cause_day", DAY, DAYS.keep)
CAUSE_LEVELS = (CAUSE_MINUTES, CAUSE_HOURS, CAUSE_DAYS)

FOLDS = (*itertools.pairwise(LEVELS), *itertools.pairwise(CAUSE_LEVELS))
"""Which level is folded into which."""
ALL_LEVELS = (*LEVELS, *CAUSE_LEVELS)


def measure(into: Measures, before: Job | None, job: Job, ran: int | None = None) -> None:
    """Count what became of a job; `ran` is how long its attempt took, if one has just ended."""
    for counted in _counted(before, job):
        _add(into, job.queue, job.task, counted, 1)
    if before is not None and before.queue != job.queue and job.state not in FINAL:
        _add(into, before.queue, job.task, "moved_out", 1)
        _add(into, job.queue, job.task, "moved_in", 1)
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
    """Count attempts of one task: how long each ran, and how long it had waited before. There is one at least."""
    rans, waits = zip(*runs, strict=True)
    for total, kind, durations in (("ran", "run_", rans), ("waited", "wait_", waits)):
        shortest, longest = min(durations), max(durations)
        _add(into, queue, task, total, sum(durations) if shortest >= 0 else sum([max(0, each) for each in durations]))
        low, high = bisect_left(LIMITS, shortest), bisect_left(LIMITS, longest)
        if low == high:  # those of a batch are mostly alike, and need not be looked at one by one then
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
