"""Wakes waiting workers with LISTEN and NOTIFY. Only a hint: a worker that misses it finds the work by polling.

A waiter writes a row with the queues that it serves and the channel on which it listens. A process that enqueues
deletes one matching row and notifies its channel: one waiter wakes, and without waiters nothing is sent. A process has
one listening connection for the channels of all its waiters: one of them reads it and wakes the others. Behind
PgBouncer LISTEN does not work, so a waiter looks for work now and then.
"""

from __future__ import annotations

import contextlib
import secrets
import select
import socket
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import psycopg

from packhorse.core import clock
from packhorse.core.errors import StorageError
from packhorse.storage.contract import OTHER_QUEUES
from packhorse.storage.fork_hook import reset_after_fork
from packhorse.storage.postgres.connection import Pg
from packhorse.storage.postgres.driver_errors import translate
from packhorse.storage.sql.rows import to_json

if TYPE_CHECKING:
    from packhorse.storage.postgres.database import Database

_POLL = 0.5
_SHORTEST = 0.002
"""Seconds that are too short for writing a row."""
_SHORT_WAIT = 0.02
_ROW_AFTER_SHORT_WAIT = 0.15
"""Seconds for which the row stays after a short wait: a longer wait follows immediately if there is still no work."""
_ROW_AFTER_WAIT = 4.0
"""Seconds for which the row stays after a wait, once the waiter has timed out a few times: it waits again in a moment,
and need not write the row each time."""
_TIMEOUTS = 3


class _Listener:
    """A connection that listens. One thread uses it at a time, except for waiting until there is something to read."""

    def __init__(self, driver: Pg) -> None:
        self.driver = driver
        self._lock = threading.Lock()
        self._notified: list[str] = []
        # The driver would discard notifications that arrive together with the result of a statement.
        driver.add_notify_handler(lambda notice: self._notified.append(notice.channel))

    def listen_on(self, channel: str) -> None:
        with self._lock:
            self.driver.execute(f"LISTEN {channel}")

    def is_open(self) -> bool:
        """Whether the server is still there. Keeps the notifications that this check reads."""
        with self._lock:
            if self.driver.closed:
                return False
            poll = select.poll()
            poll.register(self.driver.fileno(), select.POLLIN)
            try:
                while poll.poll(0):
                    self.driver.pgconn.consume_input()
            except psycopg.OperationalError:
                return False
            return True

    def read(self) -> list[str]:
        """The channels that were notified since the last call."""
        with self._lock:
            pgconn = self.driver.pgconn
            pgconn.consume_input()
            while (notice := pgconn.notifies()) is not None:
                self._notified.append(notice.relname.decode())
            notified, self._notified = self._notified, []
            return notified


class _Waiter:
    """One waiting thread's channel and row. The row says for which queues, and until when."""

    def __init__(self, lock: threading.RLock) -> None:
        self.channel = f"packhorse_{secrets.token_hex(8)}"
        self.woken = threading.Condition(lock)
        self.listener: _Listener | None = None  # that listens on the channel
        self.timeouts = 0  # how often in a row it waited in vain
        self.is_notified = False  # by a process with work
        self.is_interrupted = False  # by this process
        self.waits_for_reader = False
        self.queues: list[str] = []
        self.wants_other_queues = False  # jobs in queues that no waiter names
        self._row_until = 0.0

    def has_row_until(self, queues: list[str], until: float) -> bool:
        return self._row_until >= until and self.queues == queues

    def note_row(self, queues: list[str], until: float) -> None:
        self.queues, self._row_until = queues, until

    def forget_row(self) -> None:
        self._row_until = 0.0

    def has_no_row(self) -> bool:
        """As far as it knows."""
        return self._row_until <= time.monotonic()


