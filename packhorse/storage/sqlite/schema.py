"""The schema of the SQLite file: created in a new file, and brought up to date by the first program that is newer,
unless that program only looks. One process does it; the others wait for the write lock and find it done.

A program that is older than the schema continues to work as long as the schema allows it.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Sequence
from pathlib import Path

from packhorse.core.errors import NotADatabase, SchemaOutdated, SchemaTooNew, StorageUnavailable
from packhorse.storage.sql.statements import load_migrations

Migration = tuple[int, str, str]
Executor = sqlite3.Connection | sqlite3.Cursor

MIGRATIONS = load_migrations("sqlite")
SCHEMA = MIGRATIONS[-1][0]
"""The schema that this program knows."""
OLDEST_PROGRAM = 1
"""The oldest schema whose programs may go on working with this one."""

_LOOK = 1.0
"""Seconds to wait for a commit that is under way before giving up a look at the file."""
_OLDEST_SQLITE = (3, 37, 0)  # STRICT tables, RETURNING


def prepare(
    connection: sqlite3.Connection,
    path: Path,
    migrations: Sequence[Migration] = MIGRATIONS,
    *,
    only_looks: bool = False,
) -> None:
    """Make sure that this program can work with the file. One without a schema gets it; an older one is brought up to
    date, unless its program only looks."""
    if sqlite3.sqlite_version_info < _OLDEST_SQLITE:
        raise StorageUnavailable(
            f"this Python has SQLite {sqlite3.sqlite_version}; Packhorse needs 3.37 or newer",
            hint="use a newer Python, or another storage",
            may_pass=False,
        )
    present, wanted = _version(connection), migrations[-1][0]
    if present < wanted:
        if present > 0 and only_looks:
            raise SchemaOutdated(
                f"{path} has schema {present}; this Packhorse needs {wanted}",
                why="an older version made it, and looking does not change it",
                hint="run: packhorse migrate",
            )
        _bring_up_to_date(connection, path, present, migrations)
        present = _version(connection)  # a newer program may have been first
    _refuse_newer(connection, path, present, wanted)


def _refuse_newer(connection: Executor, path: Path, present: int, wanted: int) -> None:
    if present > wanted and _oldest_program(connection) > wanted:
        raise SchemaTooNew(
            f"{path} has schema {present}; this Packhorse knows schemas up to {wanted}",
            hint="upgrade Packhorse in this program: pip install -U packhorse",
        )


def prepare_within(cursor: sqlite3.Cursor, path: Path, migrations: Sequence[Migration] = MIGRATIONS) -> None:
    """`prepare`, in a caller's transaction. A file without our tables gets them if that commits. An older schema is not
    changed, because the file could not be backed up before."""
    present, wanted = _version(cursor), migrations[-1][0]
    if 0 < present < wanted:
        raise SchemaOutdated(
            f"{path} has schema {present}; this Packhorse needs {wanted}",
            why="a transaction of yours is open, so the tables cannot be changed now",
            hint="run: packhorse migrate",
        )
    if present == 0:
        _apply(cursor, migrations)
    _refuse_newer(cursor, path, present, wanted)


def is_ready(connection: sqlite3.Connection) -> bool:
    """Whether the file, with its tables, can be opened without writing to it."""
    cursor = connection.cursor()
    cursor.row_factory = None
    try:
        (mode,) = cursor.execute("PRAGMA journal_mode").fetchone()
        return mode == "wal" and _version(cursor) >= SCHEMA
    finally:
        cursor.close()


def _bring_up_to_date(
    connection: sqlite3.Connection, path: Path, present: int, migrations: Sequence[Migration]
) -> None:
    if present > 0:
        _back_up(connection, path, present)  # before the lock: a backup cannot be taken inside a transaction
    connection.execute("BEGIN IMMEDIATE")
    try:
        present = _version(connection)  # another process may have been first
        _apply(connection, [migration for migration in migrations if migration[0] > present])
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:  # a full disk has rolled back by itself
            connection.execute("ROLLBACK")
        raise


def _apply(connection: Executor, migrations: Sequence[Migration]) -> None:
    for _, sql in script(migrations):
        for statement in split(sql):
            connection.execute(statement)


def script(migrations: Sequence[Migration]) -> list[tuple[str, str]]:
    """What brings a file up to date that has all but these: (name, SQL) of each step."""
    if not migrations:
        return []
    known = f"('schema', '{migrations[-1][0]}'), ('oldest_program', '{OLDEST_PROGRAM}')"
    record = (
        f"INSERT INTO packhorse_meta (key, value) VALUES {known}\n"
        "ON CONFLICT (key) DO UPDATE SET value = excluded.value;\n"
    )
    return [*((name, sql) for _, name, sql in migrations), ("version", record)]


def pending(path: Path) -> list[Migration]:
    """The migrations that have not been applied to the file yet, which is only looked at."""
    present = _present_version(path)
    return [migration for migration in MIGRATIONS if migration[0] > present]


def has_none(path: Path) -> bool:
    """Whether the file has no committed tables of ours. Open transactions of other connections do not block this."""
    if not path.exists():
        return False
    connection = sqlite3.connect(path, timeout=_LOOK)
    try:
        return _version(connection) == 0
    except sqlite3.Error:  # opening it reports what is wrong
        return False
    finally:
        connection.close()


def _present_version(path: Path) -> int:
    if not path.exists() or path.stat().st_size == 0:
        return 0
    connection = sqlite3.connect(path)
    try:
        return _version(connection)
    except sqlite3.DatabaseError as error:
        raise NotADatabase(f"{path} is not a SQLite database", why=str(error)) from error
    finally:
        connection.close()


def _version(connection: Executor) -> int:
    """The file's schema; 0 when it has none of our tables yet."""
    known = connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 'packhorse_meta'").fetchone()
    return 0 if known is None else _meta(connection, "schema")


def _oldest_program(connection: Executor) -> int:
    """The oldest schema whose programs may use the file."""
    return _meta(connection, "oldest_program")


def _meta(connection: Executor, key: str) -> int:
    row = connection.execute("SELECT value FROM packhorse_meta WHERE key = ?", (key,)).fetchone()
    return int(row[0]) if row else 0


def _back_up(connection: sqlite3.Connection, path: Path, present: int) -> None:
    """Copy the file before its tables change. An existing copy is better: it was taken before any change. The copy gets
    its name when it is complete."""
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
        draft.unlink()  # another process was first and has its own copy


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
