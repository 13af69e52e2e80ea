"""What comes next: the slots of schedules, and the jobs in line in the order in which workers will take them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from packhorse.core.clock import MINUTE
from packhorse.core.errors import BadValue
from packhorse.core.fair_share import FairShare
from packhorse.core.job import RANK_FORCED, RANK_HALTED, RANK_RECOVERED, Job
from packhorse.storage.records import BY_AGE, ScheduleInfo, TaskInfo

_COMING = 3
_LATE = MINUTE  # a live foreman handles a due schedule within a second


def late_by(schedule: ScheduleInfo, now: int) -> int | None:
    """How long a schedule has been overdue; None if it is on time or paused."""
    late = now - schedule.next_at
    return late if schedule.paused_at is None and schedule.next_at > 0 and late > _LATE else None


def describe_schedule(schedule: ScheduleInfo, now: int, slots: int = _COMING) -> tuple[str, list[int]]:
    """Return the cron text in words, and its next slots; if the text cannot be parsed, say so and return none."""
    from packhorse.core.cron import Cron  # imported late: it imports cronsim

    try:
        cron = Cron(schedule.cron, schedule.tz)
        coming: list[int] = []
        at = max(now, schedule.next_at - 1)
        while len(coming) < slots:
            at = cron.next_after(at)
            if at != schedule.options.get("skip"):
                coming.append(at)
        return cron.describe(), coming
    except BadValue as error:
        return error.what, []


# --- the next jobs in line --------------------------------------------------------------------------------------------


_SPECIAL = {RANK_RECOVERED: "recovered", RANK_FORCED: "forced", RANK_HALTED: "halted"}


class NextJob(NamedTuple):
    """A job in line, with its position among all jobs and in its own queue, both from 1."""

    place: int
    place_in_queue: int
    job: Job

    @property
    def tier(self) -> str:
        """Its rank, in words."""
        return _SPECIAL.get(self.job.rank, f"priority {self.job.priority}")


def order_next_jobs(jobs: Sequence[Job], order: str, weights: Mapping[str, int]) -> list[NextJob]:
    """Put these jobs, which are sorted by rank and age, into the order in which they will be taken."""
    seen: dict[str, int] = {}
    found = []
    for place, job in enumerate(jobs if order == BY_AGE else _by_turns(jobs, weights), start=1):
        seen[job.queue] = seen.get(job.queue, 0) + 1
        found.append(NextJob(place, seen[job.queue], job))
    return found


def _by_turns(jobs: Sequence[Job], weights: Mapping[str, int]) -> list[Job]:
    turns = FairShare()
    taken: list[Job] = []
    for rank in sorted({job.rank for job in jobs}):
        lines: dict[str, list[Job]] = {}
        for job in jobs:
            if job.rank == rank:
                lines.setdefault(job.queue, []).append(job)
        while any(lines.values()):
            (queue,) = turns.share({name: len(line) for name, line in lines.items()}, weights, 1)
            taken.append(lines[queue].pop(0))
    return taken


def queue_weights(tasks: Iterable[TaskInfo]) -> dict[str, int]:
    """The weight of each queue, from the tasks that workers announced in it."""
    weights: dict[str, int] = {}
    for task in tasks:
        weight = task.options.get("weight", 1)
        weights[task.queue] = max(weights.get(task.queue, 1), weight if isinstance(weight, int) else 1)
    return weights
