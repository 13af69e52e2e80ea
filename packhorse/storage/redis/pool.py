"""The pool: the connections that this process's threads share, opened when needed, at most so many at once.

A worker's desk keeps one busy; the others are for jobs that enqueue, and for a web process's threads. Whoever finds
none free waits, and `waits` says how often that happened. As long as one is free, nobody pays for a lock: a list's
`pop` and `append` are atomic.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable

from packhorse.core.errors import StorageUnavailable
from packhorse.storage.redis.connection import Connection

_IDLE = 0.1
"""Seconds after which a connection is looked at before it is used: the server may have closed it meanwhile."""


class Pool:
    """Connections made by `connect`, at most `size` of them."""

    def __init__(self, connect: Callable[[], Connection], size: int) -> None:
        self._connect = connect
        self.size = size
        self.waits = 0
        self.waited = 0.0  # seconds, all waits together
        self._begin()

    def _begin(self) -> None:
        self._free: list[Connection] = []
        self._all: set[Connection] = set()
        self._lock = threading.Lock()  # for the set, and for what follows
        self._returned = threading.Condition(self._lock)
        self._opening = 0
        self._waiting = 0

    # --- taking and giving ------------------------------------------------------------------------------------------

    def take(self, patience: float) -> Connection:
        """A connection for this thread alone, until `give`. Raises `Lost`; `StorageUnavailable` if none gets free."""
        while True:
            try:
                connection = self._free.pop()
            except IndexError:
                if self._may_open(patience):
                    return self._open()
                continue  # one came back
            is_fresh = time.perf_counter() - connection.used_at < _IDLE or not connection.has_more()
            if is_fresh and connection in self._all:
                return connection
            self._discard(connection)

    def _may_open(self, patience: float) -> bool:
        """Wait until there may be one more, or one has come back: then False."""
        with self._lock:
            if not self._has_room():
                self._wait(patience)
            if self._free:
                return False
            self._opening += 1
            return True

    def _has_room(self) -> bool:
        return len(self._all) + self._opening < self.size

    def _wait(self, patience: float) -> None:
        began_at = time.perf_counter()
        self.waits += 1
        self._waiting += 1  # before the list is looked at: whoever gives looks here after it has put something there
        is_free = self._returned.wait_for(lambda: self._free or self._has_room(), patience)
        self._waiting -= 1
        self.waited += time.perf_counter() - began_at
        if not is_free:
            raise StorageUnavailable(
                f"all {self.size} connections of this process to Redis were busy for {patience:g} seconds",
                hint="raise ?connections= in the address",
            )

    def _open(self) -> Connection:
        connection: Connection | None = None
        try:
            connection = self._connect()
        finally:
            with self._lock:
                self._opening -= 1
                if connection is not None:
                    self._all.add(connection)
                else:
                    self._returned.notify()
        return connection

    def give(self, connection: Connection) -> None:
        """Give a connection back; one that has ended, or is of before a `clear`, is closed."""
        if not connection.is_open or connection not in self._all:
            self._discard(connection)
            return
        connection.used_at = time.perf_counter()
        self._free.append(connection)
        if self._waiting:
            with self._lock:
                self._returned.notify()

    def _discard(self, connection: Connection) -> None:
        connection.close()
        with self._lock:
            self._all.discard(connection)
            self._returned.notify()

    # --- ending -----------------------------------------------------------------------------------------------------

    def clear(self) -> None:
        """Close what is free; what is in use is closed when it comes back."""
        with self._lock:
            self._all.clear()
            with contextlib.suppress(IndexError):
                while True:
                    self._free.pop().close()
            self._returned.notify_all()

    def counts(self) -> tuple[int, int]:
        """(open, in use)"""
        with self._lock:
            return len(self._all), len(self._all) - len(self._free)

    def part_ways(self) -> None:
        """In a forked child: the connections and the lock are the parent's. Closing here does not end them there."""
        for connection in list(self._all):
            connection.close()
        self._begin()
