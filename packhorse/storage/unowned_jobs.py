"""When to look for jobs that are reserved or running without an owner: changed by hand, or left so by a bug. That is
rare and expensive to find, so each process looks only now and then: such a job is queued again within fifteen
seconds."""

from __future__ import annotations

import time
from collections.abc import Iterable

_LOOK_EVERY = 8.0
_TRUST_FOR = 300.0
"""Seconds for which a queue is skipped in which nothing was found, although its counts say so."""


class UnownedSearch:
    """What one process has found so far."""

    def __init__(self) -> None:
        self._next_look = 0.0
        self._in_vain: dict[str, float] = {}

    def is_time(self) -> bool:
        """Return whether to look again now."""
        now = time.monotonic()
        if now < self._next_look:
            return False
        self._next_look = now + _LOOK_EVERY
        return True

    def worth_a_look(self, queues: Iterable[str]) -> list[str]:
        """Return the queues that were not searched in vain a while ago."""
        now = time.monotonic()
        return [queue for queue in queues if self._in_vain.get(queue, 0.0) < now]

    def found(self, queue: str, number: int) -> None:
        """Note how many were found in this queue."""
        if number == 0:
            self._in_vain[queue] = time.monotonic() + _TRUST_FOR
