"""A pool of connections to a server, opened on first use and lent to one thread at a time, never shared with a forked
child. PostgreSQL, MySQL and the remote storage use it; Redis has one without locks, see `redis/pool.py`."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, Protocol, TypeVar

from packhorse.core.errors import StorageUnavailable
from packhorse.storage.fork_hook import reset_after_fork
from packhorse.storage.metrics import CallMetrics


class Lendable(Protocol):
    """A connection that can be lent."""

    @property
    def is_alive(self) -> bool:
        """Whether the server has not hung up."""

    def is_fit_after(self, error: BaseException | None) -> bool:
        """Undo what was begun, and return whether it can be lent again after a use that ended well or with this
        error."""

    def close(self) -> None:
        """Close it, in any state."""


L = TypeVar("L", bound=Lendable)

# Connections inherited through fork: the child must neither use nor close them, the parent still does.
_inherited: list[object] = []


class Pool(Generic[L]):
    """At most `size` connections to the server named `place`. `connect` opens one. `may_pass(error, has_answered)` says
    whether opening is worth another try. `prepare` is called with the first connection before it is used. `meter`
    counts the calls; it is here because a fork breaks its lock too."""

    def __init__(
        self,
        place: str,
        size: int,
        patience: float,
        *,
        connect: Callable[[], L],
        prepare: Callable[[L], None],
        may_pass: Callable[[Exception, bool], bool],
    ) -> None:
        self.meter = CallMetrics()
        self._place = place
        self._size = size
        self._patience = patience  # seconds
        self._connect = connect
        self._prepare = prepare
        self._may_pass = may_pass
        self._reset()
        reset_after_fork(self)

    def _reset(self) -> None:
        self._lock = threading.Lock()  # guards the following
        self._preparing = threading.Lock()
        self._idle: list[L] = []
        self._room = threading.BoundedSemaphore(self._size)
        self._is_prepared = False
        self._has_answered = False
        self._opened = 0
        self._closings = 0

    # --- lending --------------------------------------------------------------------------------------------------

    @contextmanager
    def lent(self) -> Iterator[L]:
        """Lend a connection to this thread."""
        room = self._room  # a child that is forked meanwhile has another
        if not room.acquire(timeout=self._patience):
            raise StorageUnavailable(
                f"all {self._size} connections of this process to {self._place} are in use",
                hint="raise ?connections= in the storage address",
            )
        closings = self._closings
        try:
            connection = self._take()
            try:
                yield connection
            except BaseException as error:
                self._take_back(connection, room, closings, error)
                raise
            self._take_back(connection, room, closings)
        finally:
            if room is self._room:
                room.release()

    def _take(self) -> L:
        while True:
            with self._lock:
                connection = self._idle.pop() if self._idle else None
            if connection is None:
                return self._open()
            if connection.is_alive:
                return connection
            self._drop(connection)

    def _take_back(
        self, connection: L, room: threading.BoundedSemaphore, closings: int, error: BaseException | None = None
    ) -> None:
        """Return a connection that was lent when the pool had this room and had been closed so often."""
        if room is not self._room:  # in a child that was forked meanwhile: the parent still uses it
            _inherited.append(connection)
            return
        if connection.is_fit_after(error):
            with self._lock:
                if closings == self._closings:
                    self._idle.append(connection)
                    return
        self._drop(connection)

    def _drop(self, connection: L) -> None:
        connection.close()
        with self._lock:
            self._opened -= 1

    # --- opening --------------------------------------------------------------------------------------------------

    def _open(self) -> L:
        connection = self.connect_patiently()
        with self._lock:
            self._opened += 1
        if not self._is_prepared:
            with self._preparing:
                if not self._is_prepared:
                    try:
                        self._prepare(connection)
                    except BaseException:
                        self._drop(connection)
                        raise
                    self._is_prepared = True
        return connection

    def connect_patiently(self) -> L:
        """A connection outside of the pool. A server that is full or restarting may accept it in a moment; one that has
        never answered is not there."""
        deadline = time.monotonic() + self._patience
        pause = 0.02
        while True:
            try:
                connection = self._connect()
                self._has_answered = True
                return connection
            except Exception as error:
                if not self._may_pass(error, self._has_answered) or time.monotonic() + pause > deadline:
                    raise
                time.sleep(random.uniform(0.5, 1.5) * pause)
                pause = min(pause * 2, 0.5)

    # --- life -----------------------------------------------------------------------------------------------------

    def connections(self) -> tuple[int, int]:
        """(open, in use) in this process."""
        with self._lock:
            return self._opened, self._opened - len(self._idle)

    def close(self) -> None:
        """Close idle connections now, and the others when they are returned. The next call opens again."""
        with self._lock:
            self._closings += 1
            idle, self._idle = self._idle, []
            self._is_prepared = False
        for connection in idle:
            self._drop(connection)

    def after_fork(self) -> None:
        """In a forked child: connections, and locks that threads of the parent hold, are not ours."""
        _inherited.append(self._idle)
        self.meter.reset_lock()
        self._reset()
