"""Ids: time-ordered UUIDs (version 7) as canonical text, for jobs and for everything else that needs a unique name.

Within a process each id is greater than the one before, in all threads and even if the clock goes back, so storages
append to the end of their index. Two processes never make the same id, also after a fork.
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
    """The state of a process's ids. `now` is a clock in nanoseconds, replaced by tests.

    A new millisecond draws its random bits once. In the same one, or when the clock goes back, the last group grows by
    a step that was drawn with them.
    """

    def __init__(self, now: Callable[[], int] = time.time_ns) -> None:
        self._now = now
        self._millisecond = 0
        self.reset()

    def reset(self) -> None:
        """Reset the state; also in a forked child, because the parent continues with the same random numbers, and
        another of its threads may have held the lock."""
        # Our own generator: a user's `random.seed(0)` must not make two processes draw the same ids.
        self._random = random.Random()
        self._lock = threading.Lock()
        self._begin(self._millisecond + 1)

    def new(self) -> str:
        """A new id, such as "019a8f3c-5b1e-7c42-9d07-3f6a1be2c845"."""
        # Without the lock, which would take as long as everything else: counting is one step of the interpreter, and a
        # thread that still counts in a millisecond that another has just left makes an id that is just as valid.
        ends, head, tails = self._current
        now = self._now()
        if now >= ends:
            head, tails = self._enter(now // _MILLISECOND)
        tail = next(tails)
        if tail >> _TAIL_BITS:  # the clock has not advanced for very many ids
            head, tails = self._enter(self._millisecond + 1)
            tail = next(tails)
        return f"{head}{tail:x}"

    def _enter(self, millisecond: int) -> tuple[str, count[int]]:
        """The beginning and the last group of the ids of this millisecond, or of a later one if another thread has
        reached it."""
        with self._lock:
            if millisecond > self._millisecond:
                self._begin(millisecond)
            _, head, tails = self._current
            return head, tails

    def _begin(self, millisecond: int) -> None:
        bits = self._random.getrandbits(26)
        head = f"{millisecond >> 16:08x}-{millisecond & 0xFFFF:04x}-7{bits >> 14:03x}-{0x8000 | bits & 0x3FFF:04x}-"
        # One bit is spared, so that the last group can grow during a millisecond; and its first bit is set, so that it
        # keeps its length.
        first = 1 << _TAIL_BITS - 2 | self._random.getrandbits(_TAIL_BITS - 2)
        step = 1 + self._random.getrandbits(_STEP_BITS)
        self._millisecond = millisecond
        self._current = ((millisecond + 1) * _MILLISECOND, head, count(first, step))  # one assignment


_ids = Ids()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_ids.reset)

new_id = _ids.new
