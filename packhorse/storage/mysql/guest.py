"""Somebody else's connection to the same server, in the shape of a link: what it does is part of his transaction."""

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
from packhorse.storage.mysql.link import Answer, Link
from packhorse.storage.mysql.spelling import plain_literal, spelled
from packhorse.storage.sql.dialect import Dialect

Run = Callable[[str], Answer]

_TRANSACTION = ("START TRANSACTION", ("ROLLBACK",), "COMMIT")
_SAVEPOINT = (
    "SAVEPOINT packhorse",
    ("ROLLBACK TO SAVEPOINT packhorse", "RELEASE SAVEPOINT packhorse"),
    "RELEASE SAVEPOINT packhorse",
)
_NO_SAVEPOINT = 1305
_OTHER_DRIVERS = ("MySQLdb", "mysql.connector", "mariadb")


class GuestLink(Link):
    """A link that opens and closes nothing, and neither begins nor commits. One statement at a time, and text in a form
    that means the same whatever the session's settings."""

    def __init__(self, run: Run, sql: Mapping[str, str], dialect: Dialect) -> None:
        self._run = run
        self.sql = sql
        self.dialect = dialect

    def spell(self, sql: str, values: Sequence[Any]) -> str:
        return spelled(sql, values, plain_literal)

    def script(self, statements: Sequence[str]) -> list[Answer]:
        return [self._run(statement) for statement in statements]

    def undo(self, savepoint: str) -> None:
        with suppress(
            Exception
        ):  # it went with the whole transaction: whoever lost a race is told of that, not of this
            self._run(f"ROLLBACK TO SAVEPOINT {savepoint}")


@contextmanager
def guest(given: Any, sql: Mapping[str, str], dialect: Dialect) -> Iterator[GuestLink]:
    """The caller's connection as a link. What fails is undone as far as it is ours; his own work stays."""
    with telling(given):
        driver = driver_connection(given)
        run, is_alone = _runner(given, driver)
        begin, undo, end = _TRANSACTION if is_alone else _SAVEPOINT
        try:
            run(begin)
            yield GuestLink(run, sql, dialect)
            run(end)
        except BaseException as error:  # somebody's Ctrl-C, too, must not leave our transaction open
            if isinstance(error, pymysql.Error) and not driver.open:
                raise lost(given, error) from error
            with suppress(Exception):  # the first error is the one to tell
                for words in undo:
                    run(words)
            raise


def _runner(given: Any, driver: Any) -> tuple[Run, bool]:
    """How to run a statement, and whether there is no transaction that it could be part of."""
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
    """With values as the driver reads them by itself, whatever the caller has taught it; he finds it as it was."""
    run_as_it_is = _by_cursor(lambda: driver.cursor(Cursor))

    def run(statement: str) -> Answer:
        as_it_was = driver.decoders, driver.use_unicode
        driver.decoders, driver.use_unicode = converters.decoders, True
        try:
            return run_as_it_is(statement)
        finally:
            driver.decoders, driver.use_unicode = as_it_was

    return run


def _is_open(driver: Any) -> bool:
    """Each driver says it in its own way."""
    asked = getattr(driver, "is_connected", None)
    return bool(asked() if asked is not None else driver.open)


def _commits_alone(run: Run) -> bool:
    """Does this connection commit each statement by itself? Not by what its driver knows, which is nothing of a BEGIN
    that the caller has said himself: to begin another transaction would commit his. A savepoint is forgotten at once
    where there is no transaction."""
    run(_SAVEPOINT[0])
    try:
        run(_SAVEPOINT[2])
    except Exception as error:
        if _NO_SAVEPOINT in (getattr(error, "errno", None), *error.args[:1]):
            return True
        raise
    return False


def _by_cursor(open_cursor: Callable[[], Any]) -> Run:
    def run(statement: str) -> Answer:
        cursor = open_cursor()
        try:
            cursor.execute(statement)
            rows = [_plain(row) for row in cursor.fetchall()] if cursor.description else []
            return Answer(rows, cursor.rowcount)
        finally:
            cursor.close()

    return run


def _plain(row: Any) -> tuple[Any, ...]:
    """A row, whatever the caller likes rows to be."""
    return tuple(row.values() if isinstance(row, Mapping) else row)


def _by_sqlalchemy(connection: Any) -> Run:
    """For drivers that only SQLAlchemy can speak with here, as the asynchronous ones."""

    def run(statement: str) -> Answer:
        found = connection.exec_driver_sql(statement)
        rows = [tuple(row) for row in found.fetchall()] if found.returns_rows else []
        return Answer(rows, found.rowcount)

    return run
