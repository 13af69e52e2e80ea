"""The bell. MySQL has none: who sleeps looks now and then, the more often the less time has passed since there was
work. Sleepers of this very process are woken by what it enqueues itself, one for each enqueueing."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Collection, Sequence

from packhorse.storage.waiters import Waiters

_FIRST_LOOK = 0.005
_LAST_LOOK = 1.0
"""Seconds between two looks, just after there was work and a few seconds later: whoever sleeps asks for jobs once a
second anyway."""
_SLOWER = 1.3


class Bell:
    """Wakes this process's sleepers. `has_work` looks whether jobs are in line for these queues."""

    def __init__(self, has_work: Callable[[Sequence[str]], bool]) -> None:
        self._has_work = has_work
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.RLock()  # a signal handler may interrupt the one that lies down
        self._sleepers = Waiters(self._lock)
        self._interrupts = 0
        self._heard = 0  # how many of them those who slept have heard
        self._pause = _FIRST_LOOK

    def ring(self, queues: Collection[str] = ()) -> None:
        """Wake one sleeper of this process that serves one of these queues; none named: nobody knows for which."""
        self._leave_parent()
        with self._lock:
            self._pause = _FIRST_LOOK
            if queues:
                self._sleepers.wake_one(queues)
            else:
                self._sleepers.wake_one_of_each()

    def interrupt(self) -> None:
        """Wake every sleeper of this process, and whoever is about to lie down."""
        self._leave_parent()
        with self._lock:
            self._interrupts += 1
            self._sleepers.recheck_all()

    def wait(self, timeout: float, queues: Sequence[str] = ()) -> bool:
        """Sleep until rung, interrupted, work in these queues is seen, or `timeout` seconds are over."""
        self._leave_parent()
        heard = self._heard  # an interrupt from now on counts, also one that comes between two dozes
        try:
            return self._sleep(time.monotonic() + timeout, queues, heard)
        finally:
            self._heard = self._interrupts

    def _sleep(self, deadline: float, queues: Sequence[str], heard: int) -> bool:
        while True:
            left = deadline - time.monotonic()
            if left <= 0:
                return self._interrupts != heard
            with self._lock:
                if self._sleepers.wait(min(left, self._pause), queues, lambda: self._interrupts != heard):
                    return True
            if queues and self._pause < left and self._has_work(queues):
                self._pause = _FIRST_LOOK
                return True
            self._pause = min(self._pause * _SLOWER, _LAST_LOOK)

    def _leave_parent(self) -> None:
        """After a fork: the parent's sleepers are not ours, and its lock may be held for ever."""
        if self._pid != os.getpid():
            self._begin_anew()
