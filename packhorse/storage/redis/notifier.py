"""The notifier: wakes one idle worker when work comes in. A hint only: a worker that misses it finds work by polling.

A waiter blocks on a list, on a connection of its own. A script that queues jobs pushes one token to that list (see
`lua/parts/notify.lua`). The storage calls `wait` and `interrupt`, and `reserved` after each reserve.
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import socket
import threading
import time
from collections.abc import Iterable, Sequence
from typing import Any

from packhorse.core.errors import StorageError
from packhorse.storage.fork_hook import reset_after_fork
from packhorse.storage.redis.connection import Connection, ConnectionLost, ErrorReply, Word
from packhorse.storage.redis.server import Server

_BLOCK = 5.0
"""Seconds for which the server is asked to block. An idle worker looks for jobs every second, and need not ask the
server to block again each time."""
_GRACE = 2.0
"""Seconds by which the server may be late with its reply that nothing came. After that it counts as gone."""
_PRECISE = 0.5
"""Seconds. A shorter wait has a reason to end in time."""
_SERVER_TICK = 0.2
"""Seconds by which a healthy server may be late with waking the others: it looks at its clock ten times a second."""
_UNBLOCK_PAUSE = 0.02
"""Seconds between two requests to unblock."""
_MOST_HOPS = 16
_ANY: frozenset[str] = frozenset()
_MOST_QUEUE_SETS = 1_000
"""Sets of queues for which the hops of a token are remembered."""


class _Waiter:
    """Where one thread waits: a connection that may bring a token, and a socket by which this process wakes the thread.
    While the server is away there is no connection, and the thread only waits."""

    def __init__(self) -> None:
        self.connection: Connection | None = None
        self.queues: frozenset[str] = frozenset()  # that the thread waits for
        self.blocked_until: float | None = None  # when the server replies at the latest; None: it does not block for us
        self._wake_end, self._wait_end = socket.socketpair()
        self._wake_end.setblocking(False)
        self._wait_end.setblocking(False)

    def wake(self) -> None:
        with contextlib.suppress(OSError):  # full: it is being woken already
            self._wake_end.send(b"!")

    def wait(self, seconds: float) -> tuple[bool, bool]:
        """Return (has the server replied, did this process wake us)."""
        poll = select.poll()
        poll.register(self._wait_end, select.POLLIN)
        if self.connection is not None:
            poll.register(self.connection, select.POLLIN)
        ready = [fd for fd, _ in poll.poll(max(0.0, seconds) * 1000)]
        is_woken = self._wait_end.fileno() in ready
        if is_woken:
            self._wait_end.recv(4096)
        return self.connection is not None and self.connection.fileno() in ready, is_woken

    def disconnect(self) -> None:
        self.blocked_until = None
        if self.connection is not None:
            self.connection.close()
            self.connection = None

    def close(self) -> None:
        self.disconnect()
        self._wake_end.close()
        self._wait_end.close()

    def __del__(self) -> None:
        self.close()  # the storage was dropped, or closed while this thread waited


class Notifier:
    """Wakes workers, and lets them wait, at one server."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._key = f"{server.prefix}bell"
        self._reset()
        reset_after_fork(self)

    def _reset(self) -> None:
        self._me = os.urandom(6).hex()
        self._lock = threading.RLock()  # a signal handler may interrupt the very thread that begins to wait
        self._waiting: set[_Waiter] = set()
        self._free: list[_Waiter] = []
        self._is_interrupted = False
        # How often the token that last woke a worker of these queues may still be passed on.
        self._hops: dict[frozenset[str], int] = {}
        self._plain_until = 0.0  # until then no script is sent behind a blocking command

    # --- passing tokens on ------------------------------------------------------------------------------------------

    def reserved(self, got: int, limit: int, queues: Iterable[str] = ()) -> None:
        """Called after each reserve. A worker that got nothing passes its token on: it was for another. A worker that
        got as many as it wanted is busy from now on, and must not take tokens away from idle ones."""
        hops = self._hops.pop(frozenset(queues), 0) or self._hops.pop(_ANY, 0) if self._hops else 0
        if got == 0 and hops > 1:
            self._notify(hops - 1)
        elif got >= limit and self._free:
            self._stop_blocking()

    def _notify(self, hops: int) -> None:
        with contextlib.suppress(StorageError):  # a hint that fails must not fail what was done
            self._server.run("notify", f"{hops}:{self._me}")

    def _stop_blocking(self) -> None:
        """End the commands that still block at the server for this process. A token that came meanwhile is passed
        on to another."""
        with self._lock:
            blocked = [waiter for waiter in self._free if waiter.blocked_until is not None]
            self._free = [waiter for waiter in self._free if waiter.blocked_until is None]
        for waiter in blocked:
            try:
                self._unblock(waiter, may_wait=False)
                if self._read_token(waiter):
                    self._notify(_MOST_HOPS)
            except (StorageError, ConnectionLost, ErrorReply):
                waiter.disconnect()
            with self._lock:
                self._free.append(waiter)

    # --- waiting ----------------------------------------------------------------------------------------------------

    def wait(self, timeout: float, queues: Sequence[str] = ()) -> bool:
        """Wait until notified or interrupted, or until `timeout` seconds are over. While the server is away, only
        wait."""
        waiter = self._take_waiter(queues)
        try:
            return self._wait(waiter, time.monotonic() + timeout)
        finally:
            self._return_waiter(waiter)

    def _take_waiter(self, queues: Iterable[str]) -> _Waiter:
        with self._lock:
            waiter = self._free.pop() if self._free else _Waiter()
            waiter.queues = frozenset(queues)
            self._waiting.add(waiter)
        return waiter

    def _return_waiter(self, waiter: _Waiter) -> None:
        with self._lock:
            self._waiting.discard(waiter)
            self._free.append(waiter)

    def wait_and_run(self, timeout: float, name: str, *args: Word, queues: Iterable[str] = ()) -> Any:
        """Wait as `wait` does, with a script behind the blocking command: the server runs it the moment the wait ends,
        notified or not, which saves a round trip. Return its reply. None: the server was away or refused to run it, and
        nothing was done. Raise `StorageUnavailable` if the reply was lost, because the script may have run."""
        waiter = self._take_waiter(queues)
        try:
            if time.monotonic() < self._plain_until or not self._connect(waiter):
                self._wait(waiter, time.monotonic() + timeout)
                return None
            return None if self._was_interrupted() else self._block_and_run(waiter, timeout, name, args)
        except ConnectionLost as lost:
            waiter.disconnect()
            raise self._server.unavailable(lost) from lost
        except BaseException:
            waiter.disconnect()  # no later call may read the replies that still come
            raise
        finally:
            self._return_waiter(waiter)

    def _block_and_run(self, waiter: _Waiter, timeout: float, name: str, args: tuple[Word, ...]) -> Any:
        assert waiter.connection is not None
        commands = [self._server.script_command(waiter.connection, name, *args)]
        if waiter.blocked_until is None:  # else it blocks already
            commands.insert(0, ("BLPOP", self._key, f"{max(timeout, 0.001):.3f}"))
        waiter.connection.send(*commands)
        waiter.blocked_until = time.monotonic() + timeout
        has_reply, is_woken = waiter.wait(timeout + (_SERVER_TICK if timeout >= _PRECISE else 0.0))
        if is_woken:
            self._was_interrupted()
        if not has_reply:
            self._unblock(waiter)
        try:
            self._read_token(waiter)
        except ErrorReply as refusal:
            self._pause_scripts(refusal)
        reply = waiter.connection.read()
        return None if isinstance(reply, ErrorReply) else reply

    def _unblock(self, waiter: _Waiter, *, may_wait: bool = True) -> None:
        """Make the server end the blocking command now. Ask several times: the server may not have read that command
        yet, and would then block for the full time. `may_wait`: where the server refuses to unblock, wait until the
        command ends by itself."""
        assert waiter.connection is not None
        gives_up_at = time.monotonic() + _GRACE
        has_reply = False
        while not has_reply:
            if time.monotonic() > gives_up_at:
                raise ConnectionLost("the server does not answer", was_sent=True)
            try:
                self._server.send("wake_up", ("CLIENT", "UNBLOCK", waiter.connection.id))
            except StorageError as error:
                if not may_wait or not isinstance(error.__cause__, ErrorReply):
                    raise
                self._pause_scripts(error.__cause__)
                gives_up_at += _BLOCK
            has_reply, _ = waiter.wait(_UNBLOCK_PAUSE if time.monotonic() >= self._plain_until else _BLOCK + _GRACE)

    def _pause_scripts(self, refusal: ErrorReply) -> None:
        """The server refuses to block or to unblock: send no scripts behind blocking commands for some time, or never
        again if this user may not."""
        self._plain_until = math.inf if refusal.code == "NOPERM" else time.monotonic() + _BLOCK

    def _wait(self, waiter: _Waiter, deadline: float) -> bool:
        is_connected = self._connect(waiter)
        while not self._was_interrupted():
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            if is_connected and waiter.blocked_until is None:
                is_connected = self._block(waiter)
            has_reply, is_woken = waiter.wait(left if waiter.blocked_until is None else min(left, _BLOCK + _GRACE))
            if is_woken:
                self._was_interrupted()
                return True
            try:
                if has_reply and self._read_token(waiter):
                    return True
                if waiter.blocked_until is not None and time.monotonic() > waiter.blocked_until + _GRACE:
                    raise ConnectionLost("the server does not answer")
            except (ConnectionLost, ErrorReply):
                waiter.disconnect()
                is_connected = False
        return True

    def _was_interrupted(self) -> bool:
        """True also for an interrupt from just before the wait."""
        with self._lock:
            was, self._is_interrupted = self._is_interrupted, False
        return was

    def _connect(self, waiter: _Waiter) -> bool:
        """Connect, unless a connection is there. False: the server is away."""
        if waiter.connection is not None and self._has_ended(waiter.connection, waiter.blocked_until is not None):
            waiter.disconnect()
        if waiter.connection is None:
            try:
                waiter.connection = self._server.connect()
            except (ConnectionLost, ErrorReply):
                return False
        return True

    def _has_ended(self, connection: Connection, is_blocked: bool) -> bool:
        """Has the server gone meanwhile, or has another taken its place?"""
        return not self._server.is_current(connection) or (not is_blocked and connection.has_more())

    def _block(self, waiter: _Waiter) -> bool:
        """Wait for a token at the server. False: the server is away."""
        assert waiter.connection is not None
        try:
            waiter.connection.send(("BLPOP", self._key, str(int(_BLOCK))))
        except ConnectionLost:
            waiter.disconnect()
            return False
        waiter.blocked_until = time.monotonic() + _BLOCK
        return True

    def _read_token(self, waiter: _Waiter) -> bool:
        """Read the reply of the blocking command. True: a token. A token that this process passed on itself does not
        count: then no other worker waits, unless others wait in this very process, for other queues."""
        assert waiter.connection is not None
        reply = waiter.connection.read()
        waiter.blocked_until = None
        if isinstance(reply, ErrorReply):
            raise reply
        if reply is None:
            return False
        hops, _, sender = reply[1].decode().partition(":")
        if sender == self._me and len(self._waiting) + len(self._free) < 2:
            return False
        if len(self._hops) >= _MOST_QUEUE_SETS:
            self._hops.clear()
        self._hops[waiter.queues] = int(hops)
        return True

    def interrupt(self) -> None:
        """Wake every waiting thread of this process, and each that is about to wait."""
        with self._lock:
            self._is_interrupted = True
            waiters = list(self._waiting)
        for waiter in waiters:
            waiter.wake()

    # --- end --------------------------------------------------------------------------------------------------------

    def connections(self) -> tuple[int, int]:
        """(open, in use): one for each thread that waits or has waited."""
        with self._lock:
            opened = [waiter for waiter in (*self._waiting, *self._free) if waiter.connection is not None]
            return len(opened), len([waiter for waiter in opened if waiter.blocked_until is not None])

    def close(self) -> None:
        """Close the connections of threads that do not wait."""
        with self._lock:
            waiters, self._free = self._free, []
        for waiter in waiters:
            waiter.close()

    def after_fork(self) -> None:
        """In a forked child: the waiters belong to the parent, and one of its threads may hold the lock."""
        for waiter in [*self._waiting, *self._free]:
            waiter.close()
        self._reset()
