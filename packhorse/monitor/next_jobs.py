"""Who is next: the jobs in line in the order in which workers will take them. Pure.

By turns it is what one worker would do that begins now: each process remembers which queues it served last, and others
take jobs meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from packhorse.core.fair_share import FairShare
from packhorse.core.job import RANK_FORCED, RANK_HALTED, RANK_RECOVERED, Job
from packhorse.storage.records import BY_AGE, TaskInfo

_SPECIAL = {RANK_RECOVERED: "recovered", RANK_FORCED: "forced", RANK_HALTED: "halted"}


class Upcoming(NamedTuple):
    """A job in line: its place among all, and in its own queue, both from 1."""

    place: int
    place_in_queue: int
    job: Job

    @property
    def tier(self) -> str:
        """Its rank, in words."""
        return _SPECIAL.get(self.job.rank, f"priority {self.job.priority}")


def in_order(jobs: Sequence[Job], order: str, weights: Mapping[str, int]) -> list[Upcoming]:
    """These jobs, which stand in line by rank and age, as they will be taken."""
    seen: dict[str, int] = {}
    found = []
    for place, job in enumerate(jobs if order == BY_AGE else _by_turns(jobs, weights), start=1):
        seen[job.queue] = seen.get(job.queue, 0) + 1
        found.append(Upcoming(place, seen[job.queue], job))
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


def weights_told(tasks: Iterable[TaskInfo]) -> dict[str, int]:
    """The weights of queues, by what workers announced of the tasks in them."""
    weights: dict[str, int] = {}
    for task in tasks:
        told = task.options.get("weight", 1)
        weights[task.queue] = max(weights.get(task.queue, 1), told if isinstance(told, int) else 1)
    return weights
