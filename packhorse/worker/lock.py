"""The interpreter's lock, which all threads of a process share: how soon one has to give it up to another. The loop
says when that matters."""

from __future__ import annotations

import sys

HASTY = 0.000_7
"""Seconds. The loop takes the lock a few times in each round trip to the storage, and a thread that runs short jobs one
after the other would make it wait for milliseconds each time. Much less is worse: the two would do nothing but hand the
lock to and fro, and drain a quarter fewer jobs."""

_usual: list[float] = []  # how it was before somebody was in a hurry; one pop is one atomic step


def hurry() -> None:
    """Have the lock handed over sooner. Threads that compute would lose by it."""
    if not _usual:
        _usual.append(sys.getswitchinterval())
        sys.setswitchinterval(HASTY)


def relax() -> None:
    """As usual again. Costs next to nothing if nobody was in a hurry."""
    if _usual:
        sys.setswitchinterval(_usual.pop())
