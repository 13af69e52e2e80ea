"""The pool: this process's connections to a server, opened on first use, lent to one thread at a time, never shared
with a forked child. PostgreSQL, MySQL and the remote storage lend from one; what a connection is, they say."""

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
    """What is lent: a connection."""

    @property
    def is_alive(self) -> bool:
        """Has the server not hung up?"""

    def is_fit_after(self, error: BaseException | None) -> bool:
        """Can it be lent again, after a use that went well, or ended with this error? Undoes what was begun."""

    def close(self) -> None:
        """Let go of it, whatever it is like."""


L = TypeVar("L", bound=Lendable)

# Connections inherited through fork: the child must not use them, nor say goodbye for the parent.
_inherited: list[object] = []


class Pool(Generic[L]):
    """Connections to the server that is shown as `place`, at most `size` of them. `connect` makes one, and `may_pass`
    says whether what it raised may be over in a moment: of who `has_answered` more is expected. `prepare` is called
    with the first, before it is used. `meter` counts the calls, here because a fork breaks its lock, too."""

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
        self._forget()
        reset_after_fork(self)

    def _forget(self) -> None:
        self._lock = threading.Lock()  # guards what follows, for moments
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
        """A connection for this thread alone."""
        room = self._room  # a fork in between gives the child another
        if not room.acquire(timeout=self._patience):
            raise StorageUnavailable(
                f"all {self._size} connections of this process to {self._place} are in use",
                hint="raise ?connections= in the storage address",
            )
        closings = self._closings
        try:
            link = self._take()
            try:
                yield link
            except BaseException as error:
                self._take_back(link, room, closings, error)
                raise
            self._take_back(link, room, closings)
        finally:
            if room is self._room:
                room.release()

    def _take(self) -> L:
        while True:
            with self._lock:
                link = self._idle.pop() if self._idle else None
            if link is None:
                return self._open()
            if link.is_alive:
                return link
            self._drop(link)

    def _take_back(
        self, link: L, room: threading.BoundedSemaphore, closings: int, error: BaseException | None = None
    ) -> None:
        """Who took it when the pool had this room, and had been closed so many times, gives it back."""
        if room is not self._room:  # in a child that was forked meanwhile: its parent is still using it
            _inherited.append(link)
            return
        if link.is_fit_after(error):
            with self._lock:
                if closings == self._closings:
                    self._idle.append(link)
                    return
        self._drop(link)

    def _drop(self, link: L) -> None:
        link.close()
        with self._lock:
            self._opened -= 1

    # --- opening --------------------------------------------------------------------------------------------------

    def _open(self) -> L:
        link = self.connect_patiently()
        with self._lock:
            self._opened += 1
        if not self._is_prepared:
            with self._preparing:
                if not self._is_prepared:
                    try:
                        self._prepare(link)
                    except BaseException:
                        self._drop(link)
                        raise
                    self._is_prepared = True
        return link

    def connect_patiently(self) -> L:
        """A connection that is not of the pool. A server that is full, or starting again, may have room in a moment;
        one that never answered is not there."""
        deadline = time.monotonic() + self._patience
        pause = 0.02
        while True:
            try:
                link = self._connect()
                self._has_answered = True
                return link
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
        """Close what is not in use now, and what is as soon as it comes back. The next call opens again."""
        with self._lock:
            self._closings += 1
            idle, self._idle = self._idle, []
            self._is_prepared = False
        for link in idle:
            self._drop(link)

    def after_fork(self) -> None:
        """In a forked child: the parent's connections, and the locks that its threads hold, are not ours."""
        _inherited.append(self._idle)
        self.meter.part_ways()
        self._forget()
