"""Somebody else's connection to the same file: what is done by it is part of his transaction.

SQLite tells nobody that a transaction was committed. Where a SQLAlchemy Session or Django does, a sleeper is woken;
else workers find such jobs when they next look, within a second.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from packhorse.core.errors import BadValue
from packhorse.storage.external_connection import closed, driver_connection, elsewhere, refused, telling
from packhorse.storage.sqlite.trouble import translate

_Words = tuple[str, tuple[str, ...], str]
_SAVEPOINT: _Words = ("SAVEPOINT packhorse", ("ROLLBACK TO packhorse", "RELEASE packhorse"), "RELEASE packhorse")
_TRANSACTION: _Words = ("BEGIN IMMEDIATE", ("ROLLBACK",), "COMMIT")


@contextmanager
def guest(given: Any, path: Path, make_ready: Callable[[], None]) -> Iterator[sqlite3.Cursor]:
    """A cursor of the caller's connection, in his transaction. What fails is undone as far as it is ours. `make_ready`
    is called where no transaction is open yet: later, nobody but the caller himself could write."""
    connection = own_connection(given)
    try:
        cursor = connection.cursor()
    except sqlite3.ProgrammingError as error:
        if "closed" in str(error):
            raise closed(given) from error
        raise BadValue("this connection belongs to another thread", why=str(error)) from error
    cursor.row_factory = None  # plain tuples with text in them, whatever he likes to have
    liked, connection.text_factory = connection.text_factory, str
    try:
        _must_be(cursor, path)
        if connection.in_transaction:
            yield from _whole(cursor, _SAVEPOINT)
        elif _commits_alone(connection):  # every statement of his is a transaction; so is this
            make_ready()
            yield from _whole(cursor, _TRANSACTION)
        else:
            make_ready()
            cursor.execute("BEGIN IMMEDIATE")
            yield from _whole(cursor, _SAVEPOINT)
    except sqlite3.Error as error:
        if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_BUSY_SNAPSHOT:
            raise  # his transaction has lost a race: whoever makes it again waits for just this error
        raise translate(error, path) from error
    finally:
        connection.text_factory = liked
        cursor.close()


def own_connection(given: Any) -> sqlite3.Connection:
    """Python's own connection behind what was given."""
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
    except BaseException:  # somebody's Ctrl-C, too, must not leave our transaction open
        with suppress(sqlite3.Error):  # the first error is the one to tell
            for words in undo:
                cursor.execute(words)
        raise


def _commits_alone(connection: sqlite3.Connection) -> bool:
    """Would its commit() do nothing? From Python 3.12 on, `autocommit=True` says so too."""
    return connection.isolation_level is None or getattr(connection, "autocommit", None) is True


def _must_be(cursor: sqlite3.Cursor, path: Path) -> None:
    (_, _, file), *_ = cursor.execute("PRAGMA database_list").fetchall()
    if not file or Path(file).resolve() != path.resolve():
        raise elsewhere(file or "a database in memory", str(path))
