"""The server: connections with our settings, lent by a pool, and calls on them. Repeats calls that lost a race with
others, and translates errors."""

from __future__ import annotations

import random
import ssl
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import pymysql
import pymysql.connections
from pymysql.constants import CLIENT

from packhorse.core import clock
from packhorse.storage.mysql.address import Address, trusting
from packhorse.storage.mysql.connection import MySQLConnection
from packhorse.storage.mysql.driver_errors import (
    LOST_RACES,
    code_of,
    is_lost,
    lacks_package,
    may_pass,
    refuse_old,
    refuse_others,
    translate,
)
from packhorse.storage.mysql.transaction import MySQLTransaction
from packhorse.storage.pool import Pool
from packhorse.storage.sql.server import REPEATED_CALLS, LostRaceError
from packhorse.storage.sql.transaction import Shared

R = TypeVar("R")

TRIES = 8
"""How often a call is tried that loses to others: deadlocks, lock timeouts."""

LOCK_PATIENCE = 5
"""Seconds that a statement waits for a lock."""

# Each server reads the comments that are meant for it: their settings for how long a statement may take differ. MariaDB
# would turn long lists into temporary tables, and then scan all jobs.
_SESSION = (
    "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",
    f"SET SESSION sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION', innodb_lock_wait_timeout = {LOCK_PATIENCE},"
    " lock_wait_timeout = 30, group_concat_max_len = 67108864,"  # which MariaDB cuts lists in JSON at, too
    # A server may have other defaults: a commit that begins the next transaction and leaves it open, unique indexes
    # that are not checked, lists that end too soon.
    " completion_type = NO_CHAIN, unique_checks = 1, sql_safe_updates = 0, sql_select_limit = 18446744073709551615"
    " /*M! , max_statement_time = 30, in_predicate_conversion_threshold = 0 */"
    " /*!80000 , max_execution_time = 30000 */",
    "SELECT @@max_allowed_packet",
)
_FOR_MIGRATING = f"SET SESSION lock_wait_timeout = {LOCK_PATIENCE} /*M! , max_statement_time = 0 */"


class _Connection(pymysql.connections.Connection):
    """Where encryption is preferred but not required, the driver would read all certificates of this machine for each
    connection, which takes 25 ms, and verify nothing."""

    def _create_ssl_ctx(self, demands: Any) -> ssl.SSLContext:
        return demands if isinstance(demands, ssl.SSLContext) else trusting()


class Database:
    """A database server as one storage uses it. Safe for threads and across fork."""

    def __init__(
        self,
        address: Address,
        shared: Shared,
        prepare: Callable[[MySQLConnection], None],
        now: clock.Now | None,
        after_commit: Callable[[MySQLTransaction], None],
    ) -> None:
        self.address = address
        self._shared = shared
        self._sql = shared.sql
        self._dialect = shared.dialect
        self._prepare = prepare
        self._now = now
        self._after_commit = after_commit
        self.pool = Pool(
            address.shown,
            address.connections,
            address.patience,
            connect=self._connect,
            prepare=self._prepare_first,
            may_pass=_may_pass,
        )
        self.lent = self.pool.lent
        self.meter = self.pool.meter

    # --- calls ----------------------------------------------------------------------------------------------------

    def write(self, name: str, work: Callable[[MySQLTransaction], R]) -> R:
        """Run `work` in a transaction, committed when this returns; all of it or nothing."""

        def once(connection: MySQLConnection) -> tuple[R, MySQLTransaction]:
            tx = self._begin(connection)
            result = work(tx)
            tx.commit()
            return result, tx

        result, tx = self._repeatedly(name, once)
        self._shared.names.add(tx.names)
        self._after_commit(tx)
        return result

    def _begin(self, connection: MySQLConnection) -> MySQLTransaction:
        """Begin, and read the time and the mark of a move. Setting a mark waits until this transaction has ended."""
        _, answer = connection.script(["START TRANSACTION", self._sql["share_writing"]])
        ((mark, now),) = answer.rows
        return MySQLTransaction(connection, self._shared, int(now) if self._now is None else self._now(), mark)

    def read(self, name: str, sql: str, values: Sequence[Any] = ()) -> list[Any]:
        """All rows of one query, as of one moment."""
        return self._repeatedly(name, lambda connection: connection.rows(sql, values))

    def read_with(self, name: str, work: Callable[[MySQLConnection], R]) -> R:
        """Run several statements on one connection, each in a transaction of its own."""
        return self._repeatedly(name, work)

    def _repeatedly(self, name: str, work: Callable[[MySQLConnection], R]) -> R:
        asked_at = time.perf_counter()
        for left in reversed(range(TRIES)):
            connection: MySQLConnection | None = None
            try:
                with self.lent() as connection:
                    began_at = time.perf_counter()
                    result = work(connection)
                self.meter.record(name, began_at - asked_at, time.perf_counter() - began_at)
                return result
            except (pymysql.Error, OverflowError, UnicodeEncodeError, OSError, LostRaceError) as error:
                is_unknown = connection is not None and name in REPEATED_CALLS and is_lost(error)
                lost_race = isinstance(error, LostRaceError) or code_of(error) in LOST_RACES
                if not left or not (is_unknown or lost_race):
                    raise self.translated(error) from error
                self.meter.busy_retries += 1
                time.sleep(random.uniform(0.2, 1.0) * 0.02 * (TRIES - left))
        raise AssertionError("the last try returns or raises")

    def translated(self, error: Exception) -> Exception:
        """The error as one of ours."""
        return translate(error, self.address.shown)

    # --- connections ----------------------------------------------------------------------------------------------

    @contextmanager
    def unprepared(self) -> Iterator[MySQLConnection]:
        """A connection for migrating, whatever version the tables have."""
        try:
            connection = self.pool.connect_patiently()
            try:
                connection.script([_FOR_MIGRATING])  # building an index over many jobs takes long
                yield connection
            finally:
                connection.close()
        except (pymysql.Error, OSError) as error:
            raise self.translated(error) from error

    def _prepare_first(self, connection: MySQLConnection) -> None:
        ((version, comment),) = connection.rows("SELECT version(), @@version_comment")
        refuse_others(f"{connection.driver.get_server_info()} {version}", str(comment))
        refuse_old(connection.driver.get_server_info())
        self._prepare(connection)

    def _connect(self) -> MySQLConnection:
        """A new connection with our settings. Several statements may go in one trip, and an UPDATE counts the rows that
        it matched, changed or not."""
        try:
            connection = _Connection(
                **self.address.for_driver(),
                charset="utf8mb4",
                autocommit=True,
                client_flag=CLIENT.MULTI_STATEMENTS | CLIENT.FOUND_ROWS,
                connect_timeout=10,
                read_timeout=90,
                write_timeout=90,
                program_name="packhorse",
            )
        except RuntimeError as error:  # a package is missing for this way of logging in
            raise lacks_package(error, self.address.shown) from error
        try:
            with connection.cursor() as cursor:
                cursor.execute(";".join(_SESSION))
                while cursor.nextset():
                    pass
                ((most,),) = cursor.fetchall()
        except BaseException:
            connection.close()
            raise
        return MySQLConnection(connection, self._sql, self._dialect, most)


def _may_pass(error: Exception, has_answered: bool) -> bool:
    return may_pass(error) or (has_answered and isinstance(error, pymysql.Error | OSError))
