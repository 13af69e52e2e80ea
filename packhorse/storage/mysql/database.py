"""The server, and this process's connections to it: opened on first use, lent to one thread at a time, never shared
with a forked child. Repeats what lost a race with others, and tells errors in our own words."""

from __future__ import annotations

import os
import random
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import pymysql
from pymysql.constants import CLIENT

from packhorse import clock
from packhorse.errors import PackhorseError, StorageUnavailable
from packhorse.storage.meter import Meter
from packhorse.storage.mysql.address import Address
from packhorse.storage.mysql.link import Link
from packhorse.storage.mysql.transaction import NotAsExpectedError, Transaction
from packhorse.storage.mysql.trouble import LOST_RACES, code_of, lacks_package, may_pass, refuse_old, translate
from packhorse.storage.sql.dialect import Dialect

R = TypeVar("R")

TRIES = 8
"""How often a call is made that others make fail: deadlocks, locks that are not given."""

LOCK_PATIENCE = 5
"""Seconds that a statement waits for a lock."""

# Each server reads the comment that is meant for it: neither knows the other's word for how long a statement may take.
# MariaDB would turn long lists into temporary tables, and then walk over all jobs.
_SESSION = (
    "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",
    f"SET SESSION sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION', innodb_lock_wait_timeout = {LOCK_PATIENCE},"
    " lock_wait_timeout = 30"
    " /*M! , max_statement_time = 30, in_predicate_conversion_threshold = 0 */"
    " /*!80000 , max_execution_time = 30000 */",
)
_FOR_MIGRATING = "SET SESSION lock_wait_timeout = 300 /*M! , max_statement_time = 0 */"

# Connections inherited through fork: the child must not use them, nor say goodbye for the parent.
_inherited: list[object] = []


