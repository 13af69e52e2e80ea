"""The connection to a database server ends in the middle of an operation, before each of its statements in turn: all
that it has done so far is as if it had never been. A process that is killed there looks the same to the server.

SQLite is killed in `test_killed_in_the_middle.py`; an operation on Redis is one script.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pymysql
import pytest

from packhorse.core.clock import ManualClock
from packhorse.core.errors import StorageUnavailable
from packhorse.storage import Storage, open_storage
from packhorse.storage.mysql import database as mysql_database
from packhorse.storage.mysql.connection import MySQLConnection
from packhorse.storage.postgres import database as postgres_database
from packhorse.storage.postgres.connection import PostgresConnection
from tests.storage.conftest import ADDRESSES, chosen_storages, give_back
from tests.system.sample_storage import BY_NAME, fill

Rows = dict[str, list[tuple[Any, ...]]]

# One of each group. `reserve` is not among them: it promotes and expires what is due first, as chores may at any time.
CUT = ["enqueue-unique", "finish", "rescue_owner", "promote", "tick", "delete", "acknowledge"]
_COLUMNS = """
    SELECT t.table_name, c.column_name FROM information_schema.tables t
    JOIN information_schema.columns c ON c.table_schema = t.table_schema AND c.table_name = t.table_name
    WHERE t.table_type = 'BASE TABLE' AND """
_WRITTEN = {  # but for those that the server works out by itself
    "postgres": f"{_COLUMNS} t.table_schema = current_schema() AND c.is_generated = 'NEVER'",
    "mysql": f"{_COLUMNS} t.table_schema = database() AND c.extra NOT LIKE '%GENERATED%'",
}


class ConnectionCutter:
    """Cut the connection before the statement that is the `left`-th from now."""

    def __init__(self) -> None:
        self.left = 0

    def between(self, send: Callable[..., Any], cut: Callable[[Any], None]) -> Callable[..., Any]:
        def sent(connection: Any, *args: Any, **options: Any) -> Any:
            self.left -= 1
            if self.left == 0:
                cut(connection)
            return send(connection, *args, **options)

        return sent


@pytest.fixture
def cutter(monkeypatch: pytest.MonkeyPatch) -> ConnectionCutter:
    cutter = ConnectionCutter()
    for database in (mysql_database, postgres_database):
        monkeypatch.setattr(database, "REPEATED_CALLS", frozenset())
    for owner, name, cut in (
        *((PostgresConnection, name, _cut_postgres) for name in ("execute", "executemany", "begin")),
        (MySQLConnection, "_send", _cut_mysql),
    ):
        monkeypatch.setattr(owner, name, cutter.between(getattr(owner, name), cut))
    return cutter


def _cut_postgres(connection: PostgresConnection) -> None:
    connection.driver.pgconn.finish()


def _cut_mysql(connection: MySQLConnection) -> None:
    connection.driver._force_close()


class Tables:
    """The tables of a storage, read and restored over another connection."""

    def __init__(self, cursor: Any, written: str, quote: str) -> None:
        self._cursor = cursor
        self._quote = quote
        self._columns: dict[str, list[str]] = {}
        for table, column in self._rows(written):
            self._columns.setdefault(table, []).append(column)
        for name in self._columns:
            self._cursor.execute(f"CREATE TEMPORARY TABLE spare_{name} AS SELECT * FROM {name}")
        self._before = self._content()

    def _rows(self, sql: str) -> list[tuple[Any, ...]]:
        self._cursor.execute(sql)
        return list(self._cursor.fetchall())

    def _content(self) -> Rows:
        return {name: sorted(self._rows(f"SELECT * FROM {name}"), key=repr) for name in self._columns}

    def changed(self) -> list[str]:
        """Those that are not as they were in the beginning."""
        return [name for name, rows in self._content().items() if rows != self._before[name]]

    def put_back(self, names: list[str]) -> None:
        for name in names:
            self._cursor.execute(f"DELETE FROM {name}")
            columns = ", ".join(f"{self._quote}{column}{self._quote}" for column in self._columns[name])
            self._cursor.execute(f"INSERT INTO {name} ({columns}) SELECT {columns} FROM spare_{name}")


@contextmanager
def tables_of(storage: Any, kind: str) -> Iterator[Tables]:
    if kind == "postgres":
        search = f"-c search_path={storage.options.schema}"
        connection: Any = psycopg.connect(storage._db.address, autocommit=True, options=search)
    else:
        connection = pymysql.connect(**storage._db.address.for_driver(), autocommit=True)
    try:
        yield Tables(connection.cursor(), _WRITTEN[kind], '"' if kind == "postgres" else "`")
    finally:
        connection.close()


@pytest.fixture(params=[name for name in chosen_storages() if name in _WRITTEN])
def sample(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Storage, Tables]]:
    url, clock = ADDRESSES[request.param](tmp_path), ManualClock()
    storage = open_storage(url, now=clock)
    fill(storage, clock)
    with tables_of(storage, request.param) as tables:
        yield storage, tables
    storage.close()
    give_back(url)


def test_a_connection_that_is_cut_between_two_statements_leaves_nothing(
    sample: tuple[Storage, Tables], cutter: ConnectionCutter
) -> None:
    storage, tables = sample

    for name in CUT:
        cuts = _cut_everywhere(lambda name=name: BY_NAME[name].call(storage), cutter, tables)  # type: ignore[misc]
        assert cuts >= 2, f"{name} is one statement: it proves nothing"
        changed = tables.changed()
        assert changed, f"{name} changes nothing: it proves nothing"
        tables.put_back(changed)


def _cut_everywhere(call: Callable[[], object], cutter: ConnectionCutter, tables: Tables) -> int:
    """Cut the call before every statement of it, until it comes through, also because only the ringing of a bell was
    cut. Answers how often it did not."""
    cuts = 0
    while True:
        cutter.left = cuts + 1
        try:
            call()
            return cuts
        except StorageUnavailable:
            cuts += 1
        assert tables.changed() == [], f"cut before statement {cuts}"
