"""The schema in the database: made when there is none, brought up to date by `packhorse migrate`.

Many hosts may try at once: an advisory lock lets one do it, and the others find it done. A program that is older than
the schema goes on working as long as the schema says so, which is what makes a rolling deployment possible.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence

from psycopg import errors

from packhorse.core.errors import StorageNotFound
from packhorse.storage.postgres.connection import PostgresConnection
from packhorse.storage.postgres.statements import quoted
from packhorse.storage.sql.server import ensure_schema
from packhorse.storage.sql.statements import load_migrations

Migration = tuple[int, str, str]

MIGRATIONS = load_migrations("postgres")
SCHEMA = MIGRATIONS[-1][0]
"""The schema that this program knows."""
OLDEST_PROGRAM = 1
"""The oldest schema whose programs may go on working with this one."""

_LOCK_PATIENCE = "5s"
_PATIENCE = 300.0
"""Seconds to try for a table that somebody's open transaction has used, or for somebody else's migration to end."""


def prepare(
    connection: PostgresConnection,
    schema: str,
    migrations: Sequence[Migration] = MIGRATIONS,
    *,
    missing: StorageNotFound | None = None,
) -> None:
    """Make sure that this program can work with what is in the database. Tables that are not there are made, unless
    there is an error to be raised then."""
    present, wanted = versions(connection, schema), migrations[-1][0]
    ensure_schema(f"the schema {schema} has", present, wanted, lambda: migrate(connection, schema, migrations), missing)


def migrate(connection: PostgresConnection, schema: str, migrations: Sequence[Migration] = MIGRATIONS) -> list[str]:
    """Bring the schema up to date. Answers the files that were applied. A few seconds at a time: while we wait for a
    table, everybody else who wants it waits behind us."""
    ends_at = time.monotonic() + _PATIENCE
    while True:
        try:
            return _migrate(connection, schema, migrations)
        except (errors.LockNotAvailable, errors.DeadlockDetected):
            if time.monotonic() >= ends_at:
                raise
        time.sleep(random.uniform(0.5, 1.0))


def _migrate(connection: PostgresConnection, schema: str, migrations: Sequence[Migration]) -> list[str]:
    with connection.driver.transaction():
        # An index over many jobs takes its time; and whoever has waited must see what was done meanwhile. All of it is
        # said here: behind a pooler the session has no settings of ours.
        connection.begin(
            "SET TRANSACTION ISOLATION LEVEL READ COMMITTED; SET LOCAL statement_timeout = 0;"
            f" SET LOCAL lock_timeout = '{_LOCK_PATIENCE}'"
        )
        connection.execute("SELECT pg_advisory_xact_lock(hashtextextended($1, 5040))", (f"packhorse schema {schema}",))
        present, _ = versions(connection, schema)  # somebody may have been quicker
        missing = [migration for migration in migrations if migration[0] > present]
        for _, statement in script(schema, missing, is_there=is_there(connection, schema)):
            connection.begin(statement)
    return [name for _, name, _ in missing]


def script(schema: str, migrations: Sequence[Migration], *, is_there: bool = False) -> list[tuple[str, str]]:
    """What brings the schema up to date: (name, SQL) of each step. One that is there is not made, not even "if it does
    not exist": that needs rights on the whole database."""
    if not migrations:
        return []
    own = quoted(schema)
    steps = [(name, sql.replace("{schema}", own)) for _, name, sql in migrations]
    if migrations[0][0] == 1 and not is_there:
        steps.insert(0, ("schema", f"CREATE SCHEMA IF NOT EXISTS {own};\n"))
    known = f"('schema', '{migrations[-1][0]}'), ('oldest_program', '{OLDEST_PROGRAM}')"
    record = (
        f"INSERT INTO {own}.packhorse_meta (key, value) VALUES {known}\n"
        "ON CONFLICT (key) DO UPDATE SET value = excluded.value;\n"
    )
    return [*steps, ("version", record)]


def pending(
    connection: PostgresConnection, schema: str, migrations: Sequence[Migration] = MIGRATIONS
) -> list[Migration]:
    """The migrations that have not been applied yet."""
    present, _ = versions(connection, schema)
    return [migration for migration in migrations if migration[0] > present]


def is_there(connection: PostgresConnection, schema: str) -> bool:
    """Is there such a schema, with or without our tables?"""
    return bool(connection.execute("SELECT 1 FROM pg_namespace WHERE nspname = $1", (schema,)).fetchall())


def versions(connection: PostgresConnection, schema: str) -> tuple[int, int]:
    """The schema's version, 0 when there is none, and the oldest program that may use it."""
    # Asked of the catalogue itself: `to_regclass` may answer from before we waited for somebody else's migration.
    found = connection.execute(
        "SELECT 1 FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace"
        " WHERE nspname = $1 AND relname = 'packhorse_meta'",
        (schema,),
    ).fetchall()
    if not found:
        return 0, 0
    rows = dict(connection.execute(f"SELECT key, value FROM {quoted(schema)}.packhorse_meta").fetchall())
    return int(rows.get("schema", 0)), int(rows.get("oldest_program", 0))
