"""What a worker was started for: under which id, for which queues, with how many slots, and when it is to go.

`__main__.py` makes it of the command line that the foreman wrote; the parts of the worker read what concerns them.
"""

from __future__ import annotations

import msgspec

WRITING_DOWN = 1.0
"""Seconds that a condemned worker has, in the end, to write down what it knows."""


class WorkerLimits(msgspec.Struct, frozen=True):
    """When a worker makes room for a fresh one, and how patient it is."""

    max_jobs: int | None = None
    max_rss: int | None = None  # bytes
    max_jobs_per_child: int | None = None
    stop_grace: float = 30.0
    abort_grace: float = 2.0
    lease: float = 15.0
    neighbours: float = 10.0  # seconds that other jobs get when the worker is condemned

    @property
    def last_seconds(self) -> float:
        """The longest that a condemned worker lives: its other jobs finish, are then asked to end, and all is written
        down, while handlers of results get their time."""
        return self.neighbours + 2 * self.abort_grace + WRITING_DOWN


class WorkerConfig(msgspec.Struct, frozen=True):
    """What is wanted of one worker. `owner` is its id, under which it holds jobs."""

    owner: str
    foreman: str | None = None
    concurrency: int = 10
    queues: list[str] | None = None  # None: those of all its tasks
    burst: bool = False  # end when nothing is left to run
    is_alone: bool = False  # no foreman tells it of queues that hold jobs of its tasks: it looks for itself
    in_program: bool = False
    """Its threads do not end with it. A run that was given up keeps it there until that returns, or until its pool
    stops. What still runs then is handed back: the pools of this program wait for its return, others may take it."""
    limits: WorkerLimits = WorkerLimits()
    spool: str | None = None  # the file for outcomes that cannot be delivered
