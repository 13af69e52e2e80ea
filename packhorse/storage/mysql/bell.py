"""The bell. MySQL has none: who sleeps looks now and then, the more often the less time has passed since there was
work. Sleepers of this very process are woken by what it enqueues itself."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence

_FIRST_LOOK = 0.005
_LAST_LOOK = 1.0
"""Seconds between two looks, just after there was work and a few seconds later: whoever sleeps asks for jobs once a
second anyway."""
_SLOWER = 1.3


class Bell:
    """Wakes this process's sleepers. `has_work` looks whether jobs are in line for these queues."""

    def __init__(self, has_work: Callable[[Sequence[str]], bool]) -> None:
        self._has_work = has_work
        self._queues: list[str] = []
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._pid = os.getpid()
        self._woken = threading.Condition(threading.RLock())  # a signal handler may interrupt the one that lies down
        self._sleepers = 0
        self._rings = 0
        self._interrupts = 0
        self._heard = 0  # how many of them those who slept have heard
        self._pause = _FIRST_LOOK

    def serve(self, queues: Iterable[str]) -> None:
        """These are the queues for which this process wants to be woken."""
        self._queues = list(queues)

    def ring(self) -> None:
        """Wake one sleeper of this process."""
        self._leave_parent()
        with self._woken:
            self._pause = _FIRST_LOOK
            if self._sleepers > self._rings:
                self._rings += 1
                self._woken.notify()

    def interrupt(self) -> None:
        """Wake every sleeper of this process, and whoever is about to lie down."""
        self._leave_parent()
        with self._woken:
            self._interrupts += 1
            self._woken.notify_all()

    def wait(self, timeout: float) -> bool:
        """Sleep until rung, interrupted, work is seen, or `timeout` seconds are over."""
        self._leave_parent()
        heard = self._heard  # an interrupt from now on counts, also one that comes between two dozes
        try:
            return self._sleep(time.monotonic() + timeout, heard)
        finally:
            self._heard = self._interrupts

    def _sleep(self, deadline: float, heard: int) -> bool:
        while True:
            left = deadline - time.monotonic()
            if left <= 0:
                return self._interrupts != heard
            if self._doze(min(left, self._pause), heard):
                return True
            if self._pause < left and self._has_work(self._queues):
                self._pause = _FIRST_LOOK
                return True
            self._pause = min(self._pause * _SLOWER, _LAST_LOOK)

    def _doze(self, seconds: float, heard: int) -> bool:
        with self._woken:
            self._sleepers += 1
            try:
                self._woken.wait_for(lambda: self._rings or self._interrupts != heard, seconds)
                was_rung = self._rings > 0
                self._rings -= was_rung
                return was_rung or self._interrupts != heard
            finally:
                self._sleepers -= 1
                self._rings = min(self._rings, self._sleepers)

    def _leave_parent(self) -> None:
        """After a fork: the parent's sleepers are not ours, and its lock may be held for ever."""
        if self._pid != os.getpid():
            self._begin_anew()
