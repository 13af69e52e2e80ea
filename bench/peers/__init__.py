"""The contenders: a directory each, with `requirements.txt` and `app.py`, a program as its users would write it.

`app.py` is imported only in the contender's own environment: by its workers, and by `bench.feed`, which enqueues. It
has the names of `Peer`, finds its storage at `URL`, and keeps results if it can. The harness reads its constants from
the text, so they are written as literals.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Sequence
from typing import Protocol

VARIABLE = "BENCH_URL"
URL = os.environ.get(VARIABLE, "")


class Peer(Protocol):
    """What `app.py` has. Each call may be a plain function or a coroutine function.

    Where there is need it also has `prepare()`, which makes its tables; `opened()`, an asynchronous context in which
    a producer enqueues; and `enqueue_many(numbers)`, if it can enqueue many jobs in one call.
    """

    PACE: dict[str, int]
    """The storages that it runs on, and roughly how many jobs a second it drains there, which sizes the laps."""
    SLOTS: int
    """How many jobs one of its processes runs at once: 10, or 1 where a process can take only one."""
    PACKAGES: Sequence[str]
    """Whose versions, as in `requirements.txt`, are told."""
    SETTING: str
    """What differs from its defaults, for the page."""

    @staticmethod
    def work(processes: int) -> list[list[str]]:
        """The command lines of its workers, each behind the interpreter."""

    @staticmethod
    def enqueue(number: float) -> Awaitable[object] | object:
        """Enqueue `bench.jobs.noop`."""

    @staticmethod
    def enqueue_nap(number: float) -> Awaitable[object] | object:
        """Enqueue `bench.jobs.nap`."""
