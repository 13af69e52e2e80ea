"""One SQLite file: connections, group commit, and errors in our own words.

Every write goes through `write`. Threads that write at the same time share one transaction: the first to get the lock
does the work of all and commits once, so a hundred threads pay for one flush to disk. Reads use connections of their
own and never wait for writers. When the file is removed or replaced, the next call notices: it continues with the new
file, or refuses to while the log of the former one lies beside it.
"""

from __future__ import annotations

import os
import random
import sqlite3
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from packhorse.core import clock
from packhorse.core.errors import BadValue
from packhorse.storage.metrics import CallMetrics
from packhorse.storage.sql.transaction import Shared
from packhorse.storage.sqlite import wal
from packhorse.storage.sqlite.driver_errors import translate
from packhorse.storage.sqlite.filesystem import DatabaseFile
from packhorse.storage.sqlite.transaction import SQLiteTransaction

R = TypeVar("R")
Row = tuple[Any, ...]

SHARED_COMMIT = 200
"""How many calls may share one commit. More would make the first of them wait too long."""

CHECKPOINT_EVERY = 5.0
"""Seconds between two checkpoints."""

# Connections inherited through fork. The child must neither use nor close them: closing one would disturb the parent's
# locks and its write-ahead log. This keeps them from the garbage collector until the process ends.
_inherited: list[object] = []


class Options(NamedTuple):
    """What the URL may choose."""

    synchronous: str = "full"  # every commit is on disk when the call returns
    patience: float = 30.0  # seconds to wait for another process's write before giving up


class _Ticket(Generic[R]):
    """One thread's work, to be done in a shared transaction."""

    __slots__ = ("asked_at", "error", "is_done", "leads", "name", "result", "turn", "work")

    def __init__(self, name: str, work: Callable[[SQLiteTransaction], R]) -> None:
        self.name = name
        self.work = work
        self.asked_at = time.perf_counter()
        self.is_done = False
        self.leads = False  # this ticket's thread commits next
        self.turn = threading.Lock()  # released when the ticket is done, or when it is to lead
        self.turn.acquire()
        self.result: R
        self.error: BaseException | None = None


