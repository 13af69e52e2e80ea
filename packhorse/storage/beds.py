"""Who sleeps in this process, and for which queues; for the bells of storages that wake their own process. One ring
wakes one of those that it is for: a manager's storage sleeps for workers with different queues."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable

from packhorse.storage.contract import OTHER_QUEUES

_FOR_OTHERS = 0.25
"""Seconds between two rings for queues that nobody has named: they wake all, mostly for nothing."""


class _Bed:
    """Where one thread sleeps."""

    def __init__(self, queues: frozenset[str], lock: threading.RLock) -> None:
        self.queues = queues
        self.is_rung = False
        self.woken = threading.Condition(lock)

    def serves(self, queues: Collection[str]) -> bool:
        """Whoever names no queue serves all of them."""
        return not self.queues or not self.queues.isdisjoint(queues)


class Beds:
    """The sleepers. Every call is made under the lock, which is reentrant: a signal handler may interrupt whoever lies
    down."""

    def __init__(self, lock: threading.RLock) -> None:
        self._lock = lock
        self._asleep: dict[_Bed, None] = {}  # who came first is first
        self._next_for_others = 0.0

    def __len__(self) -> int:
        return len(self._asleep)

    def sleep(self, seconds: float, queues: Iterable[str], is_called: Callable[[], bool]) -> bool:
        """Sleep until rung, or until `is_called` answers yes after `call_all`. False: the time was over before."""
        bed = _Bed(frozenset(queues), self._lock)
        self._asleep[bed] = None
        try:
            return bed.woken.wait_for(lambda: bed.is_rung or is_called(), seconds)
        finally:
            del self._asleep[bed]

    def ring(self, queues: Collection[str]) -> bool:
        """Wake one who serves one of these queues. False: nobody who does sleeps. Then those wake, now and then, who
        want to hear of other queues."""
        bed = next((bed for bed in self._asleep if not bed.is_rung and bed.serves(queues)), None)
        if bed is not None:
            _wake(bed)
        elif self._asleep and time.monotonic() >= self._next_for_others:
            self._next_for_others = time.monotonic() + _FOR_OTHERS
            for one in self._asleep:
                if OTHER_QUEUES in one.queues and not one.is_rung:
                    _wake(one)
        return bed is not None

    def ring_for_any(self) -> None:
        """Nobody knows for which queue: wake one of those with the same queues, each time."""
        for queues in {bed.queues for bed in self._asleep}:
            bed = next((bed for bed in self._asleep if not bed.is_rung and bed.queues == queues), None)
            if bed is not None:
                _wake(bed)

    def call_all(self) -> None:
        """Have all see whether they are called."""
        for bed in self._asleep:
            bed.woken.notify()


def _wake(bed: _Bed) -> None:
    bed.is_rung = True
    bed.woken.notify()
