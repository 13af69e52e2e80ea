"""Connections as callers configure them: whatever a caller has set on the driver, a job is part of the caller's
transaction, and the connection is unchanged afterwards. What a transaction means for a job is in
`tests/client/test_transactions.py`."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg
import pymysql
import pytest
from psycopg.adapt import Dumper, Loader
from psycopg.pq import TransactionStatus
from psycopg.rows import dict_row
from pymysql import converters
from pymysql.constants import FIELD_TYPE, SERVER_STATUS
from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session

from packhorse import Packhorse
from packhorse.client.job import JobHandle
from packhorse.core.errors import BadValue, NotUnique, StorageUnavailable
from tests.caller_database import CallerDatabase, IdleWorker, needs_mysql, needs_postgres, run
from tests.children import until
from tests.mysql_server import shared_mysql
from tests.postgres_server import PgBouncer, shared_postgres


def place_of(kind: str, directory: Path) -> Iterator[CallerDatabase]:
    place = CallerDatabase(kind, directory)
    yield place
    place.close()


@pytest.fixture
def postgres(tmp_path: Path) -> Iterator[CallerDatabase]:
    yield from place_of("postgres", tmp_path)


@pytest.fixture
def mysql(tmp_path: Path) -> Iterator[CallerDatabase]:
    yield from place_of("mysql", tmp_path)


@pytest.fixture
def sqlite(tmp_path: Path) -> Iterator[CallerDatabase]:
    yield from place_of("sqlite", tmp_path)


@pytest.fixture(
    params=["sqlite", pytest.param("postgres", marks=needs_postgres), pytest.param("mysql", marks=needs_mysql)]
)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[CallerDatabase]:
    yield from place_of(request.param, tmp_path)


def enqueue(place: CallerDatabase, connection: Any, to: str = "ann") -> JobHandle:
    """A unique job: what lies in the storage is read and written by the connection."""
    return place.app.enqueue("send", {"to": to}, connection=connection, unique=True)


def assert_understood(place: CallerDatabase, connection: Any, to: str = "č 🐎") -> None:
    """The same job twice, and several at once, by this connection: they are there as they were meant."""
    first, second = (enqueue(place, connection, to) for _ in range(2))
    calls = [place.task.call(f"m{number}") for number in range(3)]
    place.app.enqueue_many(calls, connection=connection)
    connection.commit()

    assert second.id == first.id
    assert place.app.get(first.id).args == {"to": to}
    assert place.number_of_jobs() == 4


# --- psycopg ----------------------------------------------------------------------------------------------------------


class AsText(Dumper):
    oid = psycopg.postgres.types["text"].oid

    def dump(self, value: object) -> bytes:
        return f"dumped: {value}".encode()


class AsBytes(Loader):
    def load(self, data: Any) -> bytes:
        return b"loaded: " + bytes(data)


@needs_postgres
def test_what_a_connection_of_psycopg_was_taught_about_values_does_not_matter(postgres: CallerDatabase) -> None:
    connection = postgres.connect()
    for kind in (int, str, list, bool):
        connection.adapters.register_dumper(kind, AsText)
    for name in ("text", "name", "int4", "int8", "bool", "json", "jsonb"):
        connection.adapters.register_loader(name, AsBytes)

    assert_understood(postgres, connection)
    assert connection.execute("SELECT 5").fetchone() == (b"loaded: 5",)
    connection.close()


@needs_postgres
def test_what_all_connections_of_psycopg_were_taught_does_not_matter(
    postgres: CallerDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not for those of the storage itself either."""
    taught = psycopg.adapt.AdaptersMap(psycopg.adapters)
    taught.register_dumper(list, AsText)
    taught.register_loader("text", AsBytes)
    monkeypatch.setattr(psycopg.postgres, "adapters", taught)
    postgres.app.close()
    connection = postgres.connect()
    assert connection.execute("SELECT 'a'::text").fetchone() == (b"loaded: a",)

    assert_understood(postgres, connection)
    connection.close()


@needs_postgres
@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII"])
def test_text_is_more_than_the_encoding_of_a_session_knows(postgres: CallerDatabase, encoding: str) -> None:
    connection = postgres.connect()
    connection.execute(f"SET client_encoding TO '{encoding}'")
    connection.commit()

    enqueue(postgres, connection, "nobody")
    assert connection.info.parameter_status("client_encoding") == encoding
    connection.rollback()
    assert_understood(postgres, connection)

    assert connection.info.parameter_status("client_encoding") == encoding
    connection.close()


@needs_postgres
def test_words_of_ours_are_not_looked_for_in_the_callers_schemas(postgres: CallerDatabase) -> None:
    connection = postgres.connect()
    own = f"own_{postgres.sales}"
    connection.execute(f"CREATE SCHEMA {own}")
    connection.execute(f"CREATE TABLE {own}.packhorse_job (id integer)")
    connection.execute(f"CREATE FUNCTION {own}.packhorse_now() RETURNS integer LANGUAGE sql AS 'SELECT 1'")
    connection.execute(f"SET search_path = {own}")
    connection.commit()

    assert_understood(postgres, connection)
    connection.close()


