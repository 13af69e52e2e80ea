"""The two jobs of the race, which every contender wraps in a task of its own kind."""

from __future__ import annotations

import asyncio
import time

from bench.ledger import note

_NAP_SECONDS = 0.2


def noop(number: float) -> float:
    """Do nothing but note it; the argument is the result."""
    note(number)
    return number


def nap(number: float) -> float:
    """Sleep, and note the beginning and the end: the job that is killed in the middle."""
    note(number, has_ended=False)
    time.sleep(_NAP_SECONDS)
    return noop(number)


async def anap(number: float) -> float:
    """`nap` for those that run coroutines."""
    note(number, has_ended=False)
    await asyncio.sleep(_NAP_SECONDS)
    return noop(number)
