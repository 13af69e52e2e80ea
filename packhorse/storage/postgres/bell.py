"""The bell: LISTEN and NOTIFY. A hint only; who misses it finds the work by polling.

Whoever lies down writes a row that says which queues it serves and on which channel it listens. Whoever brings work
deletes one fitting row and notifies its channel: one sleeper wakes, and when nobody sleeps nothing is sent at all.
Behind PgBouncer nobody can listen, so a sleeper looks now and then.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import select
import socket
import threading
import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import psycopg

from packhorse import clock
from packhorse.errors import StorageError
from packhorse.storage.postgres.link import Pg, has_not_hung_up
from packhorse.storage.postgres.trouble import translate
from packhorse.storage.sql.rows import to_json

if TYPE_CHECKING:
    from packhorse.storage.postgres.database import Database

_POLL = 0.5
_BLINK = 0.002
"""Seconds that are too short for lying down."""
_NAP = 0.02
_NAPS_ON = 0.15
"""Seconds for which the row stays beyond a nap: who naps sleeps longer the next moment, if there is still no work."""
_STANDS = 4.0
"""Seconds for which the row of a sleeper stays beyond its sleep, once it has slept in vain a few times: it will sleep
again in a moment, and need not write the row each time."""
_IN_VAIN = 3


class _Ear:
    """A connection that listens on a channel of its own."""

    def __init__(self, connection: Pg) -> None:
        self.connection = connection
        self.channel = f"packhorse_{secrets.token_hex(8)}"
        self.in_vain = 0  # how often in a row nothing was heard
        self._queues: list[str] = []
        self._until = 0.0
        connection.execute(f"LISTEN {self.channel}")

    def stands(self, queues: list[str], until: float) -> bool:
        """Has it a row for these queues that lasts so long?"""
        return self._until >= until and self._queues == queues

    def has_lain_down(self, queues: list[str], until: float) -> None:
        self._queues, self._until = queues, until

    def is_up(self) -> bool:
        """Has it no row, as far as it knows?"""
        return self._until <= time.monotonic()

    def forget_old(self) -> None:
        """What was heard before one lay down is old news."""
        self.connection.pgconn.consume_input()
        while self.connection.pgconn.notifies():
            pass

    def hear(self) -> bool:
        """Was something said, and was it not only a notice?"""
        self.connection.pgconn.consume_input()
        if self.connection.pgconn.notifies() is None:
            return False
        self._until = 0.0  # whoever rang has removed the row
        return True


class Bell:
    """Wakes this process's sleepers, and others'."""

    def __init__(self, database: Database, sql: Mapping[str, str], now: clock.Now | None) -> None:
        self._db = database
        self._sql = sql
        self._now = now
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.RLock()  # a signal handler may interrupt the very thread that lies down
        self._ears: list[_Ear] = []
        self._sleepers: set[socket.socket] = set()
        self._queues: list[str] = []
        self._is_interrupted = False

    def serve(self, queues: Iterable[str]) -> None:
        """These are the queues for which this process wants to be woken."""
        self._queues = list(queues)

    def ring(self) -> None:
        """Wake one sleeper, in whatever process it is."""
        with contextlib.suppress(StorageError):  # a hint that fails must not fail a write that is stored
            self._db.run("wake", self._sql["wake"], (self._moment(),))

    def is_lasting(self) -> bool:
        """Has a sleeper of this process slept in vain for long, and does its row still stand? Whoever brings work has
        seen it."""
        with self._lock:
            return any(ear.in_vain > _IN_VAIN and not ear.is_up() for ear in self._ears)

    def interrupt(self) -> None:
        """Wake every sleeper of this process."""
        self._leave_parent()
        with self._lock:
            self._is_interrupted = True
            for sleeper in self._sleepers:
                with contextlib.suppress(OSError):
                    sleeper.send(b"!")

    def wait(self, timeout: float) -> bool:
        """Sleep until rung, interrupted, or `timeout` seconds are over."""
        self._leave_parent()
        sleeper, waker = socket.socketpair()
        waker.setblocking(False)
        with self._lock:
            self._sleepers.add(waker)
            was_interrupted, self._is_interrupted = self._is_interrupted, False
        try:
            if was_interrupted:
                return True
            if timeout <= _BLINK:
                return bool(select.select([sleeper], [], [], max(0.0, timeout))[0])
            if self._db.options.pgbouncer:
                return self._look_now_and_then(sleeper, timeout)
            return self._listen(sleeper, timeout)
        finally:
            with self._lock:
                self._sleepers.discard(waker)
                self._is_interrupted = False
            sleeper.close()
            waker.close()

    def _listen(self, sleeper: socket.socket, timeout: float) -> bool:
        ear = self._take_ear()
        try:
            woken = self._lie_down(ear, timeout) or self._sleep(ear, sleeper, timeout)
            ear.in_vain = 0 if woken else ear.in_vain + 1
            if woken:
                self._get_up(ear)
        except psycopg.Error as error:
            ear.connection.close()
            raise translate(error, self._db.address) from error
        except BaseException:
            ear.connection.close()
            raise
        with self._lock:
            self._ears.append(ear)
        return woken

    def _lie_down(self, ear: _Ear, timeout: float) -> bool:
        """Write where to ring, unless it stands there. Answers whether there is work already."""
        queues, wakes_at = self._queues, time.monotonic() + timeout
        if ear.stands(queues, wakes_at):
            return ear.hear()  # whoever came meanwhile has seen the row, and removed it
        ear.forget_old()
        lasts = timeout + (_STANDS if ear.in_vain >= _IN_VAIN else _NAPS_ON if timeout <= _NAP else 0.0)
        asked = (ear.channel, to_json(queues), round(lasts * clock.SECOND), self._moment())
        ear.has_lain_down(queues, wakes_at - timeout + lasts)
        return bool(self._db.run("wait", self._sql["lie_down"], asked)[0][0])

    def _get_up(self, ear: _Ear) -> None:
        """Nobody shall ring for one who does not sleep."""
        if not ear.is_up():
            ear.has_lain_down([], 0.0)
            self._db.run("wait", self._sql["get_up"], (ear.channel,))

    def rouse(self) -> None:
        """There was work although nobody rang: those whose rows stand are awake."""
        with self._lock:
            standing = [ear for ear in self._ears if not ear.is_up()]
        with contextlib.suppress(StorageError):
            for ear in standing:
                self._get_up(ear)

    def _sleep(self, ear: _Ear, sleeper: socket.socket, timeout: float) -> bool:
        deadline = time.monotonic() + timeout
        poll = select.poll()  # unlike select, it takes any file descriptor
        poll.register(sleeper, select.POLLIN)
        poll.register(ear.connection.fileno(), select.POLLIN)
        while (left := deadline - time.monotonic()) > 0:
            ready = [number for number, _ in poll.poll(left * 1000)]
            if sleeper.fileno() in ready or (ready and ear.hear()):
                return True
        return False

    def _look_now_and_then(self, sleeper: socket.socket, timeout: float) -> bool:
        deadline = time.monotonic() + timeout
        queues = to_json(self._queues)
        while not self._has_work(queues):
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            if select.select([sleeper], [], [], min(left, _POLL))[0]:
                return True
        return True

    def _has_work(self, queues: str) -> bool:
        ((has_work,),) = self._db.run("wait", self._sql["has_work"], (queues,))
        return bool(has_work)

    def _take_ear(self) -> _Ear:
        with self._lock:
            ear = self._ears.pop() if self._ears else None
        if ear is not None:
            if has_not_hung_up(ear.connection):
                return ear
            ear.connection.close()
        try:
            return _Ear(self._db.connect())
        except psycopg.Error as error:
            raise translate(error, self._db.address) from error

    def close(self) -> None:
        self._leave_parent()
        with self._lock:
            ears, self._ears = self._ears, []
        for ear in ears:
            ear.connection.close()

    def _leave_parent(self) -> None:
        """After a fork: the parent's sleepers are not ours, and its lock may be held for ever."""
        if self._pid != os.getpid():
            self._begin_anew()

    def _moment(self) -> int | None:
        return None if self._now is None else self._now()