@needs_postgres
@pytest.mark.parametrize(
    "settings",
    [{"cursor_factory": psycopg.ClientCursor}, {"prepare_threshold": 0}, {"row_factory": dict_row}],
    ids=["another class of cursor", "prepared from the first time on", "another shape of rows"],
)
def test_a_connection_may_be_made_in_any_way(postgres: CallerDatabase, settings: dict[str, Any]) -> None:
    connection = psycopg.connect(shared_postgres().url, **settings)

    assert_understood(postgres, connection)
    connection.close()


@needs_postgres
def test_in_a_pipeline_a_job_is_part_of_the_transaction(postgres: CallerDatabase) -> None:
    connection = postgres.connect()
    for end, number in ((connection.rollback, 0), (connection.commit, 1)):
        with connection.pipeline():
            connection.execute(postgres.insert)
            first, second = (enqueue(postgres, connection) for _ in range(2))
            connection.execute(postgres.insert)
        assert second.id == first.id
        assert postgres.number_of_jobs() == 0
        end()
        assert (postgres.number_of_jobs(), postgres.number_of_sales()) == (number, 2 * number)
    connection.close()


@needs_postgres
def test_in_a_pipeline_without_a_transaction_the_job_is_there_at_once(postgres: CallerDatabase) -> None:
    connection = postgres.connect()
    connection.autocommit = True
    with connection.pipeline():
        connection.execute(postgres.insert)  # on its way
        enqueue(postgres, connection)
        assert (postgres.number_of_jobs(), postgres.number_of_sales()) == (1, 1)
        with suppress(ZeroDivisionError), connection.transaction():
            connection.execute(postgres.insert)
            enqueue(postgres, connection, "nobody")
            raise ZeroDivisionError

    assert (postgres.number_of_jobs(), postgres.number_of_sales()) == (1, 1)
    connection.close()


@needs_postgres
def test_what_has_failed_in_a_pipeline_before_is_told_by_the_driver(postgres: CallerDatabase) -> None:
    connection = postgres.connect()
    with suppress(psycopg.errors.PipelineAborted), connection.pipeline():
        connection.execute("SELECT 1 / 0")
        with pytest.raises(psycopg.errors.DivisionByZero):
            enqueue(postgres, connection)
        with pytest.raises(BadValue, match="has failed already"):
            enqueue(postgres, connection)
    connection.rollback()

    assert postgres.number_of_jobs() == 0
    connection.close()


@needs_postgres
@pytest.mark.parametrize("driver", ["psycopg", "psycopg2"])
def test_a_job_is_part_of_a_transaction_in_two_phases(postgres: CallerDatabase, driver: str) -> None:
    """Which the server does not prepare if it has notified anybody."""
    postgres.driver = driver
    sleeper = IdleWorker(postgres)
    connection = postgres.connect()
    for end, number in ((connection.tpc_rollback, 0), (connection.tpc_commit, 1)):
        connection.tpc_begin(connection.xid(1, f"{postgres.sales} {number}", "jobs"))
        enqueue(postgres, connection)
        connection.tpc_prepare()
        assert postgres.number_of_jobs() == 0
        end()
        assert postgres.number_of_jobs() == number
    connection.close()
    engine = create_engine(postgres.alchemy_url)
    with Session(engine, twophase=True) as session:
        enqueue(postgres, session, "bob")
        session.commit()
    assert postgres.number_of_jobs() == 2
    engine.dispose()
    sleeper.end()


@needs_postgres
def test_behind_pgbouncer_a_job_is_part_of_the_transaction(postgres: CallerDatabase) -> None:
    bouncer = PgBouncer(shared_postgres())
    pooled = Packhorse(f"{bouncer.url}?{postgres.jobs_url.partition('?')[2]}&pgbouncer=1")
    connection = psycopg.connect(bouncer.url, prepare_threshold=None)
    for end, number in ((connection.rollback, 0), (connection.commit, 1)):
        connection.execute(postgres.insert)
        pooled.enqueue("send", {"to": "ann"}, connection=connection, unique=True)
        pooled.enqueue_many([postgres.task.call(to) for to in ("bob", "cas")], connection=connection)
        assert postgres.number_of_jobs() == 0
        end()
        assert (postgres.number_of_jobs(), postgres.number_of_sales()) == (3 * number, number)
    connection.close()
    pooled.close()
    bouncer.end()


# --- PyMySQL ----------------------------------------------------------------------------------------------------------


@needs_mysql
def test_what_a_connection_of_pymysql_was_taught_about_values_does_not_matter(mysql: CallerDatabase) -> None:
    taught = dict(converters.conversions)
    taught |= dict.fromkeys((FIELD_TYPE.LONGLONG, FIELD_TYPE.LONG, FIELD_TYPE.VAR_STRING, FIELD_TYPE.BLOB), repr)
    database = mysql.jobs_url.rpartition("/")[2]
    connection = shared_mysql().connect(database=database, conv=taught, use_unicode=False)
    decoders = connection.decoders

    assert_understood(mysql, connection)

    assert connection.decoders is decoders
    assert not connection.use_unicode
    connection.close()


