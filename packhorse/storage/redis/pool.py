"""The pool: the connections that this process's threads share, opened when needed, at most so many at once.

A worker's desk keeps one busy; the others are for jobs that enqueue, and for a web process's threads. Whoever finds
none free waits, and `waits` says how often that happened.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from packhorse.errors import StorageUnavailable
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
        self._taken = 0
        self._lock = threading.Lock()
        self._returned = threading.Condition(self._lock)

    def take(self, patience: float) -> Connection:
        """A connection for this thread alone, until `give`. Raises `Lost`; `StorageUnavailable` if none gets free."""
        with self._lock:
            if self._taken >= self.size:
                self._wait(patience)
            self._taken += 1
            connection = self._free.pop() if self._free else None
        if connection is not None:
            if time.monotonic() - connection.used_at < _IDLE or not connection.has_more():
                return connection
            self._discard(connection)
        try:
            connection = self._connect()
        except BaseException:
            self._return()
            raise
        with self._lock:
            self._all.add(connection)
        return connection

    def _wait(self, patience: float) -> None:
        began_at = time.monotonic()
        self.waits += 1
        is_free = self._returned.wait_for(lambda: self._taken < self.size, patience)
        self.waited += time.monotonic() - began_at
        if not is_free:
            raise StorageUnavailable(
                f"all {self.size} connections of this process to Redis were busy for {patience:g} seconds",
                hint="raise ?connections= in the address",
            )

    def give(self, connection: Connection) -> None:
        """Give a connection back; one that has ended is forgotten."""
        if not connection.is_open:
            self._discard(connection)
            self._return()
            return
        connection.used_at = time.monotonic()
        with self._lock:
            if connection in self._all:
                self._free.append(connection)
            else:
                connection.close()  # the pool was closed, or moved to another server, meanwhile
            self._taken -= 1
            self._returned.notify()

    def _return(self) -> None:
        with self._lock:
            self._taken -= 1
            self._returned.notify()

    def _discard(self, connection: Connection) -> None:
        connection.close()
        with self._lock:
            self._all.discard(connection)

    def clear(self) -> None:
        """Close what is free; what is in use is closed when it comes back."""
        with self._lock:
            for connection in self._free:
                connection.close()
            self._free.clear()
            self._all.clear()

    def counts(self) -> tuple[int, int]:
        """(open, in use)"""
        with self._lock:
            return len(self._all), self._taken

    def part_ways(self) -> None:
        """In a forked child: the connections and the lock are the parent's. Closing here does not end them there."""
        for connection in self._all:
            connection.close()
        self._begin()
