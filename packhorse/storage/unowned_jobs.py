"""When to look for jobs that are reserved or running and that nobody holds: blanked by hand, or left so by a bug. It
happens hardly ever and takes a look at much, so each process looks only now and then: often enough that such a job is
back in line within fifteen seconds."""

from __future__ import annotations

import time
from collections.abc import Iterable

_LOOK_EVERY = 8.0
_TRUST_FOR = 300.0
"""Seconds for which a queue is left alone in which nothing was found, although its numbers say so."""


class Unowned:
    """What one process has seen of them."""

    def __init__(self) -> None:
        self._next_look = 0.0
        self._in_vain: dict[str, float] = {}

    def is_time(self) -> bool:
        """Is another look due?"""
        now = time.monotonic()
        if now < self._next_look:
            return False
        self._next_look = now + _LOOK_EVERY
        return True

    def worth_a_look(self, queues: Iterable[str]) -> list[str]:
        """Of the queues that may have such jobs, those that were not looked through in vain a while ago."""
        now = time.monotonic()
        return [queue for queue in queues if self._in_vain.get(queue, 0.0) < now]

    def found(self, queue: str, number: int) -> None:
        """So many were found in this queue."""
        if number == 0:
            self._in_vain[queue] = time.monotonic() + _TRUST_FOR