class Database:
    """A database server as one storage uses it. Safe for threads and across fork."""

    def __init__(
        self,
        address: Address,
        sql: Mapping[str, str],
        dialect: Dialect,
        prepare: Callable[[Link], None],
        now: clock.Now | None,
        after_commit: Callable[[Transaction], None],
    ) -> None:
        self.address = address
        self.meter = Meter()
        self._sql = sql
        self._dialect = dialect
        self._prepare = prepare
        self._now = now
        self._after_commit = after_commit
        self._forget()
        _databases.add(self)

    def _forget(self) -> None:
        self._lock = threading.Lock()  # guards what follows, for moments
        self._preparing = threading.Lock()
        self._idle: list[Link] = []
        self._room = threading.BoundedSemaphore(self.address.connections)
        self._is_prepared = False
        self._has_answered = False
        self.opened = 0

    # --- calls ----------------------------------------------------------------------------------------------------

    def write(self, name: str, work: Callable[[Transaction], R]) -> R:
        """Do `work` in a transaction, committed when this returns; all of it or nothing."""

        def once(link: Link) -> tuple[R, Transaction]:
            tx = self._begin(link)
            result = work(tx)
            tx.commit()
            return result, tx

        result, tx = self._repeatedly(name, once)
        self._after_commit(tx)
        return result

    def _begin(self, link: Link) -> Transaction:
        """With the time, and the mark of a move; whoever puts one there waits until this transaction has ended."""
        _, answer = link.script(["START TRANSACTION", self._sql["share_writing"]])
        ((mark, now),) = answer.rows
        return Transaction(link, int(now) if self._now is None else self._now(), mark)

    def read(self, name: str, sql: str, values: Sequence[Any] = ()) -> list[Any]:
        """All rows of one query, as of one moment."""
        return self._repeatedly(name, lambda link: link.rows(sql, values))

    def read_with(self, name: str, work: Callable[[Link], R]) -> R:
        """Several statements on one connection, each for itself."""
        return self._repeatedly(name, work)

    def _repeatedly(self, name: str, work: Callable[[Link], R]) -> R:
        asked_at = time.perf_counter()
        for left in reversed(range(TRIES)):
            try:
                with self.lent() as link:
                    began_at = time.perf_counter()
                    result = work(link)
                self.meter.record(name, began_at - asked_at, time.perf_counter() - began_at)
                return result
            except (pymysql.Error, OverflowError, UnicodeEncodeError, OSError) as error:
                if not left or code_of(error) not in LOST_RACES:
                    raise self.told(error) from error
                self.meter.busy_retries += 1
                time.sleep(random.uniform(0.2, 1.0) * 0.02 * (TRIES - left))
        raise AssertionError("the last try returns or raises")

    def told(self, error: Exception) -> Exception:
        """An error in our own words."""
        return translate(error, self.address.shown)

    # --- connections ----------------------------------------------------------------------------------------------

    @contextmanager
    def lent(self) -> Iterator[Link]:
        """A connection for this thread alone."""
        room = self._room
        if not room.acquire(timeout=self.address.patience):
            raise StorageUnavailable(
                f"all {self.address.connections} connections of this process to {self.address.shown} are in use",
                hint="raise ?connections= in the storage address",
            )
        try:
            link = self._take()
            try:
                yield link
            except (PackhorseError, pymysql.Error, NotAsExpectedError, UnicodeEncodeError):
                self._take_back(link, is_sound=link.roll_back())
                raise
            except BaseException:
                self._take_back(link, is_sound=False)  # who knows in the middle of what
                raise
            self._take_back(link, is_sound=True)
        finally:
            room.release()

    @contextmanager
    def unprepared(self) -> Iterator[Link]:
        """A connection for migrating, whatever the tables are like."""
        try:
            link = self._connect_patiently()
            try:
                link.script([_FOR_MIGRATING])  # an index over many jobs takes its time
                yield link
            finally:
                link.close()
        except pymysql.Error as error:
            raise self.told(error) from error

    def _take(self) -> Link:
        while True:
            with self._lock:
                link = self._idle.pop() if self._idle else None
            if link is None:
                return self._open()
            if link.is_alive:
                return link
            self._drop(link)

    def _take_back(self, link: Link, *, is_sound: bool) -> None:
        if not is_sound:
            self._drop(link)
            return
        with self._lock:
            self._idle.append(link)

    def _drop(self, link: Link) -> None:
        link.close()
        with self._lock:
            self.opened -= 1

    def _open(self) -> Link:
        link = self._connect_patiently()
        with self._lock:
            self.opened += 1
        if not self._is_prepared:
            with self._preparing:
                if not self._is_prepared:
                    try:
                        refuse_old(link.connection.get_server_info())
                        self._prepare(link)
                    except BaseException:
                        self._drop(link)
                        raise
                    self._is_prepared = True
        return link

    def _connect_patiently(self) -> Link:
        """A server that is full, or starting again, may have room in a moment; one that never answered is not there."""
        deadline = time.monotonic() + self.address.patience
        pause = 0.02
        while True:
            try:
                link = Link(self._connect(), self._sql, self._dialect)
                self._has_answered = True
                return link
            except (pymysql.Error, OSError) as error:
                is_passing = self._has_answered or (isinstance(error, pymysql.Error) and may_pass(error))
                if not is_passing or time.monotonic() + pause > deadline:
                    raise self.told(error) from error
                time.sleep(random.uniform(0.5, 1.5) * pause)
                pause = min(pause * 2, 0.5)

    def _connect(self) -> Any:
        """A new connection with our settings. Several statements may go in one trip, and an UPDATE counts the rows that
        it has found, changed or not."""
        try:
            connection = pymysql.connect(
                **self.address.for_driver(),
                charset="utf8mb4",
                autocommit=True,
                client_flag=CLIENT.MULTI_STATEMENTS | CLIENT.FOUND_ROWS,
                connect_timeout=10,
                read_timeout=90,
                write_timeout=90,
                program_name="packhorse",
            )
        except RuntimeError as error:  # so the driver says that a package is missing for this way to log in
            raise lacks_package(error, self.address.shown) from error
        try:
            with connection.cursor() as cursor:
                cursor.execute(";".join(_SESSION))
                while cursor.nextset():
                    pass
        except BaseException:
            connection.close()
            raise
        return connection

    def connections(self) -> tuple[int, int]:
        """(open, in use) in this process."""
        with self._lock:
            return self.opened, self.opened - len(self._idle)

    def close(self) -> None:
        """Close what is not in use. The next call opens again."""
        with self._lock:
            idle, self._idle = self._idle, []
            self._is_prepared = False
        for link in idle:
            self._drop(link)

    def begin_anew(self) -> None:
        """In a forked child: the parent's connections, and the locks that its threads hold, are not ours."""
        _inherited.append(self._idle)
        self.meter.part_ways()
        self._forget()


_databases: weakref.WeakSet[Database] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for database in list(_databases):
        database.begin_anew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
