"""A caller's connection to the same file: what it does is part of the caller's transaction.

SQLite does not report a commit. A SQLAlchemy Session and Django do, so a waiter is woken; otherwise workers find
such jobs when they look the next time, within a second.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from packhorse.core.errors import BadValue
from packhorse.storage.external_connection import closed, driver_connection, elsewhere, refused, telling
from packhorse.storage.sqlite.driver_errors import translate

_Words = tuple[str, tuple[str, ...], str]
_SAVEPOINT: _Words = ("SAVEPOINT packhorse", ("ROLLBACK TO packhorse", "RELEASE packhorse"), "RELEASE packhorse")
_TRANSACTION: _Words = ("BEGIN IMMEDIATE", ("ROLLBACK",), "COMMIT")


@contextmanager
def joined(given: Any, path: Path, make_ready: Callable[[], None]) -> Iterator[sqlite3.Cursor]:
    """A cursor of the caller's connection, in the caller's transaction. A failure undoes our work only. `make_ready` is
    called if no transaction is open yet: once one is, only this connection could write."""
    connection = own_connection(given)
    try:
        cursor = connection.cursor()
    except sqlite3.ProgrammingError as error:
        if "closed" in str(error):
            raise closed(given) from error
        raise BadValue("this connection belongs to another thread", why=str(error)) from error
    cursor.row_factory = None  # plain tuples of text, whatever the caller has set
    text_factory, connection.text_factory = connection.text_factory, str
    try:
        _check_file(cursor, path)
        if connection.in_transaction:
            yield from _whole(cursor, _SAVEPOINT)
        elif _commits_alone(connection):  # each statement is a transaction of its own; so is this call
            make_ready()
            yield from _whole(cursor, _TRANSACTION)
        else:
            make_ready()
            cursor.execute("BEGIN IMMEDIATE")
            yield from _whole(cursor, _SAVEPOINT)
    except sqlite3.Error as error:
        if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_BUSY_SNAPSHOT:
            raise  # the transaction lost a race: code that repeats it expects this error
        raise translate(error, path) from error
    finally:
        connection.text_factory = text_factory
        cursor.close()


def own_connection(given: Any) -> sqlite3.Connection:
    """The sqlite3 connection behind what was given."""
    with telling(given):
        connection = driver_connection(given)
    if not isinstance(connection, sqlite3.Connection):
        raise refused(given, "a sqlite3 connection")
    return connection


def _whole(cursor: sqlite3.Cursor, said: _Words) -> Iterator[sqlite3.Cursor]:
    begin, undo, end = said
    cursor.execute(begin)
    try:
        yield cursor
        cursor.execute(end)
    except BaseException:  # an interrupt must not leave our transaction open either
        with suppress(sqlite3.Error):  # report the first error
            for words in undo:
                cursor.execute(words)
        raise


def _commits_alone(connection: sqlite3.Connection) -> bool:
    """Whether its commit() does nothing. From Python 3.12 on, `autocommit=True` says so too."""
    return connection.isolation_level is None or getattr(connection, "autocommit", None) is True


def _check_file(cursor: sqlite3.Cursor, path: Path) -> None:
    (_, _, file), *_ = cursor.execute("PRAGMA database_list").fetchall()
    if not file or Path(file).resolve() != path.resolve():
        raise elsewhere(file or "a database in memory", str(path))
