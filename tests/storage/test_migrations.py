"""What programs of the version before rely on while a deployment goes on: a migration adds, and changes nothing that
was there. A column that it adds needs no value from those who do not know it."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from typing import NamedTuple

import psycopg
import pymysql
import pytest

from packhorse.storage.mysql import MySQL
from packhorse.storage.mysql import schema as mysql_schema
from packhorse.storage.postgres import Postgres
from packhorse.storage.postgres import schema as postgres_schema
from packhorse.storage.sqlite.schema import MIGRATIONS as SQLITE
from tests import mysql_server, postgres_server
from tests.storage.conftest import chosen_storages


class Column(NamedTuple):
    """One of a table or a view."""

    type: str
    is_needed: bool  # who leaves it out is refused


Columns = dict[tuple[str, str], Column]
Guards = set[tuple[str, ...]]
"""What keeps rows out: unique indexes and other constraints, with their tables."""


class Made(NamedTuple):
    """A database whose tables are made step by step."""

    steps: int
    make: Callable[[int], None]  # all tables up to that step
    columns: Callable[[], Columns]
    guards: Callable[[], Guards]


def on_sqlite() -> Iterator[Made]:
    hand = sqlite3.connect(":memory:", isolation_level=None)
    done = 0

    def make(step: int) -> None:
        nonlocal done
        for number, _, sql in SQLITE[done:step]:
            hand.executescript(sql)
            done = number

    def tables() -> list[str]:
        return [name for (name,) in hand.execute("SELECT name FROM sqlite_schema WHERE type IN ('table', 'view')")]

    def columns() -> Columns:
        return {
            (table, name): Column(kind, bool(needed) and default is None)
            for table in tables()
            for _, name, kind, needed, default, _ in hand.execute(f"PRAGMA table_info({table})")
        }

    def guards() -> Guards:
        indexes = {
            (table, row[1]) for table in tables() for row in hand.execute(f"PRAGMA index_list({table})") if row[2]
        }
        triggers = "SELECT tbl_name, name FROM sqlite_schema WHERE type = 'trigger'"
        return indexes | set(hand.execute(triggers).fetchall())

    yield Made(len(SQLITE), make, columns, guards)
    hand.close()


def on_postgres() -> Iterator[Made]:
    storage = Postgres.from_url(postgres_server.new_schema_url(bare=True))
    own, migrations = storage.options.schema, postgres_schema.MIGRATIONS
    hand = psycopg.connect(postgres_server.shared_postgres().url, autocommit=True)

    def make(step: int) -> None:
        with storage._db.unprepared() as link:
            postgres_schema.migrate(link, own, migrations[:step])

    def columns() -> Columns:
        rows = hand.execute(
            "SELECT table_name, column_name, data_type, is_nullable = 'NO' AND column_default IS NULL"
            " AND is_identity = 'NO' AND is_generated = 'NEVER'"
            " FROM information_schema.columns WHERE table_schema = %s",
            [own],
        )
        return {(table, name): Column(kind, needed) for table, name, kind, needed in rows}

    def guards() -> Guards:
        found = hand.execute(
            "SELECT relname, indexrelid::regclass::text FROM pg_class JOIN pg_index ON indrelid = pg_class.oid"
            " WHERE indisunique AND relnamespace = to_regnamespace(%(own)s) UNION ALL"
            " SELECT relname, conname FROM pg_class JOIN pg_constraint ON conrelid = pg_class.oid"
            " WHERE relnamespace = to_regnamespace(%(own)s) UNION ALL"
            " SELECT relname, tgname FROM pg_class JOIN pg_trigger ON tgrelid = pg_class.oid"
            " WHERE relnamespace = to_regnamespace(%(own)s)",
            {"own": own},
        )
        return set(found)

    yield Made(len(migrations), make, columns, guards)
    storage.close()
    hand.close()


def on_mysql() -> Iterator[Made]:
    storage = MySQL.from_url(mysql_server.new_database_url(bare=True))
    own, migrations = storage._db.address.database, mysql_schema.MIGRATIONS
    hand: pymysql.Connection = mysql_server.shared_mysql().connect(autocommit=True)

    def make(step: int) -> None:
        with storage._db.unprepared() as link:
            mysql_schema.migrate(link, own, migrations[:step])

    def ask(sql: str) -> list[tuple[str, ...]]:
        with hand.cursor() as cursor:
            cursor.execute(sql, [own])
            return list(cursor.fetchall())

    def columns() -> Columns:
        rows = ask(
            "SELECT table_name, column_name, column_type, is_nullable = 'NO' AND column_default IS NULL"
            " AND extra NOT LIKE '%%auto_increment%%' AND extra NOT LIKE '%%GENERATED%%'"
            " FROM information_schema.columns WHERE table_schema = %s"
        )
        return {(table, name): Column(kind, bool(needed)) for table, name, kind, needed in rows}

    def guards() -> Guards:
        constraints = "SELECT table_name, constraint_name FROM information_schema.table_constraints"
        triggers = "SELECT event_object_table, trigger_name FROM information_schema.triggers"
        return {
            *ask(f"{constraints} WHERE constraint_schema = %s"),
            *ask(f"{triggers} WHERE trigger_schema = %s"),
        }

    yield Made(len(migrations), make, columns, guards)
    storage.close()
    hand.close()


@pytest.fixture(params=[on_sqlite, on_postgres, on_mysql], ids=["sqlite", "postgres", "mysql"])
def made(request: pytest.FixtureRequest) -> Iterator[Made]:
    kind = request.param.__name__.removeprefix("on_")
    if kind not in chosen_storages():
        pytest.skip(f"PACKHORSE_TEST_STORAGES does not name {kind}")
    yield from request.param()


def test_a_migration_adds_and_leaves_what_was_there(made: Made) -> None:
    made.make(1)
    for step in range(2, made.steps + 1):
        before, kept_out = made.columns(), made.guards()
        tables = {table for table, _ in before}

        made.make(step)

        after = made.columns()
        assert {name: after.get(name) for name in before} == before, f"step {step} changes what programs know"
        added = {name: column for name, column in after.items() if name not in before and name[0] in tables}
        assert not [name for name, column in added.items() if column.is_needed], f"step {step} wants a value from all"
        assert not {guard for guard in made.guards() - kept_out if guard[0] in tables}, f"step {step} refuses rows"
