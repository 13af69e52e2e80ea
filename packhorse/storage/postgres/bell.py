"""The bell: LISTEN and NOTIFY. A hint only; who misses it finds the work by polling.

Whoever lies down writes a row that says which queues it serves and on which channel it listens. Whoever brings work
deletes one fitting row and notifies its channel: one sleeper wakes, and when nobody sleeps nothing is sent at all.
A process has one ear, a connection that listens on the channels of all its beds, however many sleep in it, as at a
manager: one of them listens, and wakes the others. Behind PgBouncer nobody can listen, so a sleeper looks now and then.
"""

from __future__ import annotations

import contextlib
import os
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
from packhorse.storage.postgres.link import Pg
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
    """A connection that listens. Used by one thread at a time, but for waiting until there is something to hear."""

    def __init__(self, connection: Pg) -> None:
        self.connection = connection
        self._lock = threading.Lock()
        self._heard: list[str] = []
        # What comes in together with an answer, else the driver would keep it.
        connection.add_notify_handler(lambda notice: self._heard.append(notice.channel))

    def listen_on(self, channel: str) -> None:
        with self._lock:
            self.connection.execute(f"LISTEN {channel}")

    def is_open(self) -> bool:
        """Has the server not hung up? It says why before it does; what else it says is kept."""
        with self._lock:
            if self.connection.closed:
                return False
            poll = select.poll()
            poll.register(self.connection.fileno(), select.POLLIN)
            try:
                while poll.poll(0):
                    self.connection.pgconn.consume_input()
            except psycopg.OperationalError:
                return False
            return True

    def hear(self) -> list[str]:
        """The channels on which something was said since the last time."""
        with self._lock:
            pgconn = self.connection.pgconn
            pgconn.consume_input()
            while (notice := pgconn.notifies()) is not None:
                self._heard.append(notice.relname.decode())
            heard, self._heard = self._heard, []
            return heard


class _Bed:
    """A place to sleep, with a channel of its own. Its row says for which queues, and until when."""

    def __init__(self, lock: threading.RLock) -> None:
        self.channel = f"packhorse_{secrets.token_hex(8)}"
        self.woken = threading.Condition(lock)
        self.ear: _Ear | None = None  # that listens on the channel
        self.in_vain = 0  # how often in a row nothing was heard
        self.is_rung = False  # by whoever brought work
        self.is_called = False  # by this process
        self.waits = False  # for the one who listens
        self.queues: list[str] = []
        self.hears_of_others = False  # of jobs in queues that nobody has named
        self._until = 0.0

    def stands(self, queues: list[str], until: float) -> bool:
        """Has it a row for these queues that lasts so long?"""
        return self._until >= until and self.queues == queues

    def has_lain_down(self, queues: list[str], until: float) -> None:
        self.queues, self._until = queues, until

    def has_got_up(self) -> None:
        self._until = 0.0

    def is_up(self) -> bool:
        """Has it no row, as far as it knows?"""
        return self._until <= time.monotonic()