class Database:
    """A file and this process's connections to it. Opened on first use; safe for threads and across fork."""

    def __init__(
        self,
        path: Path,
        options: Options,
        shared: Shared,
        prepare: Callable[[sqlite3.Connection], None],
        after_commit: Callable[[], None],
        now: clock.Now,
    ) -> None:
        self.path = path
        self._file = DatabaseFile(path, options.synchronous, prepare)
        self.options = options
        self.meter = CallMetrics()
        self._after_commit = after_commit
        self._shared = shared
        self._now = now
        self._forget()
        _databases.add(self)

    def _forget(self) -> None:
        self._open = threading.Event()  # cleared for the moment of a fork: no call begins then
        self._open.set()
        self._line_lock = threading.Lock()  # guards the two below
        self._pending: deque[_Ticket[Any]] = deque()
        self._has_leader = False
        self._lock = threading.Lock()  # the thread that holds it may use the writer
        self._writer: sqlite3.Connection | None = None
        self._files = 0  # how many were given up because they were removed or replaced
        self._readers: list[sqlite3.Connection] = []
        self._readers_lock = threading.Lock()
        self._version_reader: sqlite3.Connection | None = None
        self._version_file = 0  # of which file, by number
        self._version_lock = threading.Lock()
        self.readers_open = 0
        self._next_checkpoint = 0.0
        self._checkpointed_version = -1
        self._checkpoint_failed = False

    # --- writing --------------------------------------------------------------------------------------------------

    def write(self, name: str, work: Callable[[SQLiteTransaction], R]) -> R:
        """Run `work` in a transaction, committed when this returns; all of it or nothing."""
        self._wait_for_fork()
        ticket = _Ticket(name, work)
        wakes = False
        try:
            with self._line_lock:
                self._pending.append(ticket)
                ticket.leads = not self._has_leader
                self._has_leader = True
            if not ticket.leads:
                ticket.turn.acquire()
            if not ticket.is_done:
                with self._lock:
                    wakes = self._commit_together(ticket)
        except BaseException:
            self._withdraw(ticket)
            raise
        finally:
            if ticket.leads:
                self._pass_on()
        if wakes:
            with suppress(Exception):  # a hint that fails must not fail a write that is stored
                self._after_commit()
        if ticket.error is not None:
            raise ticket.error
        return ticket.result

    def _pass_on(self) -> None:
        """Make the next ticket lead. The threads whose work is done do not wait for the next commit."""
        with self._line_lock:
            self._has_leader = bool(self._pending)
            if self._pending:
                self._pending[0].leads = True
                self._pending[0].turn.release()

    def _withdraw(self, ticket: _Ticket[Any]) -> None:
        """The caller was interrupted while it waited: its work must not be done any more."""
        with self._line_lock, suppress(ValueError):
            self._pending.remove(ticket)

    def _commit_together(self, own: _Ticket[Any]) -> bool:
        """Do the pending work and commit it. True: jobs were queued, and a waiter should be woken."""
        with self._line_lock:
            tickets = [self._pending.popleft() for _ in range(min(len(self._pending), SHARED_COMMIT))]
        try:
            self._give_up_lost_file()
            connection = self._writer or self._open_writer()
            self._begin(connection)
            began_at = time.perf_counter()
            try:
                shared = self._do_all(tickets, connection)
                shared.flush()
                wal.allocate(self._file.log)
                connection.execute("COMMIT")
                if shared.names:
                    self._shared.names.add(shared.names)
            except BaseException as error:
                if not isinstance(error, Exception) and not connection.in_transaction:
                    self._report(tickets, began_at, own)  # the interrupt came after the commit
                    raise
                _roll_back(connection)
                raise
        except Exception as error:  # noqa: BLE001 - the callers get it
            self._fail(tickets, error, own)
            return False
        except BaseException:
            # This thread was interrupted. The work of the others is undone too, so one of them does it again.
            with self._line_lock:
                undone = [ticket for ticket in reversed(tickets) if ticket is not own and not ticket.is_done]
                self._pending.extendleft(undone)
            raise
        try:
            self._report(tickets, began_at, own)
        finally:
            for (
                ticket
            ) in tickets:  # even if this thread is interrupted here: everything is stored, and no thread may wait on
                if not ticket.is_done:
                    _release(ticket, own)
        return shared.wakes

    def _do_all(self, tickets: Sequence[_Ticket[Any]], connection: sqlite3.Connection) -> SQLiteTransaction:
        shared = SQLiteTransaction(connection, self._shared, self._now())
        if len(tickets) == 1:
            # A single call that fails is undone with the whole transaction, without a savepoint.
            tickets[0].result = tickets[0].work(shared)
            return shared
        for ticket in tickets:
            self._do(ticket, shared)
        return shared

    def _do(self, ticket: _Ticket[Any], shared: SQLiteTransaction) -> None:
        """Do the work of one of several tickets. If it fails, only its own writes are undone."""
        ticket.error = None
        try:
            ticket.result = shared.nested(ticket.work)
        except sqlite3.OperationalError:
            raise  # a problem of the file, not of this call: the whole transaction fails
        except Exception as error:  # noqa: BLE001 - the caller gets it
            ticket.error = self._translated(error)

    def _translated(self, error: Exception) -> Exception:
        if isinstance(error, OverflowError | UnicodeEncodeError | sqlite3.ProgrammingError | sqlite3.InterfaceError):
            return BadValue("a value cannot be stored or looked for", why=str(error))
        return translate(error, self.path) if isinstance(error, sqlite3.Error) else error

    def _fail(self, tickets: Sequence[_Ticket[Any]], error: Exception, own: _Ticket[Any]) -> None:
        for ticket in tickets:
            ticket.error = self._translated(error)
            _release(ticket, own)

    def _report(self, tickets: Sequence[_Ticket[Any]], began_at: float, own: _Ticket[Any]) -> None:
        run = time.perf_counter() - began_at
        for ticket in tickets:
            self.meter.record(ticket.name, began_at - ticket.asked_at, run)
            _release(ticket, own)

    def _begin(self, connection: sqlite3.Connection) -> None:
        """Take the file's write lock. SQLite's own busy handler sleeps too long to be fair."""
        self._retry_busy(lambda: connection.execute("BEGIN IMMEDIATE"))

    def _retry_busy(self, action: Callable[[], R]) -> R:
        began_at = time.monotonic()
        deadline, soon = began_at + self.options.patience, began_at + 0.5
        pause = 0.000_2
        while True:
            try:
                return action()
            except sqlite3.OperationalError as error:
                if not _is_busy(error) or time.monotonic() >= deadline:
                    raise
                self.meter.busy_retries += 1
                time.sleep(random.uniform(0.5, 1.5) * pause)
                # Others hold the lock for milliseconds; a longer sleep would leave the file idle.
                pause = min(pause * 1.5, 0.002 if time.monotonic() < soon else 0.02)

    # --- reading --------------------------------------------------------------------------------------------------

    def read(self, name: str, sql: str, parameters: Sequence[Any] = ()) -> list[Row]:
        """All rows of one query, as of one moment."""
        return self.read_with(name, lambda connection: connection.execute(sql, parameters).fetchall())

    def read_with(self, name: str, work: Callable[[sqlite3.Connection], R]) -> R:
        """Several queries on one connection."""
        self._wait_for_fork()
        asked_at = time.perf_counter()
        try:
            file = self._check_file()
            connection = self._take_reader()
            began_at = time.perf_counter()
            try:
                result = work(connection)
            finally:
                self._give_reader_back(connection, file)
        except (sqlite3.Error, OverflowError, UnicodeEncodeError) as error:
            raise self._translated(error) from error
        self.meter.record(name, began_at - asked_at, time.perf_counter() - began_at)
        return result

    @property
    def is_open(self) -> bool:
        """Whether this process has opened the file, with its tables, and holds it open."""
        return self._writer is not None

    def ensure_prepared(self) -> None:
        """The file and its tables are there when this returns."""
        self.read_with("prepare", lambda _: None)

    def version(self) -> int:
        """A number that changes with every commit of any process. It is a connection's own count of the commits of
        others, so one connection always reads it."""
        self._wait_for_fork()
        with self._version_lock:
            try:
                file = self._check_file()
                if self._version_reader is not None and self._version_file != file:
                    self._give_reader_back(self._version_reader, self._version_file)
                    self._version_reader = None
                if self._version_reader is None:
                    self._version_reader, self._version_file = self._take_reader(), file
                number: int = self._version_reader.execute("PRAGMA data_version").fetchone()[0]
            except sqlite3.Error as error:
                raise translate(error, self.path) from error
            return number

    def checkpoint(self) -> None:
        """Write the log back into the file, every few seconds, while others read and write. SQLite itself would do so
        at the end of some commit, whose caller then waits for tens of milliseconds. A failure is only logged: what is
        in the log is stored, and a foreman must be able to read from a full disk."""
        if time.monotonic() < self._next_checkpoint:
            return
        self._next_checkpoint = time.monotonic() + CHECKPOINT_EVERY
        version = self.version()
        if version == self._checkpointed_version:
            return
        self._checkpointed_version = version
        try:
            with self._version_lock:  # no fork happens meanwhile
                connection = self._file.connect()
                try:
                    connection.execute("PRAGMA wal_checkpoint(PASSIVE)")
                finally:
                    connection.close()
        except sqlite3.Error as error:
            if not self._checkpoint_failed:
                import logging  # slow to import, and rarely needed

                log = logging.getLogger("packhorse.storage")
                log.warning("%s: its log could not be written back, and grows: %s", self.path, error)
            self._checkpoint_failed = True
        else:
            self._checkpoint_failed = False

    def _take_reader(self) -> sqlite3.Connection:
        while True:
            with self._readers_lock:
                if self._readers:
                    return self._readers.pop()
                if self._writer is not None:
                    self.readers_open += 1  # before it is open: a fork must wait for it
                    break
            with self._lock:
                if self._writer is None:
                    self._open_writer()  # creates the file and its tables, which a reader may not
        try:
            connection = self._file.connect()
            connection.execute(f"PRAGMA busy_timeout = {round(self.options.patience * 1000)}")
            connection.execute("PRAGMA query_only = ON")
        except BaseException:
            with self._readers_lock:
                self.readers_open -= 1
            raise
        return connection

    def _give_reader_back(self, connection: sqlite3.Connection, file: int) -> None:
        with self._readers_lock:
            if file == self._files:
                self._readers.append(connection)
                return
            self.readers_open -= 1
        connection.close()

    # --- the file -------------------------------------------------------------------------------------------------

    def refuse_mismatch(self) -> None:
        """Raise StorageUnavailable if the file that is there must not be opened by any connection."""
        with self._lock:
            self._file.refuse_mismatch()

    def _check_file(self) -> int:
        """The number of the file that is there. Called before a reader is taken."""
        if self._is_lost():
            with self._lock:
                self._give_up_lost_file()
        return self._files

    def _is_lost(self) -> bool:
        """Whether our file was removed or replaced."""
        return self._writer is not None and self._file.is_lost()

    def _give_up_lost_file(self) -> None:
        """Close a file that is no longer there; called under the lock. SQLite would continue to write into it. When the
        connections close, SQLite sees that the file is gone and does not touch the log of another."""
        if not self._is_lost():
            return
        self._file.refuse_mismatch()  # before closing: should our file come back, we continue with it
        with self._readers_lock:
            self._files += 1
            idle, self._readers = self._readers, []
            self.readers_open -= len(idle)
            writer, self._writer = self._writer, None
        for connection in (writer, *idle):
            if connection is not None:
                connection.close()
        self._file.forget()
        self._shared.names.clear()

    def _open_writer(self) -> sqlite3.Connection:
        self._file.create()
        self._writer = self._retry_busy(self._file.connect_writer)
        self._file.note_wal()
        return self._writer

    # --- fork -----------------------------------------------------------------------------------------------------

    def prepare_fork(self) -> bool:
        """Called before a fork: let the current write end, begin no other, and close what is open.

        SQLite keeps its locks in memory that the child would inherit: the child would believe that it holds locks that
        only the parent has, and write into a log that others have removed. With nothing open, nothing is inherited. If
        the lock is taken for long, its holder waits for another process and has no transaction open.
        """
        self._open.clear()
        if not self._version_lock.acquire(timeout=_FORK_PATIENCE):
            self._open.set()
            return False
        if not self._lock.acquire(timeout=_FORK_PATIENCE):
            self._version_lock.release()
            self._open.set()
            return False
        deadline = time.monotonic() + _FORK_PATIENCE
        while True:
            with self._readers_lock:  # a later reader finds no writer, and waits for the lock
                if self.connections()[1] <= 1 or time.monotonic() >= deadline:
                    self._close_all(is_for_good=False)
                    return True
            time.sleep(0.001)  # a read is under way in another thread

    def resume_after_fork(self) -> None:
        """Called in the parent after the fork."""
        self._lock.release()
        self._version_lock.release()
        self._open.set()

    def _wait_for_fork(self) -> None:
        if not self._open.is_set():
            self._open.wait(2 * _FORK_PATIENCE)

    def reset_after_fork(self) -> None:
        """Called in the child after the fork: the threads of the parent, and the locks that they hold, are not here."""
        if self._writer is not None or self._readers or self._version_reader is not None:
            _inherited.append((self._writer, self._readers, self._version_reader))
        self.meter.reset_lock()
        self._forget()

    # --- closing --------------------------------------------------------------------------------------------------

    def connections(self) -> tuple[int, int]:
        """(open, in use) in this process."""
        watching = self._version_reader is not None
        in_use = self.readers_open - len(self._readers) - watching + self._lock.locked()
        return self.readers_open + (self._writer is not None), in_use

    def close(self) -> None:
        """Close what is not in use. The next call opens again."""
        with self._version_lock, self._lock, self._readers_lock:  # in the order in which `version` takes them
            self._close_all(is_for_good=True)

    def _close_all(self, is_for_good: bool) -> None:
        if self._version_reader is not None:
            self._readers.append(self._version_reader)
            self._version_reader = None
        with self._file.closing(is_for_good):
            for connection in self._readers:
                connection.close()
            self.readers_open -= len(self._readers)
            self._readers.clear()
            if self._writer is not None:
                self._writer.close()
                self._writer = None


_FORK_PATIENCE = 2.0
_databases: weakref.WeakSet[Database] = weakref.WeakSet()
_prepared_for_fork: list[Database] = []


def _before_fork() -> None:
    _prepared_for_fork.extend(database for database in list(_databases) if database.prepare_fork())


def _after_fork_in_parent() -> None:
    while _prepared_for_fork:
        _prepared_for_fork.pop().resume_after_fork()


def _after_fork_in_child() -> None:
    _prepared_for_fork.clear()
    for database in list(_databases):
        database.reset_after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)


def _release(ticket: _Ticket[Any], own: _Ticket[Any]) -> None:
    """Let its thread continue."""
    ticket.is_done = True
    if ticket is not own:
        ticket.turn.release()


def _roll_back(connection: sqlite3.Connection) -> None:
    try:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
    except sqlite3.Error:
        pass  # report the first error


def _is_busy(error: sqlite3.Error) -> bool:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
