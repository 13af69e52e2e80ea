"""A program whose first job is enqueued within its own transaction, in a database without our tables."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session

from packhorse import JobNotFound, Packhorse, SchemaOutdated, StorageUnavailable
from packhorse.storage.sqlite import schema
from tests import mysql_server
from tests.caller_database import needs_mysql, needs_postgres, run, send
from tests.mysql_server import shared_mysql
from tests.postgres_server import new_database_url


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file with a table of the user's own, and none of ours."""
    path = tmp_path / "shop.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE sales (amount integer)")
    return path


@pytest.fixture
def app(path: Path) -> Iterator[Packhorse]:
    with Packhorse(f"sqlite:///{path}?patience=2s") as app:  # where it waits for itself, not for half a minute
        app.task(send)
        yield app


@pytest.fixture
def connection(path: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(path)) as connection:
        yield connection


def tables(path: Path) -> list[str]:
    with closing(sqlite3.connect(path)) as connection:
        return [name for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]


def test_the_tables_are_made_in_the_callers_transaction(app: Packhorse, path: Path, connection: sqlite3.Connection):
    connection.execute("INSERT INTO sales VALUES (1)")
    job = app.enqueue("send", {"to": "ann"}, connection=connection)
    app.enqueue_in(60, "send", {"to": "bob"}, connection=connection)
    assert tables(path) == ["sales"]
    connection.commit()

    assert job.refresh().state == "queued"
    assert app.count() == 2
    assert app.storage.health().problems == []
    assert app.storage.pending_migrations() == []


def test_tables_that_were_made_so_vanish_with_the_transaction(
    app: Packhorse, path: Path, connection: sqlite3.Connection
):
    connection.execute("INSERT INTO sales VALUES (1)")
    app.enqueue("send", {"to": "ann"}, connection=connection)
    connection.rollback()
    assert tables(path) == ["sales"]

    app.enqueue("send", {"to": "bob"}, connection=connection)
    connection.commit()

    assert [job.args for job in app.jobs()] == [{"to": "bob"}]


def test_an_unknown_task_is_not_read_again_meanwhile(path: Path, connection: sqlite3.Connection):
    with Packhorse(f"sqlite:///{path}?patience=2s") as app:
        connection.execute("INSERT INTO sales VALUES (1)")
        first = app.enqueue("elsewhere", {"n": 1}, connection=connection)
        connection.commit()
        connection.execute("INSERT INTO sales VALUES (2)")
        app.enqueue(
            "elsewhere", {"n": 2}, connection=connection
        )  # the tables exist, but no connection has opened them yet
        connection.commit()

        assert first.refresh().args == {"n": 1}
        assert app.count() == 2


def test_a_session_makes_them_too(app: Packhorse, path: Path):
    engine = create_engine(f"sqlite:///{path}")
    with Session(engine) as session:
        session.execute(text("INSERT INTO sales VALUES (1)"))
        job = app.enqueue("send", {"to": "ann"}, connection=session)
        session.commit()
    engine.dispose()

    assert job.refresh().state == "queued"


def test_without_a_transaction_they_are_made_as_ever(app: Packhorse, connection: sqlite3.Connection):
    job = app.enqueue("send", {"to": "ann"}, connection=connection)
    connection.commit()

    assert job.refresh().state == "queued"
    assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_older_tables_raise_immediately_with_what_to_do(app: Packhorse, path: Path, connection: sqlite3.Connection):
    old = sqlite3.connect(path, isolation_level=None)
    schema.prepare(old, path, schema.MIGRATIONS[:3])
    old.close()
    connection.execute("INSERT INTO sales VALUES (1)")

    with pytest.raises(SchemaOutdated, match="run: packhorse migrate"):
        app.enqueue("send", {"to": "ann"}, connection=connection)
    connection.commit()

    assert connection.execute("SELECT count(*) FROM sales").fetchone() == (1,)
    assert app.enqueue("send", {"to": "ann"}, connection=connection).is_new  # outside of a transaction


@pytest.mark.parametrize("are_there", [True, False])
def test_an_uncommitted_job_is_not_found_and_the_hint_says_so(
    app: Packhorse, connection: sqlite3.Connection, *, are_there: bool
):
    if are_there:
        app.count()  # makes the tables
    connection.execute("INSERT INTO sales VALUES (1)")
    job = app.enqueue("send", {"to": "ann"}, connection=connection)

    with pytest.raises(JobNotFound, match="has not committed yet"):
        job.refresh()
    connection.commit()
    assert job.refresh().state == "queued"


@pytest.mark.parametrize(
    "level",
    [
        pytest.param(psycopg.IsolationLevel.READ_COMMITTED, marks=needs_postgres),
        pytest.param(psycopg.IsolationLevel.SERIALIZABLE, marks=needs_postgres),
    ],
)
def test_on_postgresql_tables_that_are_missing_are_there_for_an_open_transaction(level: psycopg.IsolationLevel):
    url = new_database_url()
    with Packhorse(url) as app, psycopg.connect(url) as connection:
        connection.isolation_level = level
        connection.execute("CREATE TABLE sales (amount integer)")
        job = app.enqueue("send", {"to": "ann"}, connection=connection)
        connection.commit()

        assert job.refresh().state == "queued"


@needs_mysql
@pytest.mark.parametrize("level", ["READ COMMITTED", "REPEATABLE READ"])
def test_on_mysql_missing_tables_are_created_immediately_and_a_transaction_that_cannot_see_them_fails(level: str):
    url = mysql_server.new_database_url(bare=True)
    connection: Any = shared_mysql().connect(database=url.rpartition("/")[2])
    try:
        with Packhorse(url) as app:
            run(connection, "CREATE TABLE sales (amount integer)")
            run(connection, f"SET SESSION TRANSACTION ISOLATION LEVEL {level}")
            run(connection, "INSERT INTO sales VALUES (1)")
            run(connection, "SELECT * FROM sales")
            if level == "REPEATABLE READ":  # which sees what was there when it began to read
                with pytest.raises(StorageUnavailable, match=r"cannot see them .* packhorse migrate makes the tables"):
                    app.enqueue("send", {"to": "ann"}, connection=connection)
                connection.rollback()
            job = app.enqueue("send", {"to": "ann"}, connection=connection)
            connection.commit()

            assert job.refresh().state == "queued"
    finally:
        connection.close()
