"""The server: connections with our settings, lent by a pool, and calls on them. Repeats calls that lost a race with
others, and translates errors."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

import psycopg
from psycopg import errors
from psycopg.conninfo import conninfo_to_dict

from packhorse.core import clock
from packhorse.storage.pool import Pool
from packhorse.storage.postgres.connection import ADAPTERS, Pg, PooledConnection, PostgresConnection
from packhorse.storage.postgres.driver_errors import is_lost, may_pass, not_understood, translate, without_password
from packhorse.storage.postgres.transaction import PostgresTransaction
from packhorse.storage.sql.server import REPEATED_CALLS, LostRaceError
from packhorse.storage.sql.transaction import Shared

R = TypeVar("R")

TRIES = 6
"""How often a call is tried that loses to others: deadlocks, lock timeouts."""

_LOST_RACES = (errors.DeadlockDetected, errors.SerializationFailure, errors.LockNotAvailable, LostRaceError)

# A transaction that has waited for a lock must see what its holder wrote, whatever the server's default is. Plans must
# not depend on statistics: those of a table that fills and empties all day are never true. With these settings, every
# statement uses the index that was made for it.
_SESSION = {
    "default_transaction_isolation": "read committed",
    "statement_timeout": "30s",
    "lock_timeout": "5s",
    "idle_in_transaction_session_timeout": "60s",
    "array_nulls": "on",  # else a null in a list would be the text NULL
    "enable_seqscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "enable_bitmapscan": "off",
    "plan_cache_mode": "force_generic_plan",
    "jit": "off",
}
# So that a connection lost in the network is noticed within a minute.
_CONNECTION = {
    "application_name": "packhorse",
    "connect_timeout": 10,
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}
# A pooled session is used by others in the next moment: all settings are for one transaction.
_POOLED = (
    "BEGIN ISOLATION LEVEL READ COMMITTED",
    "SELECT "
    + ", ".join(
        f"set_config('{name}', '{_SESSION[name]}', true)"
        for name in ("statement_timeout", "lock_timeout", "array_nulls")
    ),
)


class Options(NamedTuple):
    """What the URL may choose."""

    schema: str = "packhorse"
    pgbouncer: bool = False  # a transaction may run on any connection: no session state can be used
    connections: int = 10
    patience: float = 10.0  # seconds to wait for a connection that the server does not give just now


class Database:
    """A database server as one storage uses it. Safe for threads and across fork."""

    def __init__(
        self,
        address: str,
        options: Options,
        shared: Shared,
        prepare: Callable[[PostgresConnection], None],
        now: clock.Now | None,
        after_commit: Callable[[PostgresTransaction], None],
    ) -> None:
        self.address = address
        self.options = options
        self._shared = shared
        self._sql = shared.sql
        self._dialect = shared.dialect
        self._now = now
        self._after_commit = after_commit
        self._begin_words = "; ".join(_POOLED) if options.pgbouncer else "BEGIN"
        self.pool = Pool(
            without_password(address),
            options.connections,
            options.patience,
            connect=lambda: self._wrap(self.connect()),
            prepare=prepare,
            may_pass=_may_pass,
        )
        self.lent = self.pool.lent
        self.meter = self.pool.meter

    # --- calls ----------------------------------------------------------------------------------------------------

    def write(self, name: str, work: Callable[[PostgresTransaction], R]) -> R:
        """Run `work` in a transaction, committed when this returns; all of it or nothing."""

        def once(connection: PostgresConnection) -> tuple[R, PostgresTransaction]:
            tx = PostgresTransaction(connection, self._shared, *self._begin(connection))
            result = work(tx)
            tx.flush()
            connection.begin("COMMIT")
            return result, tx

        result, tx = self._repeatedly(name, once)
        self._shared.names.add(tx.names)
        self._after_commit(tx)
        return result

    def _begin(self, connection: PostgresConnection) -> tuple[int, str | None]:
        """The time, and the mark of a move. Setting a mark waits until this transaction has ended."""
        ((now, mark),) = connection.begin(
            f"{self._begin_words}; {self._sql['share_writing']}; {self._sql['now_and_move']}"
        )
        return int(now) if self._now is None else self._now(), mark

    def run(self, name: str, sql: str, values: Sequence[Any] = ()) -> list[Any]:
        """Run one statement that is a whole call."""
        return self._repeatedly(name, lambda connection: connection.rows(sql, values))

    def read(self, name: str, sql: str, values: Sequence[Any] = ()) -> list[Any]:
        """All rows of one query, as of one moment."""
        return self.run(name, sql, values)

    def read_with(self, name: str, work: Callable[[PostgresConnection], R]) -> R:
        """Run several statements on one connection, each in a transaction of its own."""
        return self._repeatedly(name, work)

    def _repeatedly(self, name: str, work: Callable[[PostgresConnection], R]) -> R:
        asked_at = time.perf_counter()
        for left in reversed(range(TRIES)):
            connection: PostgresConnection | None = None
            try:
                with self.lent() as connection:
                    began_at = time.perf_counter()
                    result = work(connection)
                self.meter.record(name, began_at - asked_at, time.perf_counter() - began_at)
                return result
            except _LOST_RACES as error:
                if not left:
                    raise translate(error, self.address) from error
                self.meter.busy_retries += 1
                time.sleep(random.uniform(0.2, 1.0) * 0.05 * (TRIES - left))
            except (psycopg.Error, OverflowError, UnicodeEncodeError) as error:
                if connection is None or not left or name not in REPEATED_CALLS or not is_lost(error):
                    raise translate(error, self.address) from error
        raise AssertionError("the last try returns or raises")

    # --- connections ----------------------------------------------------------------------------------------------

    @contextmanager
    def unprepared(self) -> Iterator[PostgresConnection]:
        """A connection for migrating, whatever version the schema has."""
        try:
            connection = self.pool.connect_patiently()
            try:
                yield connection
            finally:
                connection.close()
        except psycopg.Error as error:
            raise translate(error, self.address) from error

    def _wrap(self, driver: Pg) -> PostgresConnection:
        if self.options.pgbouncer:
            return PooledConnection(driver, self._sql, self._dialect, _POOLED)
        return PostgresConnection(driver, self._sql, self._dialect)

    def connect(self) -> Pg:
        """A new connection with our settings. Those in the address take precedence."""
        said = conninfo_to_dict(self.address)
        asked: dict[str, Any] = {name: value for name, value in _CONNECTION.items() if name not in said}
        # A role or the environment may set an encoding that lacks characters; from a database without an encoding
        # psycopg would return bytes.
        asked |= {"autocommit": True, "context": ADAPTERS, "client_encoding": "UTF8"}
        if self.options.pgbouncer:
            asked["prepare_threshold"] = None
        else:
            ours = ("-c {}={}".format(name, value.replace(" ", r"\ ")) for name, value in _SESSION.items())
            asked["options"] = " ".join([str(said.get("options", "")), *ours])
        try:
            return psycopg.connect(self.address, **asked)
        except psycopg.ProgrammingError as error:  # no server was contacted yet
            raise not_understood(error, self.address) from None


def _may_pass(error: Exception, has_answered: bool) -> bool:
    return isinstance(error, psycopg.OperationalError) and (has_answered or may_pass(error))
