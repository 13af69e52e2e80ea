"""The two jobs of the race. Every contender wraps them in its own kind of task."""

from __future__ import annotations

import asyncio
import time

from bench.run_log import note

_NAP_SECONDS = 0.2


def noop(number: float) -> float:
    """Record the run and return the argument."""
    note(number)
    return number


def nap(number: float) -> float:
    """Record the start, sleep, record the end: the job that a crash interrupts."""
    note(number, has_ended=False)
    time.sleep(_NAP_SECONDS)
    return noop(number)


async def anap(number: float) -> float:
    """`nap` for peers that run coroutines."""
    note(number, has_ended=False)
    await asyncio.sleep(_NAP_SECONDS)
    return noop(number)
