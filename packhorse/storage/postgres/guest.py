"""Somebody else's connection to the same server, in the shape of a link: what it does is part of his transaction."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import Any

import psycopg
from psycopg import pq

from packhorse.storage.guest import closed, driver_connection, failed, refused, sqlalchemy_connection, telling
from packhorse.storage.postgres.link import Link
from packhorse.storage.sql.dialect import Dialect
from packhorse.storage.sql.transaction import Cursor

Run = Callable[[str, Sequence[Any]], list[Any]]


class _Rows:
    """What a statement came to, already fetched."""

    def __init__(self, rows: list[Any]) -> None:
        self._rows = rows
        self.rowcount = len(rows)

    def fetchone(self) -> Any:
        return self._rows[0] if self._rows else None

    def fetchall(self) -> list[Any]:
        return self._rows


class GuestLink(Link):
    """A link that opens and closes nothing, and neither begins nor commits."""

    def __init__(self, run: Run, sql: Mapping[str, str], dialect: Dialect) -> None:
        self._run = run
        self.sql = sql
        self.dialect = dialect

    def execute(self, sql: str, values: Sequence[Any] = ()) -> Cursor:
        return _Rows(self._run(sql, values))

    def executemany(self, sql: str, rows: Sequence[Sequence[Any]]) -> None:
        for row in rows:
            self._run(sql, row)

    def undo(self, savepoint: str) -> None:
        self._run(f"ROLLBACK TO {savepoint}", ())


@contextmanager
def guest(given: Any, sql: Mapping[str, str], dialect: Dialect) -> Iterator[GuestLink]:
    """The caller's connection as a link. What fails is undone as far as it is ours; his own work stays."""
    with telling(given):
        run, is_alone = _runner(given)
        link = GuestLink(run, sql, dialect)
        begin, undo, end = ("BEGIN", "ROLLBACK", "COMMIT") if is_alone else _SAVEPOINT
        try:
            run(begin, ())
            yield link
            run(end, ())
        except BaseException:  # somebody's Ctrl-C, too, must not leave our transaction open
            with suppress(Exception):  # the first error is the one to tell
                run(undo, ())
            raise


_SAVEPOINT = ("SAVEPOINT packhorse", "ROLLBACK TO SAVEPOINT packhorse", "RELEASE SAVEPOINT packhorse")


def _runner(given: Any) -> tuple[Run, bool]:
    """How to run a statement, and whether there is no transaction that it could be part of."""
    driver = driver_connection(given)
    if isinstance(driver, psycopg.Connection):
        if driver.closed:
            raise closed(given)
        status = driver.info.transaction_status
        if status is pq.TransactionStatus.INERROR:
            raise failed(given)
        return _by_psycopg(driver), driver.autocommit and status is pq.TransactionStatus.IDLE
    wrapped = sqlalchemy_connection(given)
    if wrapped is not None and wrapped.dialect.name == "postgresql":
        return _by_sqlalchemy(wrapped), False
    if type(driver).__module__.startswith("psycopg2"):
        if driver.closed:
            raise closed(given)
        # Not its `status`: that one knows nothing of a BEGIN that the caller has said himself.
        status = driver.get_transaction_status()
        if status == pq.TransactionStatus.INERROR:
            raise failed(given)
        return _by_psycopg2(driver), bool(driver.autocommit) and status == pq.TransactionStatus.IDLE
    raise refused(given, "a psycopg connection")


def _by_psycopg(driver: psycopg.Connection[Any]) -> Run:
    def run(sql: str, values: Sequence[Any]) -> list[Any]:
        cursor = psycopg.RawCursor(driver, row_factory=psycopg.rows.tuple_row)
        cursor.execute(sql, values or None)
        return cursor.fetchall() if cursor.description else []

    return run


def _by_psycopg2(driver: Any) -> Run:
    plain_cursor = import_module("psycopg2.extensions").cursor  # whatever the caller likes rows to be

    def run(sql: str, values: Sequence[Any]) -> list[Any]:
        with driver.cursor(cursor_factory=plain_cursor) as cursor:
            cursor.execute(*_named(sql, values))
            return cursor.fetchall() if cursor.description else []

    return run


def _by_sqlalchemy(connection: Any) -> Run:
    """For drivers that only SQLAlchemy can speak with here, as the asynchronous ones."""
    is_numbered = connection.dialect.paramstyle == "numeric_dollar"

    def run(sql: str, values: Sequence[Any]) -> list[Any]:
        asked = (sql, tuple(values)) if is_numbered else _named(sql, values)
        found = connection.exec_driver_sql(*(asked if values else asked[:1]))
        return [tuple(row) for row in found.fetchall()] if found.returns_rows else []

    return run


def _named(sql: str, values: Sequence[Any]) -> tuple[str, dict[str, Any]]:
    """With `%(v1)s` in place of each `$1`."""
    if values:
        sql = re.sub(r"\$(\d+)", r"%(v\1)s", sql.replace("%", "%%"))
    return sql, {f"v{number}": value for number, value in enumerate(values, start=1)}