class _WakeUp:
    """Ends the wait of the thread that reads the listener."""

    def __init__(self) -> None:
        self._sender, self.receiver = socket.socketpair()
        self._sender.setblocking(False)
        self.receiver.setblocking(False)

    def send(self) -> None:
        with contextlib.suppress(OSError):  # the buffer is full: one was sent already
            self._sender.send(b"!")

    def clear(self) -> None:
        with contextlib.suppress(OSError):
            self.receiver.recv(4096)

    def __del__(self) -> None:
        self._sender.close()
        self.receiver.close()


class Notifier:
    """Notifies the waiters of this process and of others."""

    def __init__(self, database: Database, sql: Mapping[str, str], now: clock.Now | None) -> None:
        self._db = database
        self._sql = sql
        self._now = now
        self.after_fork()
        reset_after_fork(self)

    def after_fork(self) -> None:
        """The parent's waiters are not ours, and its lock may never be released."""
        self._lock = threading.RLock()  # reentrant: a signal handler may interrupt the thread that holds it
        self._listener: _Listener | None = None
        self._opening = threading.Lock()  # of a listener
        self._wake_up: _WakeUp | None = None
        self._by_channel: dict[str, _Waiter] = {}
        self._idle: list[_Waiter] = []
        self._waiting: dict[_Waiter, None] = {}  # in the order in which they began to wait
        self._reader: _Waiter | None = None  # whose thread reads the listener
        self._is_interrupted = False
        self._is_closed = False

    def notify(self) -> None:
        """Wake one waiter, in any process."""
        with contextlib.suppress(StorageError):  # a hint that fails must not fail a write that is stored
            self._db.run("wake", self._sql["wake"], (self._moment(),))

    def has_lasting_row(self, queues: Iterable[str]) -> bool:
        """Whether a waiter for these queues has timed out several times and its row is still there. A process that
        enqueues would have found the row."""
        served = list(queues)
        with self._lock:
            return any(one.timeouts > _TIMEOUTS and not one.has_no_row() for one in self._idle if one.queues == served)

    def interrupt(self) -> None:
        """Wake all waiters of this process."""
        with self._lock:
            self._is_interrupted = True
            self._interrupt_all(self._waiting)

    def wait(self, timeout: float, queues: Sequence[str] = ()) -> bool:
        """Wait until notified for one of these queues, or for any if none is named; until interrupted, or until
        `timeout` seconds are over."""
        served = [queue for queue in queues if queue != OTHER_QUEUES]
        with self._lock:
            waiter = self._take_waiter(served)
            waiter.wants_other_queues = len(served) < len(queues)
            self._waiting[waiter] = None
            was_interrupted, self._is_interrupted = self._is_interrupted, False
        try:
            if was_interrupted:
                return True
            deadline = time.monotonic() + timeout
            if timeout <= _SHORTEST:
                return self._pause(waiter, deadline)
            if self._db.options.pgbouncer:
                return self._poll(waiter, deadline, served)
            return self._wait(waiter, served, timeout)
        finally:
            self._give_back(waiter)

    # --- waiters --------------------------------------------------------------------------------------------------

    def _take_waiter(self, queues: list[str]) -> _Waiter:
        """One that waited for these queues before, or else one without a row: the row of another will be used again."""
        fitting = next((one for one in reversed(self._idle) if one.queues == queues), None)
        waiter = fitting or next((one for one in reversed(self._idle) if one.has_no_row()), None)
        if waiter is None:
            waiter = self._new_waiter()
        else:
            self._idle.remove(waiter)
        if fitting is None:
            waiter.timeouts, waiter.is_notified = 0, False
        waiter.is_interrupted = False
        return waiter

    def _new_waiter(self) -> _Waiter:
        waiter = _Waiter(self._lock)
        self._by_channel[waiter.channel] = waiter
        return waiter

    def _give_back(self, waiter: _Waiter) -> None:
        with self._lock:
            del self._waiting[waiter]
            self._idle.append(waiter)
            self._is_interrupted = False
            self._choose_reader()
            is_last = self._is_closed and not self._waiting
        if is_last:
            self._close_listener()

    def _choose_reader(self) -> None:
        """Have another waiter read the listener if none does. Called under the lock."""
        if self._reader is None:
            successor = next((one for one in self._waiting if one.waits_for_reader), None)
            if successor is not None:
                successor.woken.notify()

    def _interrupt_all(self, waiters: Iterable[_Waiter]) -> None:
        """Called under the lock."""
        for waiter in waiters:
            waiter.is_interrupted = True
            self._wake(waiter)

    def _wake(self, waiter: _Waiter) -> None:
        waiter.woken.notify()
        if waiter is self._reader and self._wake_up is not None:
            self._wake_up.send()

    # --- waiting --------------------------------------------------------------------------------------------------

    def _wait(self, waiter: _Waiter, queues: list[str], timeout: float) -> bool:
        listener = self._open_listener(waiter)
        if waiter.listener is not listener:
            self._listen_for(waiter, listener)
        deadline = time.monotonic() + timeout
        woken = self._put_row(waiter, listener, queues, timeout) or self._sleep(waiter, listener, deadline)
        waiter.timeouts = 0 if woken else waiter.timeouts + 1
        if woken:
            self._remove_row(waiter)
        return woken

    def _put_row(self, waiter: _Waiter, listener: _Listener, queues: list[str], timeout: float) -> bool:
        """Write the row, unless it is there. Returns whether there is work already."""
        self._read(listener)
        now = time.monotonic()
        with self._lock:
            was_notified, waiter.is_notified = waiter.is_notified, False
            if was_notified or waiter.is_interrupted:
                return True  # the notifying process has found the row and removed it
            if waiter.has_row_until(queues, now + timeout):
                return False
        extra = _ROW_AFTER_SHORT_WAIT if timeout <= _SHORT_WAIT else 0.0
        lasts = timeout + (_ROW_AFTER_WAIT if waiter.timeouts >= _TIMEOUTS else extra)
        wanted = [*queues, OTHER_QUEUES] if waiter.wants_other_queues else queues
        values = (waiter.channel, to_json(wanted), round(lasts * clock.SECOND), self._moment())
        waiter.note_row(queues, now + lasts)
        try:
            return bool(self._db.run("wait", self._sql["put_waiter"], values)[0][0])
        except BaseException:
            waiter.forget_row()  # perhaps it was written; the next wait writes it again
            raise

    def _remove_row(self, waiter: _Waiter) -> None:
        """No process shall notify a waiter that is awake."""
        if not waiter.has_no_row():
            waiter.forget_row()
            self._db.run("wait", self._sql["remove_waiter"], (waiter.channel,))

    def remove_rows(self, queues: Iterable[str]) -> None:
        """A worker found work for these queues without a notification: its waiters whose rows remain are awake."""
        served = list(queues)
        with self._lock:
            standing = [one for one in self._idle if one.queues == served and not one.has_no_row()]
            for waiter in standing:
                self._idle.remove(waiter)  # else a thread could take it and trust its row
        try:
            with contextlib.suppress(StorageError):
                for waiter in standing:
                    self._remove_row(waiter)
        finally:
            with self._lock:
                self._idle += standing

    def _sleep(self, waiter: _Waiter, listener: _Listener, deadline: float) -> bool:
        """The first waiter reads the listener, also for the others, which sleep until it wakes them or leaves."""
        while True:
            with self._lock:
                if waiter.is_notified or waiter.is_interrupted:
                    waiter.is_notified = False
                    return True
                left = deadline - time.monotonic()
                if left <= 0:
                    return False
                if self._reader is not None:
                    waiter.waits_for_reader = True
                    waiter.woken.wait(left)
                    waiter.waits_for_reader = False
                    continue
                self._reader = waiter
                self._wake_up = self._wake_up or _WakeUp()
            try:
                self._read_until(waiter, listener, self._wake_up, deadline)
            finally:
                with self._lock:
                    self._reader = None
                    self._choose_reader()

    def _read_until(self, waiter: _Waiter, listener: _Listener, wake_up: _WakeUp, deadline: float) -> None:
        poll = select.poll()  # unlike select, it takes any file descriptor
        poll.register(wake_up.receiver, select.POLLIN)
        poll.register(listener.driver.fileno(), select.POLLIN)
        while not (waiter.is_notified or waiter.is_interrupted) and (left := deadline - time.monotonic()) > 0:
            for number, _ in poll.poll(left * 1000):
                if number == wake_up.receiver.fileno():
                    wake_up.clear()
                    continue
                with contextlib.suppress(StorageError):  # the connection is lost; that interrupts all, this one too
                    self._read(listener)

    def _pause(self, waiter: _Waiter, deadline: float) -> bool:
        """Wait without listening."""
        with self._lock:
            return waiter.woken.wait_for(lambda: waiter.is_interrupted, max(0.0, deadline - time.monotonic()))

    def _poll(self, waiter: _Waiter, deadline: float, queues: list[str]) -> bool:
        while not self._has_work(queues):
            if time.monotonic() >= deadline:
                return False
            if self._pause(waiter, min(deadline, time.monotonic() + _POLL)):
                return True
        return True

    def _has_work(self, queues: list[str]) -> bool:
        return bool(queues) and bool(self._db.run("wait", self._sql["has_work"], (to_json(queues),))[0][0])

    # --- listening ------------------------------------------------------------------------------------------------

    def _read(self, listener: _Listener) -> None:
        """Wake the waiters that were notified."""
        with self._dropping(listener):
            notified = listener.read()
        if notified:
            with self._lock:
                for channel in notified:
                    self._deliver(self._by_channel[channel])

    def _deliver(self, waiter: _Waiter) -> None:
        """The notifying process has removed the row. The notification is for the thread that waits with it, else for
        another with the same queues, else for the next thread that takes this waiter, unless its row was removed
        before. Called under the lock."""
        had_row = not waiter.has_no_row()
        waiter.forget_row()
        if waiter not in self._waiting:
            others = (
                one
                for one in self._waiting
                if one.queues == waiter.queues and not one.is_notified and not one.has_no_row()
            )
            other = next(others, None)
            if other is None:
                waiter.is_notified = had_row
                return
            waiter = other
        waiter.is_notified = True
        self._wake(waiter)

    def _open_listener(self, waiter: _Waiter) -> _Listener:
        with self._opening:
            listener = self._listener
            if listener is not None:
                if listener.is_open():
                    return listener
                waiter.listener = None  # it does not wait yet, and need not be interrupted
                self._drop(listener)
            try:
                self._listener = _Listener(self._db.connect())
            except psycopg.Error as error:
                raise translate(error, self._db.address) from error
            self._is_closed = False
            return self._listener

    def _listen_for(self, waiter: _Waiter, listener: _Listener) -> None:
        with self._dropping(listener):
            listener.listen_on(waiter.channel)
        waiter.listener = listener
        waiter.forget_row()  # notifications in the meantime are lost

    @contextlib.contextmanager
    def _dropping(self, listener: _Listener) -> Iterator[None]:
        """Drop the listener if anything goes wrong with it."""
        try:
            yield
        except psycopg.Error as error:
            self._drop(listener)
            raise translate(error, self._db.address) from error
        except BaseException:
            self._drop(listener)
            raise

    def _drop(self, listener: _Listener) -> None:
        """It receives nothing any more: its waiters must look for work."""
        with self._lock:
            if self._listener is listener:
                self._listener = None
            self._interrupt_all([one for one in self._waiting if one.listener is listener])
        listener.driver.close()

    def close(self) -> None:
        """Close the listener, or let the last waiter close it."""
        with self._lock:
            self._is_closed = bool(self._waiting)
        if not self._is_closed:
            self._close_listener()

    def _close_listener(self) -> None:
        with self._lock:
            listener, self._listener = self._listener, None
            self._is_closed = False
        if listener is not None:
            listener.driver.close()

    def _moment(self) -> int | None:
        return None if self._now is None else self._now()
