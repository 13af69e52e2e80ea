"""The contenders: each has a directory with `requirements.txt` and `app.py`, a program as its users would write it.

Only the contender's own environment imports `app.py`: its workers do, and `bench.producer`, which enqueues. The module
has the names of `Peer`, finds its storage at `URL`, and keeps results if it can. The harness reads its constants from
the source, so they must be literals.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Sequence
from typing import Protocol

VARIABLE = "BENCH_URL"
URL = os.environ.get(VARIABLE, "")


class Peer(Protocol):
    """The names in `app.py`. Each call may be a plain function or a coroutine function.

    Optional: `prepare()` creates tables; `opened()` is an asynchronous context manager around the producer;
    `enqueue_many(numbers)` enqueues many jobs in one call.
    """

    PACE: dict[str, int]
    """Its storages, and roughly how many jobs per second it drains there, which sizes the laps."""
    SLOTS: int
    """Slots of one process: 10, or 1 if a process runs only one job."""
    PACKAGES: Sequence[str]
    """The packages whose versions the page shows."""
    SETTING: str
    """What differs from its defaults, for the page."""

    @staticmethod
    def work(processes: int) -> list[list[str]]:
        """The command lines of its workers, without the interpreter."""

    @staticmethod
    def enqueue(number: float) -> Awaitable[object] | object:
        """Enqueue `bench.jobs.noop`."""

    @staticmethod
    def enqueue_nap(number: float) -> Awaitable[object] | object:
        """Enqueue `bench.jobs.nap`."""