class _Alarm:
    """Ends the wait of the one who listens."""

    def __init__(self) -> None:
        self._ours, self.theirs = socket.socketpair()
        self._ours.setblocking(False)
        self.theirs.setblocking(False)

    def sound(self) -> None:
        with contextlib.suppress(OSError):  # full: it sounds already
            self._ours.send(b"!")

    def silence(self) -> None:
        with contextlib.suppress(OSError):
            self.theirs.recv(4096)

    def __del__(self) -> None:
        self._ours.close()
        self.theirs.close()


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
        self._ear: _Ear | None = None
        self._opening = threading.Lock()  # of an ear
        self._alarm: _Alarm | None = None
        self._beds: dict[str, _Bed] = {}  # all, by their channels
        self._free: list[_Bed] = []
        self._sleepers: dict[_Bed, None] = {}  # who came first is first
        self._listener: _Bed | None = None
        self._is_interrupted = False
        self._is_closed = False

    def ring(self) -> None:
        """Wake one sleeper, in whatever process it is."""
        with contextlib.suppress(StorageError):  # a hint that fails must not fail a write that is stored
            self._db.run("wake", self._sql["wake"], (self._moment(),))

    def is_lasting(self, queues: Iterable[str]) -> bool:
        """Has one who serves these queues slept in vain for long, and does its row still stand? Whoever brings work has
        seen it."""
        served = list(queues)
        with self._lock:
            return any(bed.in_vain > _IN_VAIN and not bed.is_up() for bed in self._free if bed.queues == served)

    def interrupt(self) -> None:
        """Wake every sleeper of this process."""
        self._leave_parent()
        with self._lock:
            self._is_interrupted = True
            self._call(self._sleepers)

    def wait(self, timeout: float, queues: Sequence[str] = ()) -> bool:
        """Sleep until rung for one of these queues, or for any if none is named; until interrupted, or until `timeout`
        seconds are over."""
        self._leave_parent()
        served = [queue for queue in queues if queue != OTHER_QUEUES]
        with self._lock:
            bed = self._take_bed(served)
            bed.hears_of_others = len(served) < len(queues)
            self._sleepers[bed] = None
            was_interrupted, self._is_interrupted = self._is_interrupted, False
        try:
            if was_interrupted:
                return True
            deadline = time.monotonic() + timeout
            if timeout <= _BLINK:
                return self._doze(bed, deadline)
            if self._db.options.pgbouncer:
                return self._look_now_and_then(bed, deadline, served)
            return self._lie(bed, served, timeout)
        finally:
            self._leave(bed)

    # --- beds -----------------------------------------------------------------------------------------------------

    def _take_bed(self, queues: list[str]) -> _Bed:
        """One that stood for these queues before, rather than one that another will want again in a moment."""
        fitting = next((bed for bed in reversed(self._free) if bed.queues == queues), None)
        bed = fitting or next((bed for bed in reversed(self._free) if bed.is_up()), None)
        if bed is None:
            bed = self._new_bed()
        else:
            self._free.remove(bed)
        if fitting is None:
            bed.in_vain, bed.is_rung = 0, False
        bed.is_called = False
        return bed

    def _new_bed(self) -> _Bed:
        bed = _Bed(self._lock)
        self._beds[bed.channel] = bed
        return bed

    def _leave(self, bed: _Bed) -> None:
        with self._lock:
            del self._sleepers[bed]
            self._free.append(bed)
            self._is_interrupted = False
            self._hand_over()
            is_last = self._is_closed and not self._sleepers
        if is_last:
            self._close_ear()

    def _hand_over(self) -> None:
        """Have another one listen, if nobody does. Under the lock."""
        if self._listener is None:
            heir = next((bed for bed in self._sleepers if bed.waits), None)
            if heir is not None:
                heir.woken.notify()

    def _call(self, beds: Iterable[_Bed]) -> None:
        """Wake these, there is something else to do. Under the lock."""
        for bed in beds:
            bed.is_called = True
            self._wake(bed)

    def _wake(self, bed: _Bed) -> None:
        bed.woken.notify()
        if bed is self._listener and self._alarm is not None:
            self._alarm.sound()

    # --- sleeping -------------------------------------------------------------------------------------------------

    def _lie(self, bed: _Bed, queues: list[str], timeout: float) -> bool:
        ear = self._take_ear(bed)
        if bed.ear is not ear:
            self._listen_for(bed, ear)
        wakes_at = time.monotonic() + timeout
        woken = self._lie_down(bed, ear, queues, timeout) or self._sleep(bed, ear, wakes_at)
        bed.in_vain = 0 if woken else bed.in_vain + 1
        if woken:
            self._get_up(bed)
        return woken

    def _lie_down(self, bed: _Bed, ear: _Ear, queues: list[str], timeout: float) -> bool:
        """Write where to ring, unless it stands there. Answers whether there is work already."""
        self._hear(ear)
        now = time.monotonic()
        with self._lock:
            was_rung, bed.is_rung = bed.is_rung, False
            if was_rung or bed.is_called:
                return True  # whoever came meanwhile has seen the row, and removed it
            if bed.stands(queues, now + timeout):
                return False
        lasts = timeout + (_STANDS if bed.in_vain >= _IN_VAIN else _NAPS_ON if timeout <= _NAP else 0.0)
        rung_for = [*queues, OTHER_QUEUES] if bed.hears_of_others else queues
        asked = (bed.channel, to_json(rung_for), round(lasts * clock.SECOND), self._moment())
        bed.has_lain_down(queues, now + lasts)
        try:
            return bool(self._db.run("wait", self._sql["lie_down"], asked)[0][0])
        except BaseException:
            bed.has_got_up()  # or has it? The next one writes the row anew
            raise

    def _get_up(self, bed: _Bed) -> None:
        """Nobody shall ring for one who does not sleep."""
        if not bed.is_up():
            bed.has_got_up()
            self._db.run("wait", self._sql["get_up"], (bed.channel,))

    def rouse(self, queues: Iterable[str]) -> None:
        """There was work for these queues although nobody rang: those whose rows stand are awake."""
        served = list(queues)
        with self._lock:
            standing = [bed for bed in self._free if bed.queues == served and not bed.is_up()]
            for bed in standing:
                self._free.remove(bed)  # nobody shall lie down in it meanwhile, and trust its row
        try:
            with contextlib.suppress(StorageError):
                for bed in standing:
                    self._get_up(bed)
        finally:
            with self._lock:
                self._free += standing

    def _sleep(self, bed: _Bed, ear: _Ear, deadline: float) -> bool:
        """The first one listens, for the others too; these sleep until it wakes them or leaves."""
        while True:
            with self._lock:
                if bed.is_rung or bed.is_called:
                    bed.is_rung = False
                    return True
                left = deadline - time.monotonic()
                if left <= 0:
                    return False
                if self._listener is not None:
                    bed.waits = True
                    bed.woken.wait(left)
                    bed.waits = False
                    continue
                self._listener = bed
                self._alarm = self._alarm or _Alarm()
            try:
                self._listen(bed, ear, self._alarm, deadline)
            finally:
                with self._lock:
                    self._listener = None
                    self._hand_over()

    def _listen(self, bed: _Bed, ear: _Ear, alarm: _Alarm, deadline: float) -> None:
        poll = select.poll()  # unlike select, it takes any file descriptor
        poll.register(alarm.theirs, select.POLLIN)
        poll.register(ear.connection.fileno(), select.POLLIN)
        while not (bed.is_rung or bed.is_called) and (left := deadline - time.monotonic()) > 0:
            for number, _ in poll.poll(left * 1000):
                if number == alarm.theirs.fileno():
                    alarm.silence()
                    continue
                with contextlib.suppress(StorageError):  # it is lost, and all are called, this one too
                    self._hear(ear)

    def _doze(self, bed: _Bed, deadline: float) -> bool:
        """Sleep without listening."""
        with self._lock:
            return bed.woken.wait_for(lambda: bed.is_called, max(0.0, deadline - time.monotonic()))

    def _look_now_and_then(self, bed: _Bed, deadline: float, queues: list[str]) -> bool:
        while not self._has_work(queues):
            if time.monotonic() >= deadline:
                return False
            if self._doze(bed, min(deadline, time.monotonic() + _POLL)):
                return True
        return True

    def _has_work(self, queues: list[str]) -> bool:
        return bool(queues) and bool(self._db.run("wait", self._sql["has_work"], (to_json(queues),))[0][0])

    # --- hearing --------------------------------------------------------------------------------------------------

    def _hear(self, ear: _Ear) -> None:
        """Wake those for whom something was said."""
        with self._losing(ear):
            heard = ear.hear()
        if heard:
            with self._lock:
                for channel in heard:
                    self._pass_on(self._beds[channel])

    def _pass_on(self, bed: _Bed) -> None:
        """Whoever rang has removed the row. It is for the one who sleeps there, or else for another with the same
        queues; or for the next one there, unless it had got up before. Under the lock."""
        had_row = not bed.is_up()
        bed.has_got_up()
        if bed not in self._sleepers:
            others = (one for one in self._sleepers if one.queues == bed.queues and not one.is_rung and not one.is_up())
            other = next(others, None)
            if other is None:
                bed.is_rung = had_row
                return
            bed = other
        bed.is_rung = True
        self._wake(bed)

    def _take_ear(self, bed: _Bed) -> _Ear:
        with self._opening:
            ear = self._ear
            if ear is not None:
                if ear.is_open():
                    return ear
                bed.ear = None  # it has not lain down yet, and need not be woken
                self._lose(ear)
            try:
                self._ear = _Ear(self._db.connect())
            except psycopg.Error as error:
                raise translate(error, self._db.address) from error
            self._is_closed = False
            return self._ear

    def _listen_for(self, bed: _Bed, ear: _Ear) -> None:
        with self._losing(ear):
            ear.listen_on(bed.channel)
        bed.ear = ear
        bed.has_got_up()  # nobody listened for a while: what was said then is lost

    @contextlib.contextmanager
    def _losing(self, ear: _Ear) -> Iterator[None]:
        """Whatever goes wrong on it, it is not used again."""
        try:
            yield
        except psycopg.Error as error:
            self._lose(ear)
            raise translate(error, self._db.address) from error
        except BaseException:
            self._lose(ear)
            raise

    def _lose(self, ear: _Ear) -> None:
        """It hears nothing any more: who sleeps by it has to look for himself."""
        with self._lock:
            if self._ear is ear:
                self._ear = None
            self._call([bed for bed in self._sleepers if bed.ear is ear])
        ear.connection.close()

    def close(self) -> None:
        """Close the connection, or have it closed by the last who sleeps."""
        self._leave_parent()
        with self._lock:
            self._is_closed = bool(self._sleepers)
        if not self._is_closed:
            self._close_ear()

    def _close_ear(self) -> None:
        with self._lock:
            ear, self._ear = self._ear, None
            self._is_closed = False
        if ear is not None:
            ear.connection.close()

    def _leave_parent(self) -> None:
        """After a fork: the parent's sleepers are not ours, and its lock may be held for ever."""
        if self._pid != os.getpid():
            self._begin_anew()

    def _moment(self) -> int | None:
        return None if self._now is None else self._now()
