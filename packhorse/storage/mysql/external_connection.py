"""A caller's connection to the same server, with the methods of ours: what it does is part of the caller's
transaction."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import pymysql
from pymysql import converters
from pymysql.constants import SERVER_STATUS
from pymysql.cursors import Cursor

from packhorse.storage.external_connection import (
    closed,
    driver_connection,
    lost,
    refused,
    sqlalchemy_connection,
    telling,
)
from packhorse.storage.mysql.connection import MySQLConnection, Result
from packhorse.storage.mysql.literals import portable_literal, rendered
from packhorse.storage.sql.statements import Dialect

Run = Callable[[str], Result]

_TRANSACTION = ("START TRANSACTION", ("ROLLBACK",), "COMMIT")
_SAVEPOINT = (
    "SAVEPOINT packhorse",
    ("ROLLBACK TO SAVEPOINT packhorse", "RELEASE SAVEPOINT packhorse"),
    "RELEASE SAVEPOINT packhorse",
)
_NO_SAVEPOINT = 1305
_OTHER_DRIVERS = ("MySQLdb", "mysql.connector", "mariadb")


class ExternalConnection(MySQLConnection):
    """It opens and closes nothing, and neither begins nor commits. It sends one statement at a time, and text in a form
    that does not depend on the session's settings."""

    def __init__(self, run: Run, sql: Mapping[str, str], dialect: Dialect) -> None:
        self._run = run
        self.sql = sql
        self.dialect = dialect

    def render(self, sql: str, values: Sequence[Any]) -> str:
        return rendered(sql, values, portable_literal)

    def script(self, statements: Sequence[str]) -> list[Result]:
        return [self._run(statement) for statement in statements]

    def undo(self, savepoint: str) -> None:
        with suppress(Exception):  # the server has rolled back the whole transaction; report that error
            self._run(f"ROLLBACK TO SAVEPOINT {savepoint}")


@contextmanager
def joined(given: Any, sql: Mapping[str, str], dialect: Dialect) -> Iterator[ExternalConnection]:
    """The caller's connection, in a savepoint: a failure undoes our work, and the caller's stays."""
    with telling(given):
        driver = driver_connection(given)
        run, is_alone = _runner(given, driver)
        begin, undo, end = _TRANSACTION if is_alone else _SAVEPOINT
        try:
            run(begin)
            yield ExternalConnection(run, sql, dialect)
            run(end)
        except BaseException as error:  # an interrupt must not leave our transaction open either
            if isinstance(error, pymysql.Error) and not driver.open:
                raise lost(given, error) from error
            with suppress(Exception):  # report the first error
                for words in undo:
                    run(words)
            raise


def _runner(given: Any, driver: Any) -> tuple[Run, bool]:
    """A function that runs a statement, and whether the caller has no transaction open."""
    if isinstance(driver, pymysql.Connection):
        if not driver.open:
            raise closed(given)
        own: Any = driver
        in_transaction = bool(own.server_status & SERVER_STATUS.SERVER_STATUS_IN_TRANS)
        return _by_pymysql(driver), bool(driver.get_autocommit()) and not in_transaction
    wrapped = sqlalchemy_connection(given)
    if wrapped is not None and wrapped.dialect.name in ("mysql", "mariadb"):
        return _by_sqlalchemy(wrapped), False
    if type(driver).__module__.startswith(_OTHER_DRIVERS):
        if not _is_open(driver):
            raise closed(given)
        run = _by_cursor(driver.cursor)
        return run, _commits_alone(run)
    raise refused(given, "a PyMySQL connection")


def _by_pymysql(driver: Any) -> Run:
    """Reads values with the driver's default converters, and restores the caller's."""
    run_as_it_is = _by_cursor(lambda: driver.cursor(Cursor))

    def run(statement: str) -> Result:
        as_it_was = driver.decoders, driver.use_unicode
        driver.decoders, driver.use_unicode = converters.decoders, True
        try:
            return run_as_it_is(statement)
        finally:
            driver.decoders, driver.use_unicode = as_it_was

    return run


def _is_open(driver: Any) -> bool:
    """Whether the connection is open; the drivers differ."""
    asked = getattr(driver, "is_connected", None)
    return bool(asked() if asked is not None else driver.open)


def _commits_alone(run: Run) -> bool:
    """Whether the connection has no transaction open and commits each statement. The driver cannot say: it ignores a
    BEGIN that the caller has executed, and another BEGIN would commit. Without a transaction a savepoint vanishes
    immediately."""
    run(_SAVEPOINT[0])
    try:
        run(_SAVEPOINT[2])
    except Exception as error:
        if _NO_SAVEPOINT in (getattr(error, "errno", None), *error.args[:1]):
            return True
        raise
    return False


def _by_cursor(open_cursor: Callable[[], Any]) -> Run:
    def run(statement: str) -> Result:
        cursor = open_cursor()
        try:
            cursor.execute(statement)
            rows = [_plain(row) for row in cursor.fetchall()] if cursor.description else []
            return Result(rows, cursor.rowcount)
        finally:
            cursor.close()

    return run


def _plain(row: Any) -> tuple[Any, ...]:
    """A row as a tuple, whatever the caller's row type is."""
    return tuple(row.values() if isinstance(row, Mapping) else row)


def _by_sqlalchemy(connection: Any) -> Run:
    """For drivers that need SQLAlchemy, as the asynchronous ones."""

    def run(statement: str) -> Result:
        found = connection.exec_driver_sql(statement)
        rows = [tuple(row) for row in found.fetchall()] if found.returns_rows else []
        return Result(rows, found.rowcount)

    return run
