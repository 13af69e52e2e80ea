"""Wait at the manager until there may be work; another thread of this process can interrupt it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from packhorse.core.errors import StorageUnavailable
from packhorse.storage.remote.connection import NoAnswer, RemoteConnection

LONGEST = 20.0
"""The longest request, in seconds: proxies hang up on those that take much longer."""


class RemoteNotifier:
    """Wakes the waiting threads of this process. `wait_there` waits at the manager; it receives the number of
    interrupts before, and registers its connection by `waiting_on`. It returns whether it was woken."""

    def __init__(self, wait_there: Callable[[float, Sequence[str], int], bool]) -> None:
        self._wait_there = wait_there
        self._reset()

    def _reset(self) -> None:
        self._pid = os.getpid()
        # Reentrant: a signal handler may interrupt a thread that begins to wait.
        self._condition = threading.Condition(threading.RLock())
        self._connections: set[RemoteConnection] = set()
        self._interrupts = 0
        self._heard = 0  # how many of them the last waiter has seen

    def wait(self, timeout: float, queues: Sequence[str] = ()) -> bool:
        """Wait until the manager wakes us, an interrupt, or the end of the time. A manager that is away wakes no one:
        workers then look for jobs themselves."""
        self._check_fork()
        heard = self._heard  # later interrupts end the wait
        try:
            if self._interrupts != heard:
                return True
            try:
                return self._wait_there(min(timeout, LONGEST), queues, heard) or self._interrupts != heard
            except (NoAnswer, StorageUnavailable):
                with self._condition:
                    return self._condition.wait_for(lambda: self._interrupts != heard, min(timeout, LONGEST))
        finally:
            self._heard = self._interrupts

    @contextmanager
    def waiting_on(self, connection: RemoteConnection, heard: int) -> Iterator[bool]:
        """This thread waits on this connection. False: it must not, because it was interrupted just now."""
        with self._condition:
            self._connections.add(connection)
            may_wait = self._interrupts == heard
        try:
            yield may_wait
        finally:
            with self._condition:
                self._connections.discard(connection)

    def interrupt(self) -> None:
        """Wake every thread of this process that waits or is about to."""
        self._check_fork()
        with self._condition:
            self._interrupts += 1
            self._condition.notify_all()
            for connection in self._connections:
                connection.cut()

    def _check_fork(self) -> None:
        """After a fork: the waiting threads of the parent are not ours, and one may have held the lock."""
        if self._pid != os.getpid():
            self._reset()
