"""The tables in the database: created when there are none, brought up to date by `packhorse migrate`.

Many hosts may try at the same time: a lock of the server lets one do it, and the others find it done. MySQL commits
every change of a table immediately, so the progress of a migration is stored after each statement, and an interrupted
one continues where it stopped. A program that is older than the tables continues to work as long as they allow it.
"""

from __future__ import annotations

import hashlib
import random
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pymysql

from packhorse.core.errors import StorageNotFound, StorageUnavailable
from packhorse.storage.mysql.connection import MySQLConnection
from packhorse.storage.mysql.driver_errors import code_of
from packhorse.storage.mysql.statements import TABLE, quoted
from packhorse.storage.sql.server import ensure_schema
from packhorse.storage.sql.statements import load_migrations

Migration = tuple[int, str, str]

MIGRATIONS = load_migrations("mysql")
SCHEMA = MIGRATIONS[-1][0]
"""The tables that this program knows."""
OLDEST_PROGRAM = 1
"""The oldest tables whose programs may go on working with these."""

_NO_SUCH_TABLE = 1146
_MADE_ALREADY = (1050, 1060, 1061)  # a table, a column, an index
_LOCK_NOT_GIVEN = 1205
_PATIENCE = 300.0
"""Seconds to wait for a table that an open transaction has used."""
_TURN = 20
"""Seconds to wait for another migration before looking again."""
_PUT = "INSERT INTO {own}.packhorse_meta (`key`, value) VALUES {rows} ON DUPLICATE KEY UPDATE value = VALUES(value)"


def prepare(
    connection: MySQLConnection,
    schema: str,
    migrations: Sequence[Migration] = MIGRATIONS,
    *,
    missing: StorageNotFound | None = None,
) -> None:
    """Make sure that this program can work with the database. Creates missing tables, or raises `missing`."""
    present, wanted = versions(connection, schema), migrations[-1][0]
    if 0 < present[0] < wanted:  # another program may be creating them, one migration after the other
        with _migration_lock(connection, schema):
            present = versions(connection, schema)
    ensure_schema(
        f"the tables in {schema} have", present, wanted, lambda: migrate(connection, schema, migrations), missing
    )


def migrate(connection: MySQLConnection, schema: str, migrations: Sequence[Migration] = MIGRATIONS) -> list[str]:
    """Bring the tables up to date. Returns the files that were applied."""
    with _migration_lock(connection, schema):
        present, _ = versions(connection, schema)  # another process may have been first
        missing = [migration for migration in migrations if migration[0] > present]
        for number, _, text in missing:
            _apply(connection, schema, number, text)
    return [name for _, name, _ in missing]


def _apply(connection: MySQLConnection, schema: str, number: int, text: str) -> None:
    put = _PUT.replace("{own}", quoted(schema))
    done = _steps_done(connection, schema, number)
    for step, statement in enumerate(_statements(schema, text), start=1):
        if step > done:
            _make(connection, statement)
            connection.script([put.replace("{rows}", f"('step', '{number}:{step}')")])
    connection.script([_record(schema, number)])


def _make(connection: MySQLConnection, statement: str) -> None:
    """Run it, waiting a few seconds at a time: while we wait for a table, all others that want it wait behind us."""
    ends_at = time.monotonic() + _PATIENCE
    while True:
        try:
            connection.script([statement])
        except pymysql.OperationalError as error:
            if code_of(error) in _MADE_ALREADY:  # by an interrupted migration that could not store its progress
                return
            if code_of(error) != _LOCK_NOT_GIVEN or time.monotonic() >= ends_at:
                raise
        else:
            return
        time.sleep(random.uniform(0.5, 1.0))


@contextmanager
def _migration_lock(connection: MySQLConnection, schema: str) -> Iterator[None]:
    """No other process migrates these tables meanwhile. The server releases the lock if we vanish."""
    name = f"packhorse {hashlib.sha256(schema.encode()).hexdigest()[:40]}"
    for _ in range(15):
        if connection.execute("SELECT GET_LOCK($1, $2)", (name, _TURN)).fetchone()[0] == 1:
            break
    else:
        raise StorageUnavailable(f"another process is still migrating {schema}", hint="look at it: SHOW PROCESSLIST")
    try:
        yield
    finally:
        if connection.driver.open:
            connection.execute("SELECT RELEASE_LOCK($1)", (name,))


def script(schema: str, migrations: Sequence[Migration]) -> list[tuple[str, str]]:
    """What brings the tables up to date: (name, SQL) of each step."""
    if not migrations:
        return []
    steps = [(name, _filled(schema, text)) for _, name, text in migrations]
    return [*steps, ("version", f"{_record(schema, migrations[-1][0])};\n")]


def _record(schema: str, number: int) -> str:
    known = f"('schema', '{number}'), ('oldest_program', '{OLDEST_PROGRAM}')"
    return _PUT.replace("{own}", quoted(schema)).replace("{rows}", known)


def _filled(schema: str, text: str) -> str:
    return text.replace("{schema}", quoted(schema)).replace("{table}", TABLE)


def _statements(schema: str, text: str) -> list[str]:
    """The statements of a migration: each ends with a semicolon at the end of a line."""
    pieces = [piece.strip() for piece in _filled(schema, text).split(";\n")]
    return [piece for piece in pieces if piece]


def pending(connection: MySQLConnection, schema: str, migrations: Sequence[Migration] = MIGRATIONS) -> list[Migration]:
    """The migrations that have not been applied yet."""
    present, _ = versions(connection, schema)
    return [migration for migration in migrations if migration[0] > present]


def versions(connection: MySQLConnection, schema: str) -> tuple[int, int]:
    """The tables' version, 0 when there are none, and the oldest program that may use them."""
    known = _meta(connection, schema)
    return int(known.get("schema", 0)), int(known.get("oldest_program", 0))


def _steps_done(connection: MySQLConnection, schema: str, number: int) -> int:
    at, _, step = _meta(connection, schema).get("step", "0:0").partition(":")
    return int(step) if int(at) == number else 0


def _meta(connection: MySQLConnection, schema: str) -> dict[str, str]:
    try:
        return dict(connection.rows(f"SELECT `key`, value FROM {quoted(schema)}.packhorse_meta"))
    except pymysql.ProgrammingError as error:
        if code_of(error) != _NO_SUCH_TABLE:
            raise
        return {}
