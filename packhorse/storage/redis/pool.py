"""The pool: the connections that the threads of this process share, opened when needed, up to a limit.

The loop of a worker keeps one busy; the others are for jobs that enqueue and for the threads of a web process. A thread
that finds none free waits, and `waits` counts that. While one is free, no thread takes a lock: `pop` and `append` of a
list are atomic. That is why this is not the pool of `storage/pool.py`, which takes two locks for each call.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable

from packhorse.core.errors import StorageUnavailable
from packhorse.storage.redis.connection import Connection

_IDLE = 0.1
"""A connection that was idle for so many seconds is checked before use: the server may have closed it."""


class Pool:
    """Up to `size` connections, made by `connect`."""

    def __init__(self, connect: Callable[[], Connection], size: int) -> None:
        self._connect = connect
        self.size = size
        self.waits = 0
        self.waited = 0.0  # seconds, the sum of all waits
        self._reset()

    def _reset(self) -> None:
        self._free: list[Connection] = []
        self._all: set[Connection] = set()
        self._lock = threading.Lock()  # for all of these but the list
        self._returned = threading.Condition(self._lock)
        self._opening = 0
        self._waiting = 0

    # --- taking and giving ------------------------------------------------------------------------------------------

    def take(self, patience: float) -> Connection:
        """Lend a connection to this thread until `give`. Raises `ConnectionLost`, or `StorageUnavailable` when
        all stay busy."""
        while True:
            try:
                connection = self._free.pop()
            except IndexError:
                if self._may_open(patience):
                    return self._open()
                continue  # one was returned
            is_fresh = time.perf_counter() - connection.used_at < _IDLE or not connection.has_more()
            if is_fresh and connection in self._all:
                return connection
            self._discard(connection)

    def _may_open(self, patience: float) -> bool:
        """Wait until one may be opened, then return True; or until one was returned, then return False."""
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
        self._waiting += 1  # before the list is read: `give` appends first and reads this afterwards
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
        """Return a connection. One that failed, or was opened before a `clear`, is closed."""
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
        """Close the free connections now, and the others when they are returned."""
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

    def after_fork(self) -> None:
        """In a forked child: connections and lock belong to the parent. Closing here does not end them there."""
        for connection in list(self._all):
            connection.close()
        self._reset()
