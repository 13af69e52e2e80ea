"""Ids: time-ordered UUIDs (version 7) as canonical text, for jobs and for whoever else needs a name that is new.

Within a process each id is greater than the one before, whatever its thread and whatever the clock does, so storages
append at the end of their index instead of writing all over it. Two processes never make the same, also after a fork.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable
from itertools import count

_TAIL_BITS = 48  # the last group of a UUID
_STEP_BITS = 24
_MILLISECOND = 1_000_000  # nanoseconds


class Ids:
    """Where a process stands in its ids. `now` is a clock in nanoseconds, handed in by tests.

    A new millisecond draws its random bits once. In the same one, or when the clock went back, the last group grows
    by a step that was drawn with them.
    """

    def __init__(self, now: Callable[[], int] = time.time_ns) -> None:
        self._now = now
        self._millisecond = 0
        self.part_ways()

    def part_ways(self) -> None:
        """Begin anew; also in a forked child, because the parent goes on with the same random numbers, and another of
        its threads may have held the lock at that moment."""
        # Our own numbers, so that nobody's `random.seed(0)` makes two processes give the same ids.
        self._random = random.Random()
        self._lock = threading.Lock()
        self._begin(self._millisecond + 1)

    def new(self) -> str:
        """A new id, such as "019a8f3c-5b1e-7c42-9d07-3f6a1be2c845"."""
        # No lock, which would take as long as all the rest: counting is one step for the interpreter, and a thread that
        # still counts in a millisecond that another has just left makes an id that is as new as any.
        ends, head, tails = self._current
        now = self._now()
        if now >= ends:
            head, tails = self._enter(now // _MILLISECOND)
        tail = next(tails)
        if tail >> _TAIL_BITS:  # the clock has stood still, or went back, for very many ids
            head, tails = self._enter(self._millisecond + 1)
            tail = next(tails)
        return f"{head}{tail:x}"

    def _enter(self, millisecond: int) -> tuple[str, count[int]]:
        """What the ids of this millisecond begin with, and how they end; or of a later one, if another thread is there
        already."""
        with self._lock:
            if millisecond > self._millisecond:
                self._begin(millisecond)
            _, head, tails = self._current
            return head, tails

    def _begin(self, millisecond: int) -> None:
        bits = self._random.getrandbits(26)
        head = f"{millisecond >> 16:08x}-{millisecond & 0xFFFF:04x}-7{bits >> 14:03x}-{0x8000 | bits & 0x3FFF:04x}-"
        # One bit less than there is room for, so that the tail can grow for as long as a millisecond lasts; and the
        # first of them is set, so that it is never shorter than its group.
        first = 1 << _TAIL_BITS - 2 | self._random.getrandbits(_TAIL_BITS - 2)
        step = 1 + self._random.getrandbits(_STEP_BITS)
        self._millisecond = millisecond
        self._current = ((millisecond + 1) * _MILLISECOND, head, count(first, step))  # all at once


_ids = Ids()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_ids.part_ways)

new_id = _ids.new