@needs_mysql
@pytest.mark.parametrize("cursor", [pymysql.cursors.SSDictCursor, pymysql.cursors.SSCursor])
def test_a_cursor_of_pymysql_may_be_of_any_class(mysql: CallerDatabase, cursor: type) -> None:
    connection = mysql.connect()
    connection.cursorclass = cursor

    assert_understood(mysql, connection)

    assert connection.cursorclass is cursor
    connection.close()


# --- sqlite3 ----------------------------------------------------------------------------------------------------------


def in_capitals(data: bytes) -> str:
    return data.decode().upper()


@pytest.mark.parametrize("factory", [bytes, in_capitals])
def test_text_may_be_what_the_caller_likes(sqlite: CallerDatabase, factory: Any) -> None:
    connection = sqlite.connect()
    connection.text_factory = factory

    assert_understood(sqlite, connection)

    assert connection.text_factory is factory
    connection.close()


@pytest.mark.parametrize("level", ["IMMEDIATE", "EXCLUSIVE"])
def test_a_transaction_of_sqlite_may_be_of_any_kind(sqlite: CallerDatabase, level: Any) -> None:
    connection = sqlite.connect()
    connection.isolation_level = level
    connection.execute(sqlite.insert)
    enqueue(sqlite, connection, "nobody")
    connection.rollback()

    assert_understood(sqlite, connection)

    assert connection.isolation_level == level
    connection.close()


# --- every kind -------------------------------------------------------------------------------------------------------


def savepoints_left(place: CallerDatabase, connection: Any) -> bool:
    """Is a savepoint of ours there?"""
    with suppress(psycopg.errors.InvalidSavepointSpecification, pymysql.OperationalError, sqlite3.OperationalError):
        run(connection, "RELEASE SAVEPOINT packhorse")
        return True
    return False


@pytest.mark.parametrize("is_refused", [False, True], ids=["taken", "refused"])
def test_no_savepoint_is_left_in_the_callers_transaction(place: CallerDatabase, is_refused: bool) -> None:
    task = place.task.using(unique={"on_conflict": "reject"})
    if is_refused:
        task.enqueue("ann")
    connection = place.connect()
    run(connection, place.insert)
    with suppress(NotUnique):
        task.using(connection=connection).enqueue("ann")

    assert not savepoints_left(place, connection)
    connection.rollback()
    connection.close()


def test_without_a_transaction_none_is_left_open(place: CallerDatabase) -> None:
    connection = place.connect()
    if place.kind == "mysql":
        connection.autocommit(True)
    elif place.kind == "sqlite":
        connection.isolation_level = None
    else:
        connection.autocommit = True
    task = place.task.using(unique={"on_conflict": "reject"}, connection=connection)
    task.enqueue("ann")
    with pytest.raises(NotUnique):
        task.enqueue("ann")

    assert not is_in_transaction(place, connection)
    connection.close()


def is_in_transaction(place: CallerDatabase, connection: Any) -> bool:
    if place.kind == "sqlite":
        return bool(connection.in_transaction)
    if place.kind == "mysql":
        return bool(connection.server_status & SERVER_STATUS.SERVER_STATUS_IN_TRANS)
    return connection.info.transaction_status is not TransactionStatus.IDLE


def test_a_connection_that_has_lost_its_server_is_told(place: CallerDatabase) -> None:
    if place.kind == "sqlite":
        pytest.skip("a file is nowhere else")
    connection = place.connect()
    run(connection, place.insert)
    number = connection.thread_id() if place.kind == "mysql" else connection.info.backend_pid
    with place.connect() as bystander:
        run(bystander, f"KILL {number}" if place.kind == "mysql" else f"SELECT pg_terminate_backend({number})")
        table = "information_schema.processlist WHERE id" if place.kind == "mysql" else "pg_stat_activity WHERE pid"

        def is_cut_off() -> bool:
            bystander.rollback()  # within one transaction PostgreSQL shows who is connected as it was at the first look
            return not run(bystander, f"SELECT 1 FROM {table} = {number}").fetchall()

        until(is_cut_off, "it is cut off")

    with pytest.raises(StorageUnavailable, match=r"Connection has lost its server .* make its transaction again"):
        enqueue(place, connection)
    with pytest.raises(BadValue, match="is closed"):
        enqueue(place, connection)
    assert (place.number_of_jobs(), place.number_of_sales()) == (0, 0)


def test_a_connection_of_another_thread_is_told(sqlite: CallerDatabase) -> None:
    connection = sqlite.connect()
    told: list[BaseException] = []

    def work() -> None:
        try:
            enqueue(sqlite, connection)
        except BadValue as error:
            told.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()

    assert ["belongs to another thread" in str(error) for error in told] == [True]
    connection.close()


def test_an_engine_that_commits_alone_has_the_job_there_at_once(place: CallerDatabase) -> None:
    engine = create_engine(place.alchemy_url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(text(place.insert))
        enqueue(place, connection)
        assert (place.number_of_jobs(), place.number_of_sales()) == (1, 1)
    engine.dispose()
