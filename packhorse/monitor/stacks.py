"""Stack dumps: what each thread, coroutine and child process of a worker runs, as an operator asked for it
with the order `stacks`.

The worker's answer is part of its foreman's report for a few minutes.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from packhorse.storage.records import WorkerInfo

MOST_TEXT = 24 << 10
"""Characters that one worker may report."""
MOST_STACKS = 100
STACKS_TOLD_FOR = 180.0
"""Seconds for which stacks are part of the report."""


class Stack(msgspec.Struct, frozen=True):
    """One thread, coroutine or child process; `job_id` is the job that it runs."""

    title: str
    text: str
    job_id: str | None = None


class Stacks(msgspec.Struct, frozen=True):
    """The stacks of one worker: the order that they answer, and their age at its last heartbeat."""

    order: int
    age_s: float
    items: list[Stack]

    def of_job(self, job_id: str) -> Stack | None:
        """The stack of this job."""
        return next((stack for stack in self.items if stack.job_id == job_id), None)


def stacks_of(worker: WorkerInfo) -> Stacks | None:
    """The stacks that this worker has reported; None if there are none, or a newer version wrote them."""
    try:
        return msgspec.convert(worker.report.get("stacks"), Stacks)
    except msgspec.ValidationError:
        return None


def limit_stacks(items: Sequence[Stack], most: int = MOST_TEXT) -> list[Stack]:
    """Return as many as fit."""
    kept: list[Stack] = []
    for place, stack in enumerate(items):
        most -= len(stack.text) + len(stack.title)
        if most < 0 or place >= MOST_STACKS:
            return [*kept, Stack(f"{len(items) - place} more were left out", "")]
        kept.append(stack)
    return kept
