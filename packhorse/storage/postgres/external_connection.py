"""A caller's connection to the same server, with the methods of ours: what it does is part of the caller's
transaction."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import Any

import psycopg
from psycopg import pq

from packhorse.storage.external_connection import (
    closed,
    driver_connection,
    failed,
    lost,
    refused,
    sqlalchemy_connection,
    telling,
)
from packhorse.storage.postgres.connection import PlainCursor, PostgresConnection
from packhorse.storage.sql.statements import Dialect
from packhorse.storage.sql.transaction import Cursor

Run = Callable[[str, Sequence[Any]], list[Any]]


class _Rows:
    """The result of a statement, already fetched."""

    def __init__(self, rows: list[Any]) -> None:
        self._rows = rows
        self.rowcount = len(rows)

    def fetchone(self) -> Any:
        return self._rows[0] if self._rows else None

    def fetchall(self) -> list[Any]:
        return self._rows


class ExternalConnection(PostgresConnection):
    """It opens and closes nothing, and neither begins nor commits."""

    def __init__(self, run: Run, sql: Mapping[str, str], dialect: Dialect, *, may_notify: bool) -> None:
        self._run = run
        self.sql = sql
        self.dialect = dialect
        self.may_notify = may_notify

    def execute(self, sql: str, values: Sequence[Any] = ()) -> Cursor:
        return _Rows(self._run(sql, values))

    def executemany(self, sql: str, rows: Sequence[Sequence[Any]]) -> None:
        for row in rows:
            self._run(sql, row)

    def undo(self, savepoint: str) -> None:
        with suppress(Exception):  # the connection is lost; report the first error
            self._run(f"ROLLBACK TO {savepoint}", ())


@contextmanager
def joined(given: Any, sql: Mapping[str, str], dialect: Dialect) -> Iterator[ExternalConnection]:
    """The caller's connection, in a savepoint: a failure undoes our work, and the caller's stays."""
    with telling(given):
        driver = driver_connection(given)
        run, is_alone = _runner(given, driver)
        connection = ExternalConnection(run, sql, dialect, may_notify=_may_notify(driver))
        begin, undo, end = _TRANSACTION if is_alone else _SAVEPOINT
        try:
            run(begin, ())
            with _in_unicode(driver, run):
                yield connection
            run(end, ())
        except BaseException as error:  # an interrupt must not leave our transaction open either
            if isinstance(error, psycopg.Error) and driver.closed:
                raise lost(given, error) from error
            with suppress(Exception):  # report the first error
                for words in undo:
                    run(words, ())
            raise


def _may_notify(driver: Any) -> bool:
    """A two-phase transaction must not notify. No driver exposes it publicly, and psycopg2 not at all, so its
    connections never notify."""
    return not _is_psycopg2(driver) and not getattr(driver, "_tpc", None)


def _is_psycopg2(driver: Any) -> bool:
    return any(kind.__module__.startswith("psycopg2.") for kind in type(driver).__mro__)


_TRANSACTION = ("BEGIN", ("ROLLBACK",), "COMMIT")
_SAVEPOINT = (
    "SAVEPOINT packhorse",
    ("ROLLBACK TO SAVEPOINT packhorse", "RELEASE SAVEPOINT packhorse"),
    "RELEASE SAVEPOINT packhorse",
)


@contextmanager
def _in_unicode(driver: Any, run: Run) -> Iterator[None]:
    """The session's encoding may not have all characters of a job. A failure resets the setting by itself."""
    encoding = driver.info.parameter_status("client_encoding") if isinstance(driver, psycopg.Connection) else "UTF8"
    if encoding == "UTF8":
        yield
        return
    run("SELECT set_config('client_encoding', 'UTF8', true)", ())
    yield
    run("SELECT set_config('client_encoding', $1, true)", (encoding,))


def await_pipeline(given: Any) -> None:
    """Wait until the statements of the caller's pipeline are done. If one has failed, the driver raises."""
    with telling(given):
        driver = driver_connection(given)
    if isinstance(driver, psycopg.Connection) and not driver.closed and _is_piped(driver):
        with driver.pipeline() as pipeline:
            pipeline.sync()


def _is_piped(driver: psycopg.Connection[Any]) -> bool:
    return driver.pgconn.pipeline_status != pq.PipelineStatus.OFF


def _runner(given: Any, driver: Any) -> tuple[Run, bool]:
    """A function that runs a statement, and whether the caller has no transaction open."""
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
    if _is_psycopg2(driver):
        if driver.closed:
            raise closed(given)
        # Not its `status`: that ignores a BEGIN that the caller has executed.
        status = driver.get_transaction_status()
        if status == pq.TransactionStatus.INERROR:
            raise failed(given)
        return _by_psycopg2(driver), bool(driver.autocommit) and status == pq.TransactionStatus.IDLE
    raise refused(given, "a psycopg connection")


def _by_psycopg(driver: psycopg.Connection[Any]) -> Run:
    def run(sql: str, values: Sequence[Any]) -> list[Any]:
        cursor = PlainCursor(driver)
        if _is_piped(driver):
            with driver.pipeline() as pipeline:
                cursor.execute(sql, values or None)
                pipeline.sync()
        else:
            cursor.execute(sql, values or None)
        return cursor.fetchall() if cursor.description else []

    return run


def _by_psycopg2(driver: Any) -> Run:
    plain_cursor = import_module("psycopg2.extensions").cursor

    def run(sql: str, values: Sequence[Any]) -> list[Any]:
        with driver.cursor(cursor_factory=plain_cursor) as cursor:
            cursor.execute(*_named(sql, values))
            return cursor.fetchall() if cursor.description else []

    return run


def _by_sqlalchemy(connection: Any) -> Run:
    """For drivers that need SQLAlchemy, as the asynchronous ones."""
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
