"""The configuration of one worker: its id, its queues, its slots, its limits.

`__main__.py` makes it from the command line that the foreman wrote.
"""

from __future__ import annotations

import msgspec

FINAL_WRITES = 1.0
"""Seconds that a stuck worker has for its last outcomes before it exits."""


class WorkerLimits(msgspec.Struct, frozen=True):
    """When a worker is replaced by a fresh one, and how long it waits for its jobs."""

    max_jobs: int | None = None
    max_rss: int | None = None  # bytes
    max_jobs_per_child: int | None = None
    stop_grace: float = 30.0
    abort_grace: float = 2.0
    lease: float = 15.0
    other_jobs: float = 10.0  # seconds that the other jobs of a stuck worker get

    @property
    def last_seconds(self) -> float:
        """How long a stuck worker lives at most: its other jobs finish or are asked to stop, result handlers get their
        time, and the outcomes are written."""
        return self.other_jobs + 2 * self.abort_grace + FINAL_WRITES


class WorkerConfig(msgspec.Struct, frozen=True):
    """`owner` is the worker's id, under which it holds jobs."""

    owner: str
    foreman: str | None = None
    concurrency: int = 10
    queues: list[str] | None = None  # None: those of all its tasks
    burst: bool = False  # exit when nothing is left to run
    is_alone: bool = False  # no foreman names new queues: the worker looks for them
    in_program: bool = False
    """Runs in the user's own program, so its threads do not end with it. While a job that was given up still runs, the
    worker stays, until its pool stops. Jobs that run even then are handed back: pools of this program wait until they
    return, other workers may begin them."""
    limits: WorkerLimits = WorkerLimits()
    spool: str | None = None  # the file for outcomes that cannot be delivered
