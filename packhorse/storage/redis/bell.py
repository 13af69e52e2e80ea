"""The bell: wakes one sleeping worker when work comes in. A hint only; who misses it finds the work by polling.

A sleeper blocks on a list, on a connection of its own; a script that puts jobs in line leaves one token there (see
`lua/parts/bell.lua`). The storage calls `wait` and `interrupt`, and after each reserve `reserved`.
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
from packhorse.storage.redis.connection import Connection, Lost, Refusal, Word
from packhorse.storage.redis.forks import part_ways_after_fork
from packhorse.storage.redis.server import Server

_AT_ONCE = 5.0
"""Seconds for which the server is asked to block. An idle worker looks for jobs every second; it need not lie down anew
each time."""
_LATE = 2.0
"""Seconds by which the server may be late with its word that nothing came; then it has gone."""
_PRECISE = 0.5
"""Seconds. Whoever sleeps for less than this has a reason to be woken in time."""
_TICK = 0.2
"""Seconds by which a server that is well may be late with waking the others: it looks at its clock ten times a
second."""
_AGAIN = 0.02
"""Seconds between two tries to be woken by the server."""
_MOST_HOPS = 16
_ANY: frozenset[str] = frozenset()
_MOST_CHOICES = 1_000
"""Of queues, for which something is remembered."""


class _Sleeper:
    """One thread's place to sleep: a connection on which a token may come, and a socket by which this process wakes
    it. Without a connection, while the server is away, it only sleeps."""

    def __init__(self) -> None:
        self.connection: Connection | None = None
        self.queues: frozenset[str] = frozenset()  # for which it sleeps
        self.ends_at: float | None = None  # when the server will answer at the latest; None: it was not asked
        self._alarm, self._bed = socket.socketpair()
        self._alarm.setblocking(False)
        self._bed.setblocking(False)

    def wake(self) -> None:
        with contextlib.suppress(OSError):  # full: it is being woken already
            self._alarm.send(b"!")

    def sleep(self, seconds: float) -> tuple[bool, bool]:
        """(has the server answered, has this process woken us)"""
        poll = select.poll()
        poll.register(self._bed, select.POLLIN)
        if self.connection is not None:
            poll.register(self.connection, select.POLLIN)
        ready = [fd for fd, _ in poll.poll(max(0.0, seconds) * 1000)]
        is_woken = self._bed.fileno() in ready
        if is_woken:
            self._bed.recv(4096)
        return self.connection is not None and self.connection.fileno() in ready, is_woken

    def hang_up(self) -> None:
        """The connection is of no use any more."""
        self.ends_at = None
        if self.connection is not None:
            self.connection.close()
            self.connection = None

    def close(self) -> None:
        self.hang_up()
        self._alarm.close()
        self._bed.close()

    def __del__(self) -> None:
        self.close()  # its storage was thrown away, or closed while this one slept


class Bell:
    """Rings at one server."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._key = f"{server.prefix}bell"
        self._begin()
        part_ways_after_fork(self)

    def _begin(self) -> None:
        self._me = os.urandom(6).hex()
        self._lock = threading.RLock()  # a signal handler may interrupt the very thread that lies down
        self._asleep: set[_Sleeper] = set()
        self._free: list[_Sleeper] = []
        self._is_interrupted = False
        # How often the token that woke the latest who serves these queues may still be passed on.
        self._hops: dict[frozenset[str], int] = {}
        self._mute_until = 0.0  # until then nothing is asked in advance

    # --- ringing --------------------------------------------------------------------------------------------------

    def reserved(self, got: int, limit: int, queues: Iterable[str] = ()) -> None:
        """After each reserve. Woken for nothing: the token was for somebody else. Got all that was asked for: this
        process will be busy, and must not take the tokens of those that are not."""
        hops = self._hops.pop(frozenset(queues), 0) or self._hops.pop(_ANY, 0) if self._hops else 0
        if got == 0 and hops > 1:
            self._ring(hops - 1)
        elif got >= limit and self._free:
            self._get_up()

    def _ring(self, hops: int) -> None:
        with contextlib.suppress(StorageError):  # a hint that fails must not fail what was done
            self._server.run("ring", f"{hops}:{self._me}")

    def _get_up(self) -> None:
        """End what still blocks on the server for us. A token that came meanwhile is for another."""
        with self._lock:
            waiting = [sleeper for sleeper in self._free if sleeper.ends_at is not None]
            self._free = [sleeper for sleeper in self._free if sleeper.ends_at is None]
        for sleeper in waiting:
            try:
                self._have_answered(sleeper, waits=False)
                if self._hear(sleeper):
                    self._ring(_MOST_HOPS)
            except (StorageError, Lost, Refusal):
                sleeper.hang_up()
            with self._lock:
                self._free.append(sleeper)

    # --- sleeping -------------------------------------------------------------------------------------------------

    def wait(self, timeout: float, queues: Sequence[str] = ()) -> bool:
        """Sleep until rung, interrupted, or `timeout` seconds are over. While the server is away, only sleep."""
        sleeper = self._lie_down(queues)
        try:
            return self._sleep(sleeper, time.monotonic() + timeout)
        finally:
            self._rise(sleeper)

    def _lie_down(self, queues: Iterable[str]) -> _Sleeper:
        with self._lock:
            sleeper = self._free.pop() if self._free else _Sleeper()
            sleeper.queues = frozenset(queues)
            self._asleep.add(sleeper)
        return sleeper

    def _rise(self, sleeper: _Sleeper) -> None:
        with self._lock:
            self._asleep.discard(sleeper)
            self._free.append(sleeper)

    def ask_when_rung(self, timeout: float, name: str, *args: Word, queues: Iterable[str] = ()) -> Any:
        """Sleep as `wait` does, with a script that the server runs the moment that it lets us go, whether rung or not;
        answers its reply. That saves who is rung a round trip. None: the server was away, or would not run it; nothing
        was done. Raises `StorageUnavailable` when the answer was lost, for it may have been run."""
        sleeper = self._lie_down(queues)
        try:
            if time.monotonic() < self._mute_until or not self._listen(sleeper):
                self._sleep(sleeper, time.monotonic() + timeout)
                return None
            return None if self._was_interrupted() else self._answer(sleeper, timeout, name, args)
        except Lost as lost:
            sleeper.hang_up()
            raise self._server.lost(lost) from lost
        except BaseException:
            sleeper.hang_up()  # nobody may take what still comes for another answer
            raise
        finally:
            self._rise(sleeper)

    def _answer(self, sleeper: _Sleeper, timeout: float, name: str, args: tuple[Word, ...]) -> Any:
        assert sleeper.connection is not None
        commands = [self._server.run_later(sleeper.connection, name, *args)]
        if sleeper.ends_at is None:  # else it blocks already
            commands.insert(0, ("BLPOP", self._key, f"{max(timeout, 0.001):.3f}"))
        sleeper.connection.send(*commands)
        sleeper.ends_at = time.monotonic() + timeout
        has_answer, is_woken = sleeper.sleep(timeout + (_TICK if timeout >= _PRECISE else 0.0))
        if is_woken:
            self._was_interrupted()
        if not has_answer:
            self._have_answered(sleeper)
        try:
            self._hear(sleeper)
        except Refusal as refusal:
            self._be_mute(refusal)
        reply = sleeper.connection.read()
        return None if isinstance(reply, Refusal) else reply

    def _have_answered(self, sleeper: _Sleeper, *, waits: bool = True) -> None:
        """Have the server let us go, now. Again and again, for it may not yet have read that we want to block, and
        would then keep us for as long as it was asked to. `waits`: also where it refuses that, for it lets us go then.
        """
        assert sleeper.connection is not None
        gives_up_at = time.monotonic() + _LATE
        has_answer = False
        while not has_answer:
            if time.monotonic() > gives_up_at:
                raise Lost("the server is silent", was_sent=True)
            try:
                self._server.ask("wake_up", ("CLIENT", "UNBLOCK", sleeper.connection.id))
            except StorageError as error:
                if not waits or not isinstance(error.__cause__, Refusal):
                    raise
                self._be_mute(error.__cause__)
                gives_up_at += _AT_ONCE  # it lets us go by itself
            has_answer, _ = sleeper.sleep(_AGAIN if time.monotonic() >= self._mute_until else _AT_ONCE + _LATE)

    def _be_mute(self, refusal: Refusal) -> None:
        """It lets us not block, or not wake: ask nothing in advance, for some time or, if it is a matter of rights, at
        all."""
        self._mute_until = math.inf if refusal.code == "NOPERM" else time.monotonic() + _AT_ONCE

    def _sleep(self, sleeper: _Sleeper, deadline: float) -> bool:
        hears = self._listen(sleeper)
        while not self._was_interrupted():
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            if hears and sleeper.ends_at is None:
                hears = self._ask(sleeper)
            has_answer, is_woken = sleeper.sleep(left if sleeper.ends_at is None else min(left, _AT_ONCE + _LATE))
            if is_woken:
                self._was_interrupted()
                return True
            try:
                if has_answer and self._hear(sleeper):
                    return True
                if sleeper.ends_at is not None and time.monotonic() > sleeper.ends_at + _LATE:
                    raise Lost("the server is silent")
            except (Lost, Refusal):
                sleeper.hang_up()
                hears = False
        return True

    def _was_interrupted(self) -> bool:
        """Also if it was just before we lay down."""
        with self._lock:
            was, self._is_interrupted = self._is_interrupted, False
        return was

    def _listen(self, sleeper: _Sleeper) -> bool:
        """See that there is a connection. False: the server is away."""
        if sleeper.connection is not None and self._has_ended(sleeper.connection, sleeper.ends_at is not None):
            sleeper.hang_up()
        if sleeper.connection is None:
            try:
                sleeper.connection = self._server.connect()
            except (Lost, Refusal):
                return False
        return True

    def _has_ended(self, connection: Connection, is_asked: bool) -> bool:
        """Has the server gone meanwhile, or has another taken its place?"""
        return not self._server.is_current(connection) or (not is_asked and connection.has_more())

    def _ask(self, sleeper: _Sleeper) -> bool:
        """Ask the server for a token."""
        assert sleeper.connection is not None
        try:
            sleeper.connection.send(("BLPOP", self._key, str(int(_AT_ONCE))))
        except Lost:
            sleeper.hang_up()
            return False
        sleeper.ends_at = time.monotonic() + _AT_ONCE
        return True

    def _hear(self, sleeper: _Sleeper) -> bool:
        """Read the server's answer. True: a token. Not one that we passed on ourselves: then nobody else sleeps, unless
        others do in this very process, who may serve other queues."""
        assert sleeper.connection is not None
        reply = sleeper.connection.read()
        sleeper.ends_at = None
        if isinstance(reply, Refusal):
            raise reply
        if reply is None:
            return False
        hops, _, who = reply[1].decode().partition(":")
        if who == self._me and len(self._asleep) + len(self._free) < 2:
            return False
        if len(self._hops) >= _MOST_CHOICES:
            self._hops.clear()
        self._hops[sleeper.queues] = int(hops)
        return True

    def interrupt(self) -> None:
        """Wake every sleeper of this process, and whoever is about to lie down."""
        with self._lock:
            self._is_interrupted = True
            sleepers = list(self._asleep)
        for sleeper in sleepers:
            sleeper.wake()

    # --- ending ---------------------------------------------------------------------------------------------------

    def connections(self) -> tuple[int, int]:
        """(open, in use): one for each thread that sleeps, or has slept."""
        with self._lock:
            opened = [sleeper for sleeper in (*self._asleep, *self._free) if sleeper.connection is not None]
            return len(opened), len([sleeper for sleeper in opened if sleeper.ends_at is not None])

    def close(self) -> None:
        """Close the connections of those that do not sleep."""
        with self._lock:
            sleepers, self._free = self._free, []
        for sleeper in sleepers:
            sleeper.close()

    def part_ways(self) -> None:
        """In a forked child: the parent's sleepers are not ours, and its lock may be held for ever."""
        for sleeper in [*self._asleep, *self._free]:
            sleeper.close()
        self._begin()
