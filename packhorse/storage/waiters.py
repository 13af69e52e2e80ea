"""The threads of this process that wait for work, and for which queues. For notifiers that wake their own process."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable

from packhorse.storage.contract import OTHER_QUEUES

_OTHER_QUEUES_EVERY = 0.25
"""Seconds between two wake-ups for queues that no waiter names: they wake all that listen for others."""


class _Waiter:
    """One thread that waits."""

    def __init__(self, queues: frozenset[str], lock: threading.RLock) -> None:
        self.queues = queues
        self.is_woken = False
        self.condition = threading.Condition(lock)

    def serves(self, queues: Collection[str]) -> bool:
        """A waiter that names no queue serves all."""
        return not self.queues or not self.queues.isdisjoint(queues)

    def wake(self) -> None:
        self.is_woken = True
        self.condition.notify()


class Waiters:
    """Call everything under `lock`. It is reentrant, because a signal handler may interrupt a thread that begins to
    wait."""

    def __init__(self, lock: threading.RLock) -> None:
        self._lock = lock
        self._waiters: dict[_Waiter, None] = {}  # in the order in which they came
        self._next_for_others = 0.0

    def __len__(self) -> int:
        return len(self._waiters)

    def wait(self, seconds: float, queues: Iterable[str], is_interrupted: Callable[[], bool]) -> bool:
        """Wait until woken, or until `is_interrupted` returns True after `recheck_all`. False: the time is over."""
        waiter = _Waiter(frozenset(queues), self._lock)
        self._waiters[waiter] = None
        try:
            return waiter.condition.wait_for(lambda: waiter.is_woken or is_interrupted(), seconds)
        finally:
            del self._waiters[waiter]

    def wake_one(self, queues: Collection[str]) -> bool:
        """Wake one waiter that serves one of these queues. False: there is none. Then, every now and then, wake those
        that listen for other queues."""
        waiter = next((waiter for waiter in self._waiters if not waiter.is_woken and waiter.serves(queues)), None)
        if waiter is not None:
            waiter.wake()
        elif self._waiters and time.monotonic() >= self._next_for_others:
            self._next_for_others = time.monotonic() + _OTHER_QUEUES_EVERY
            for other in self._waiters:
                if OTHER_QUEUES in other.queues and not other.is_woken:
                    other.wake()
        return waiter is not None

    def wake_one_of_each(self) -> None:
        """The queue is unknown: wake one of the waiters with the same queues, for each such set of queues."""
        for queues in {waiter.queues for waiter in self._waiters}:
            waiter = next((one for one in self._waiters if not one.is_woken and one.queues == queues), None)
            if waiter is not None:
                waiter.wake()

    def recheck_all(self) -> None:
        """Let every waiter look whether it is interrupted."""
        for waiter in self._waiters:
            waiter.condition.notify()
