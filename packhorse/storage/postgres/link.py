"""One connection to the server, as the storage uses it: statements with `$1` marks, and the schema's own words."""

from __future__ import annotations

import select
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import psycopg
from psycopg import errors, pq
from psycopg.types.numeric import Int8BinaryDumper

from packhorse.storage.sql.dialect import Dialect
from packhorse.storage.sql.transaction import Cursor

Pg = psycopg.Connection[tuple[Any, ...]]


def has_not_hung_up(connection: Pg) -> bool:
    """Does the server still listen? On a connection that nobody uses it says its goodbye, or it says nothing."""
    if connection.closed:
        return False
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN | select.POLLHUP | select.POLLERR)
    if not poll.poll(0):
        return True
    try:
        connection.pgconn.consume_input()  # a notice, perhaps; or the end
    except psycopg.OperationalError:
        return False
    return connection.pgconn.status is pq.ConnStatus.OK


class Link:
    """A connection. Used by one thread at a time."""

    def __init__(self, connection: Pg, sql: Mapping[str, str], dialect: Dialect) -> None:
        self.connection = connection
        self.sql = sql
        self.dialect = dialect
        self._used_at = time.monotonic()
        self.looked_for = 0  # microseconds for which lines were looked for, before the jobs in them
        self.paused: Collection[str] = ()  # queues that had jobs then which a pause keeps in line
        connection.adapters.register_dumper(int, Int8BinaryDumper)  # one type for numbers: one plan for a statement
        self._cursor = psycopg.RawCursor(connection)

    def execute(self, sql: str, values: Sequence[Any] = ()) -> Cursor:
        """The rows must be fetched before the next statement."""
        return self._cursor.execute(sql, values or None)

    def rows(self, sql: str, values: Sequence[Any] = ()) -> list[Any]:
        """All rows of a statement; none if it is not one that answers."""
        self.execute(sql, values)
        return [] if self._cursor.rownumber is None else self._cursor.fetchall()

    def executemany(self, sql: str, rows: Sequence[Sequence[Any]]) -> None:
        self._cursor.executemany(sql, rows)

    def begin(self, words: str) -> list[Any]:
        """Begin a transaction with several statements at once; the rows of the last."""
        self._cursor.execute(words, prepare=False)
        while self._cursor.nextset():
            pass
        return self._cursor.fetchall() if self._cursor.description else []

    def undo(self, savepoint: str) -> None:
        """Back to the savepoint, unless the connection is gone."""
        with suppress(psycopg.Error):
            self._cursor.execute(f"ROLLBACK TO {savepoint}; RELEASE {savepoint}", prepare=False)

    @contextmanager
    def pipeline(self) -> Iterator[Pipeline]:
        """Several statements in one round trip."""
        with self.connection.pipeline():
            yield Pipeline(self.connection)

    @property
    def is_idle(self) -> bool:
        """Is it between two transactions, and whole?"""
        return not self.connection.closed and self.connection.info.transaction_status is pq.TransactionStatus.IDLE

    @property
    def is_alive(self) -> bool:
        # A call just before proves that it lives; else it is asked, which costs less than finding out in a call.
        return time.monotonic() - self._used_at < 0.05 or has_not_hung_up(self.connection)

    def is_fit_after(self, error: BaseException | None) -> bool:
        if error is not None and not self.is_idle:
            with suppress(psycopg.Error):  # then it is not idle
                self.connection.rollback()
        if isinstance(error, errors.ReadOnlySqlTransaction):
            return False  # its server is the primary no longer, perhaps; a new connection may lead to the one that is
        self._used_at = time.monotonic()
        return self.is_idle

    def close(self) -> None:
        with suppress(psycopg.Error):
            self.connection.close()


class PooledLink(Link):
    """A connection through a pooler, where every transaction may meet another session of the server: each brings its
    settings with it, those of a single statement too."""

    def __init__(self, connection: Pg, sql: Mapping[str, str], dialect: Dialect, opening: Sequence[str]) -> None:
        super().__init__(connection, sql, dialect)
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
    """Statements that are sent together; their rows can be fetched when all have been sent."""

    def __init__(self, connection: Pg) -> None:
        self._connection = connection

    def execute(self, sql: str, values: Sequence[Any] = ()) -> Cursor:
        return psycopg.RawCursor(self._connection).execute(sql, values or None)
