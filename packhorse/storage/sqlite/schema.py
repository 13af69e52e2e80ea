"""The schema of the SQLite file: made when the file is new, brought up to date when it is older, refused politely when
it is newer. One process does it, the others wait for the write lock and find it done."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Sequence
from pathlib import Path

from packhorse.errors import NotADatabase, SchemaTooNew, StorageUnavailable
from packhorse.storage.statements import load_migrations

Migration = tuple[int, str, str]

MIGRATIONS = load_migrations("sqlite")
SCHEMA = MIGRATIONS[-1][0]
"""The schema that this program knows."""

_OLDEST_SQLITE = (3, 37, 0)  # STRICT tables, RETURNING


def prepare(connection: sqlite3.Connection, path: Path, migrations: Sequence[Migration] = MIGRATIONS) -> None:
    """Make sure that the file has the schema which this program knows."""
    if sqlite3.sqlite_version_info < _OLDEST_SQLITE:
        raise StorageUnavailable(
            f"this Python has SQLite {sqlite3.sqlite_version}; Packhorse needs 3.37 or newer",
            hint="use a newer Python, or another storage",
        )
    wanted = migrations[-1][0]
    present = _version(connection)
    if present == wanted:
        return
    if 0 < present < wanted:
        _back_up(connection, path, present)  # before the lock: a backup cannot be taken inside a transaction
    connection.execute("BEGIN IMMEDIATE")
    try:
        present = _version(connection)  # somebody may have been quicker
        if present > wanted:
            raise SchemaTooNew(
                f"{path} has schema {present}; this Packhorse knows schemas up to {wanted}",
                hint="upgrade Packhorse in this program: pip install -U packhorse",
            )
        for number, _, sql in migrations:
            if number > present:
                for statement in split(sql):
                    connection.execute(statement)
        connection.execute(
            "INSERT INTO packhorse_meta (key, value) VALUES ('schema', ?)"
            " ON CONFLICT (key) DO UPDATE SET value = excluded.value",
            (str(wanted),),
        )
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:  # a full disk has rolled back by itself
            connection.execute("ROLLBACK")
        raise


def present_version(path: Path) -> int:
    """The schema of the file, which is only looked at; 0 when there is none."""
    if not path.exists() or path.stat().st_size == 0:
        return 0
    connection = sqlite3.connect(path)
    try:
        return _version(connection)
    except sqlite3.DatabaseError as error:
        raise NotADatabase(f"{path} is not a SQLite database", why=str(error)) from error
    finally:
        connection.close()


def _version(connection: sqlite3.Connection) -> int:
    """The file's schema; 0 when it has none of our tables yet."""
    known = connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 'packhorse_meta'").fetchone()
    if known is None:
        return 0
    row = connection.execute("SELECT value FROM packhorse_meta WHERE key = 'schema'").fetchone()
    return int(row[0]) if row else 0


def _back_up(connection: sqlite3.Connection, path: Path, present: int) -> None:
    """A copy of the file as it was, before its tables change. One that is there already is the better one: it was taken
    before anybody began. It is written under another name first, so that half a copy is never taken for a whole."""
    copy = path.with_name(f"{path.name}.schema{present}.bak")
    if copy.exists():
        return
    draft = copy.with_name(f"{copy.name}.{os.getpid()}")
    os.close(os.open(draft, os.O_CREAT | os.O_RDWR, 0o600))
    target = sqlite3.connect(draft)
    connection.backup(target)
    is_unchanged = _version(target) == present
    target.close()
    if is_unchanged:
        draft.rename(copy)
    else:
        draft.unlink()  # somebody else was quicker and has its own copy


def split(sql: str) -> list[str]:
    """The statements of a migration. `executescript` would commit before the first of them."""
    statements: list[str] = []
    statement = ""
    for line in sql.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            statements.append(statement.strip())
            statement = ""
    if statement.strip():
        raise ValueError(f"a migration ends in the middle of a statement: {statement.strip()[:60]!r}")
    return statements
