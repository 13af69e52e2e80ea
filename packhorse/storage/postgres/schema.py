"""The schema in the database: created when there is none, brought up to date by `packhorse migrate`.

Many hosts may try at the same time: an advisory lock lets one do it, and the others find it done. A program that is
older than the schema continues to work as long as the schema allows it, so rolling deployments are possible.
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
"""Seconds to wait for a table that an open transaction has used, or for another migration to end."""


def prepare(
    connection: PostgresConnection,
    schema: str,
    migrations: Sequence[Migration] = MIGRATIONS,
    *,
    missing: StorageNotFound | None = None,
) -> None:
    """Make sure that this program can work with the database. Creates missing tables, or raises `missing`."""
    present, wanted = versions(connection, schema), migrations[-1][0]
    ensure_schema(f"the schema {schema} has", present, wanted, lambda: migrate(connection, schema, migrations), missing)


def migrate(connection: PostgresConnection, schema: str, migrations: Sequence[Migration] = MIGRATIONS) -> list[str]:
    """Bring the schema up to date. Returns the files that were applied. Waits a few seconds at a time: while we wait
    for a table, all others that want it wait behind us."""
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
        # Building an index over many jobs takes long, and a process that has waited must see what was done meanwhile.
        # These settings are repeated here because a pooled session has none of ours.
        connection.begin(
            "SET TRANSACTION ISOLATION LEVEL READ COMMITTED; SET LOCAL statement_timeout = 0;"
            f" SET LOCAL lock_timeout = '{_LOCK_PATIENCE}'"
        )
        connection.execute("SELECT pg_advisory_xact_lock(hashtextextended($1, 5040))", (f"packhorse schema {schema}",))
        present, _ = versions(connection, schema)  # another process may have been first
        missing = [migration for migration in migrations if migration[0] > present]
        for _, statement in script(schema, missing, is_there=is_there(connection, schema)):
            connection.begin(statement)
    return [name for _, name, _ in missing]


def script(schema: str, migrations: Sequence[Migration], *, is_there: bool = False) -> list[tuple[str, str]]:
    """The steps that bring the schema up to date: (name, SQL) of each. An existing schema is not created, not even "if
    not exists": that needs rights on the whole database."""
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
    """Whether the schema exists, with or without our tables."""
    return bool(connection.execute("SELECT 1 FROM pg_namespace WHERE nspname = $1", (schema,)).fetchall())


def versions(connection: PostgresConnection, schema: str) -> tuple[int, int]:
    """The schema's version, 0 when there is none, and the oldest program that may use it."""
    # From the catalogue itself: `to_regclass` may return what was there before we waited for another migration.
    found = connection.execute(
        "SELECT 1 FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace"
        " WHERE nspname = $1 AND relname = 'packhorse_meta'",
        (schema,),
    ).fetchall()
    if not found:
        return 0, 0
    rows = dict(connection.execute(f"SELECT key, value FROM {quoted(schema)}.packhorse_meta").fetchall())
    return int(rows.get("schema", 0)), int(rows.get("oldest_program", 0))
