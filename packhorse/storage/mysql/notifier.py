"""Wakes waiting workers. MySQL cannot notify, so a waiter looks for work now and then, the more often the less time has
passed since there was some. Waiters of the same process are woken by what it enqueues itself, one for each enqueue."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Sequence

from packhorse.storage.fork_hook import reset_after_fork
from packhorse.storage.waiters import Waiters

_FIRST_LOOK = 0.005
_LAST_LOOK = 1.0
"""Seconds between two looks, just after there was work and some seconds later. A waiting worker asks for jobs once a
second anyway."""
_SLOWER = 1.3


class Notifier:
    """Wakes the waiters of this process. `has_work` looks for jobs in these queues."""

    def __init__(self, has_work: Callable[[Sequence[str]], bool]) -> None:
        self._has_work = has_work
        self.after_fork()
        reset_after_fork(self)

    def after_fork(self) -> None:
        """The parent's waiters are not ours, and its lock may never be released."""
        self._lock = threading.RLock()  # reentrant: a signal handler may interrupt the thread that holds it
        self._waiters = Waiters(self._lock)
        self._interrupts = 0
        self._seen = 0  # how many of them the waiters have seen
        self._pause = _FIRST_LOOK

    def notify(self, queues: Collection[str] = ()) -> None:
        """Wake one waiter of this process that serves one of these queues; none named: the queue is not known."""
        with self._lock:
            self._pause = _FIRST_LOOK
            if queues:
                self._waiters.wake_one(queues)
            else:
                self._waiters.wake_one_of_each()

    def interrupt(self) -> None:
        """Wake all waiters of this process, and any thread that is about to wait."""
        with self._lock:
            self._interrupts += 1
            self._waiters.recheck_all()

    def wait(self, timeout: float, queues: Sequence[str] = ()) -> bool:
        """Wait until notified, interrupted, work in these queues is seen, or `timeout` seconds are over."""
        seen = self._seen  # an interrupt from now on counts, also one between two looks
        try:
            return self._wait(time.monotonic() + timeout, queues, seen)
        finally:
            self._seen = self._interrupts

    def _wait(self, deadline: float, queues: Sequence[str], seen: int) -> bool:
        while True:
            left = deadline - time.monotonic()
            if left <= 0:
                return self._interrupts != seen
            with self._lock:
                if self._waiters.wait(min(left, self._pause), queues, lambda: self._interrupts != seen):
                    return True
            if queues and self._pause < left and self._has_work(queues):
                self._pause = _FIRST_LOOK
                return True
            self._pause = min(self._pause * _SLOWER, _LAST_LOOK)
