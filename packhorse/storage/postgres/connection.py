"""One connection to the server, as the storage uses it: statements with `$1` marks, the statements of one schema, and
values that psycopg converts in its own way, whatever the program has registered with it."""

from __future__ import annotations

import select
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import psycopg
from psycopg import errors, pq
from psycopg.adapt import AdaptersMap
from psycopg.postgres import register_default_adapters, types
from psycopg.types.numeric import Int8BinaryDumper

from packhorse.storage.sql.statements import Dialect
from packhorse.storage.sql.transaction import Cursor

Pg = psycopg.Connection[tuple[Any, ...]]

ADAPTERS = AdaptersMap(types=types)
"""Independent of what a program registers in `psycopg.adapters`."""
register_default_adapters(ADAPTERS)


def can_be_stored(text: str) -> bool:
    """Whether a table can hold this text. PostgreSQL refuses a NUL, even in a condition."""
    return "\0" not in text


def has_not_hung_up(connection: Pg) -> bool:
    """Whether the server is still there. On an idle connection it sends a message before it hangs up, or nothing."""
    if connection.closed:
        return False
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN | select.POLLHUP | select.POLLERR)
    if not poll.poll(0):
        return True
    try:
        connection.pgconn.consume_input()  # a notice, or the end
    except psycopg.OperationalError:
        return False
    return connection.pgconn.status is pq.ConnStatus.OK


class PostgresConnection:
    """A connection. Used by one thread at a time."""

    def __init__(self, driver: Pg, sql: Mapping[str, str], dialect: Dialect) -> None:
        self.driver = driver
        self.sql = sql
        self.dialect = dialect
        self._used_at = time.monotonic()
        self.searched_for = 0  # microseconds of looking for queues with jobs, before the jobs are taken
        self.paused: Collection[str] = ()  # queues that had jobs then and are paused
        driver.adapters.register_dumper(int, Int8BinaryDumper)  # one type for numbers: one plan for a statement
        self._cursor = psycopg.RawCursor(driver)

    def execute(self, sql: str, values: Sequence[Any] = ()) -> Cursor:
        """The rows must be fetched before the next statement."""
        return self._cursor.execute(sql, values or None)

    def rows(self, sql: str, values: Sequence[Any] = ()) -> list[Any]:
        """All rows of a statement; none if it returns no rows."""
        self.execute(sql, values)
        return [] if self._cursor.rownumber is None else self._cursor.fetchall()

    def executemany(self, sql: str, rows: Sequence[Sequence[Any]]) -> None:
        self._cursor.executemany(sql, rows)

    def begin(self, words: str) -> list[Any]:
        """Begin a transaction with several statements in one round trip. Returns the rows of the last."""
        self._cursor.execute(words, prepare=False)
        while self._cursor.nextset():
            pass
        return self._cursor.fetchall() if self._cursor.description else []

    def undo(self, savepoint: str) -> None:
        """Roll back to the savepoint, unless the connection is lost."""
        with suppress(psycopg.Error):
            self._cursor.execute(f"ROLLBACK TO {savepoint}; RELEASE {savepoint}", prepare=False)

    @contextmanager
    def pipeline(self) -> Iterator[Pipeline]:
        """Several statements in one round trip."""
        with self.driver.pipeline():
            yield Pipeline(self.driver)

    @property
    def is_idle(self) -> bool:
        """Whether it is open and between two transactions."""
        return not self.driver.closed and self.driver.info.transaction_status is pq.TransactionStatus.IDLE

    @property
    def is_alive(self) -> bool:
        # A recent call proves it; else the socket is checked, which costs less than a call that fails.
        return time.monotonic() - self._used_at < 0.05 or has_not_hung_up(self.driver)

    def is_fit_after(self, error: BaseException | None) -> bool:
        if error is not None and not self.is_idle:
            with suppress(psycopg.Error):  # then it is not idle
                self.driver.rollback()
        if isinstance(error, errors.ReadOnlySqlTransaction):
            return False  # perhaps the server is no longer the primary; a new connection may reach the one that is
        self._used_at = time.monotonic()
        return self.is_idle

    def close(self) -> None:
        with suppress(psycopg.Error):
            self.driver.close()


class PooledConnection(PostgresConnection):
    """A connection through a pooler. Each transaction may run in another session of the server, so each brings its
    settings, even that of a single statement."""

    def __init__(self, driver: Pg, sql: Mapping[str, str], dialect: Dialect, opening: Sequence[str]) -> None:
        super().__init__(driver, sql, dialect)
        self._opening = opening  # the statements that begin a transaction

    def execute(self, sql: str, values: Sequence[Any] = ()) -> Cursor:
        if not self.is_idle:
            return super().execute(sql, values)
        with self.pipeline():
            return super().execute(sql, values)

    @contextmanager
    def pipeline(self) -> Iterator[Pipeline]:
        with super().pipeline() as pipeline:
            for statement in self._opening:
                pipeline.execute(statement)
            yield pipeline
            pipeline.execute("COMMIT")


class Pipeline:
    """Statements that are sent together; fetch their rows when all have been sent."""

    def __init__(self, connection: Pg) -> None:
        self._connection = connection

    def execute(self, sql: str, values: Sequence[Any] = ()) -> Cursor:
        return psycopg.RawCursor(self._connection).execute(sql, values or None)


class PlainCursor(psycopg.RawCursor[tuple[Any, ...]]):
    """A cursor with `$1` marks and tuples for rows on a caller's connection, whatever adapters that one has."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        super().__init__(connection, row_factory=psycopg.rows.tuple_row)

    @property
    def adapters(self) -> AdaptersMap:
        return ADAPTERS
