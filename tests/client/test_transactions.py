"""Enqueueing inside the caller's own transaction: a job is there if and only if it commits, by whatever connection."""

from __future__ import annotations

import asyncio
import re
import sqlite3
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import django
import psycopg
import psycopg2.errors
import pymysql
import pytest
from django.conf import settings
from django.core.handlers.base import BaseHandler
from django.db import connections, transaction
from django.http import HttpResponse
from django.test import RequestFactory
from psycopg.rows import dict_row
from psycopg2.extras import RealDictCursor
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from packhorse import Packhorse
from packhorse.conformance.builders import at_once, join, new_job
from packhorse.core.errors import BadValue, NotUnique, StorageError
from packhorse.core.outcome import Completed, Verdict
from packhorse.storage import open_storage
from packhorse.storage.sqlite import SQLite
from tests.caller_database import CallerDatabase, IdleWorker, needs_mysql, needs_postgres, run, send
from tests.children import PATIENCE, ROOT, until
from tests.mysql_server import MySQLServer, shared_mysql
from tests.postgres_server import PostgresServer, new_database_url, shared_postgres


@pytest.fixture(
    params=["sqlite", pytest.param("postgres", marks=needs_postgres), pytest.param("mysql", marks=needs_mysql)]
)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[CallerDatabase]:
    place = CallerDatabase(request.param, tmp_path)
    yield place
    place.close()


@pytest.fixture(
    params=[
        ("sqlite", "sqlite3"),
        pytest.param(("postgres", "psycopg"), marks=needs_postgres),
        pytest.param(("postgres", "psycopg2"), marks=needs_postgres),
        pytest.param(("mysql", "pymysql"), marks=needs_mysql),
    ],
    ids=lambda pair: pair[1],
)
def driven(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[CallerDatabase]:
    """The same with each driver."""
    place = CallerDatabase(request.param[0], tmp_path, request.param[1])
    yield place
    place.close()


@pytest.fixture
def postgres(tmp_path: Path) -> Iterator[CallerDatabase]:
    place = CallerDatabase("postgres", tmp_path)
    yield place
    place.close()


# --- drivers ----------------------------------------------------------------------------------------------------------


def test_a_job_is_there_when_the_transaction_commits(driven: CallerDatabase) -> None:
    connection = driven.connect()
    run(connection, driven.insert)
    job = driven.app.enqueue("send", {"to": "ann"}, connection=connection)

    assert driven.number_of_jobs() == 0
    connection.commit()

    assert (driven.number_of_jobs(), driven.number_of_sales()) == (1, 1)
    assert driven.app.get(job.id).args == {"to": "ann"}
    connection.close()


def test_a_job_vanishes_with_the_transaction(driven: CallerDatabase) -> None:
    connection = driven.connect()
    driven.app.enqueue("send", {"to": "ann"}, connection=connection)  # first, because it begins the transaction
    run(connection, driven.insert)
    connection.rollback()

    assert (driven.number_of_jobs(), driven.number_of_sales()) == (0, 0)
    assert driven.app.storage.tallies()[0].number == 1
    connection.close()


def test_every_way_of_enqueueing_takes_a_connection(driven: CallerDatabase) -> None:
    task = driven.app.task(send, name="other")
    connection = driven.connect()
    mine = task.using(connection=connection, priority=5)
    jobs = [mine.enqueue("a"), mine.enqueue_in(60, "b"), mine.enqueue_unique("c")]
    jobs += driven.app.enqueue_many([task.call(to=f"m{n}") for n in range(1_500)], connection=connection)
    jobs.append(driven.app.enqueue_in(60, "send", {"to": "d"}, connection=connection))
    assert driven.number_of_jobs() == 0
    connection.commit()

    assert driven.number_of_jobs() == len(jobs) == 1_504
    assert driven.app.get(jobs[0].id).record.priority == 5
    connection.close()


def test_a_refused_batch_leaves_the_callers_own_work_alone(driven: CallerDatabase) -> None:
    task = driven.app.task(send, name="strict", unique={"on_conflict": "reject"})
    task.enqueue("ann")
    connection = driven.connect()
    run(connection, driven.insert)

    with pytest.raises(NotUnique):
        driven.app.enqueue_many([task.call("bob"), task.call("ann")], connection=connection)
    connection.commit()

    assert (driven.number_of_jobs(), driven.number_of_sales()) == (1, 1)
    connection.close()


def test_without_a_transaction_the_job_exists_immediately(driven: CallerDatabase) -> None:
    connection = committing_alone(driven)
    driven.app.enqueue("send", {"to": "ann"}, connection=connection)

    assert driven.number_of_jobs() == 1
    connection.close()


def committing_alone(place: CallerDatabase) -> Any:
    """A connection each statement of which is a transaction."""
    connection = place.connect()
    if place.kind == "sqlite":
        connection.isolation_level = None
    elif place.kind == "mysql":
        connection.autocommit(True)
    else:
        connection.autocommit = True
    return connection


@pytest.mark.parametrize("error", [KeyboardInterrupt, ZeroDivisionError])
def test_whatever_breaks_in_leaves_no_transaction_open(
    place: CallerDatabase, error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    def break_in(*_: object) -> None:
        raise error

    connection = committing_alone(place)
    with monkeypatch.context() as patch:
        storage = place.app.storage
        hot_path = getattr(storage, "_hot_path", None)
        owner, name = (hot_path, "enqueue") if isinstance(storage, SQLite) else (storage, "_enqueue_outside")
        patch.setattr(owner, name, break_in)
        with pytest.raises(error):
            place.app.enqueue("send", {"to": "ann"}, connection=connection)
    run(connection, place.insert)

    assert (place.number_of_jobs(), place.number_of_sales()) == (0, 1)
    connection.close()


class NewerConnection(sqlite3.Connection):
    """As `sqlite3.connect(path, autocommit=True)` makes them from Python 3.12 on."""

    autocommit = True

    def commit(self) -> None:
        """Does nothing, says Python's manual."""


def test_without_a_transaction_the_job_exists_immediately_with_the_autocommit_of_newer_pythons(tmp_path: Path) -> None:
    place = CallerDatabase("sqlite", tmp_path)
    if sys.version_info >= (3, 12):
        connection: Any = sqlite3.connect(place.path, autocommit=True)
    else:
        connection = sqlite3.connect(place.path, factory=NewerConnection)
    place.app.enqueue("send", {"to": "ann"}, connection=connection)

    assert place.number_of_jobs() == 1
    assert not connection.in_transaction
    connection.close()
    place.app.close()


def test_a_transaction_that_the_caller_has_begun_in_words_of_his_own_is_seen(driven: CallerDatabase) -> None:
    connection = committing_alone(driven)

    for last_word, number in (("ROLLBACK", 0), ("COMMIT", 1)):
        run(connection, "BEGIN")
        run(connection, driven.insert)
        driven.app.enqueue("send", {"to": "ann"}, connection=connection)
        assert (driven.number_of_jobs(), driven.number_of_sales()) == (0, 0)
        run(connection, last_word)
        assert (driven.number_of_jobs(), driven.number_of_sales()) == (number, number)
    connection.close()


class OtherDriver:
    """A connection of PyMySQL that looks like one of an unknown driver: only the server can say whether a transaction
    is open."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    @property
    def open(self) -> bool:
        return bool(self._connection.open)

    def cursor(self) -> Any:
        return self._connection.cursor()


OtherDriver.__module__ = "MySQLdb.connections"


@needs_mysql
def test_what_other_drivers_of_mysql_have_begun_is_asked_of_the_server(tmp_path: Path) -> None:
    place = CallerDatabase("mysql", tmp_path)
    connection = place.connect()
    connection.cursorclass = pymysql.cursors.DictCursor
    other = OtherDriver(connection)
    place.app.enqueue("send", {"to": "nobody"}, connection=other)  # it does not commit alone
    connection.rollback()
    assert place.number_of_jobs() == 0
    connection.autocommit(True)

    place.app.enqueue("send", {"to": "ann"}, connection=other)
    assert place.number_of_jobs() == 1
    run(connection, "BEGIN")
    run(connection, place.insert)
    place.app.enqueue("send", {"to": "nobody"}, connection=other)
    run(connection, "ROLLBACK")

    assert (place.number_of_jobs(), place.number_of_sales()) == (1, 0)
    connection.close()
    with pytest.raises(BadValue, match="is closed"):
        place.app.enqueue("send", {"to": "ann"}, connection=other)
    place.app.close()


def test_rows_may_look_as_the_caller_likes(driven: CallerDatabase) -> None:
    connection = driven.connect()
    if driven.kind == "mysql":
        connection.cursorclass = pymysql.cursors.DictCursor
    elif driven.driver == "psycopg2":
        connection.cursor_factory = RealDictCursor
    else:
        connection.row_factory = sqlite3.Row if driven.kind == "sqlite" else dict_row
    task = driven.app.task(send, name="keyed", unique=True)
    job = task.using(connection=connection).enqueue("ann")
    connection.commit()

    assert task.enqueue("ann").id == job.id
    connection.close()


@pytest.mark.parametrize("stranger", [object(), "postgresql://localhost"])
def test_a_stranger_is_refused(place: CallerDatabase, stranger: object) -> None:
    with pytest.raises(BadValue, match="cannot enqueue by"):
        place.app.enqueue("send", {"to": "ann"}, connection=stranger)


def test_a_job_vanishes_with_its_savepoint_only(driven: CallerDatabase) -> None:
    connection = driven.connect()
    run(connection, driven.insert)
    driven.app.enqueue("send", {"to": "ann"}, connection=connection)
    run(connection, "SAVEPOINT mine")
    driven.app.enqueue("send", {"to": "nobody"}, connection=connection)
    run(connection, "ROLLBACK TO SAVEPOINT mine")
    driven.app.enqueue("send", {"to": "bob"}, connection=connection)
    connection.commit()

    assert {job.args["to"] for job in driven.app.jobs()} == {"everybody", "ann", "bob"}
    assert driven.app.storage.tallies()[0].number == 3
    connection.close()


def test_a_closed_connection_is_refused(driven: CallerDatabase) -> None:
    connection = driven.connect()
    connection.close()

    with pytest.raises(BadValue, match="is closed"):
        driven.app.enqueue("send", {"to": "ann"}, connection=connection)


@needs_postgres
@pytest.mark.parametrize("driver", ["psycopg", "psycopg2"])
def test_a_transaction_that_has_failed_is_refused(postgres: CallerDatabase, driver: str) -> None:
    postgres.driver = driver
    connection = postgres.connect()
    with pytest.raises((psycopg.errors.DivisionByZero, psycopg2.errors.DivisionByZero)):
        run(connection, "SELECT 1 / 0")

    with pytest.raises(BadValue, match="has failed already"):
        postgres.app.enqueue("send", {"to": "ann"}, connection=connection)
    connection.rollback()
    postgres.app.enqueue("send", {"to": "ann"}, connection=connection)
    connection.commit()

    assert postgres.number_of_jobs() == 1
    connection.close()


@needs_postgres
def test_a_connection_to_another_kind_of_database_is_refused(postgres: CallerDatabase, tmp_path: Path) -> None:
    jobs_in_a_file = Packhorse(f"sqlite:///{tmp_path / 'jobs.db'}")
    for app, connection in ((postgres.app, sqlite3.connect(":memory:")), (jobs_in_a_file, postgres.connect())):
        with pytest.raises(BadValue, match="cannot enqueue by"):
            app.enqueue("send", {"to": "ann"}, connection=connection)
        connection.close()
    jobs_in_a_file.close()


@needs_postgres
def test_a_connection_to_another_database_of_the_server_is_refused(postgres: CallerDatabase) -> None:
    """Even if that database has tables of Packhorse: a worker of this one would not find the job there."""
    other = Packhorse(f"{new_database_url()}?schema={postgres.jobs_url.rpartition('=')[2]}")
    assert other.count() == 0
    with psycopg.connect(other.storage._db.address) as connection:
        with pytest.raises(BadValue, match="this connection is to the database d"):
            postgres.app.enqueue("send", {"to": "ann"}, connection=connection)
        connection.execute("SELECT 1")  # its other work continues

    assert other.count() == 0
    other.close()


@needs_postgres
def test_a_connection_to_another_server_is_refused(postgres: CallerDatabase) -> None:
    server = PostgresServer().start()
    with (
        psycopg.connect(server.url) as connection,
        pytest.raises(BadValue, match="this connection is to another server"),
    ):
        postgres.app.enqueue("send", {"to": "ann"}, connection=connection)
    server.end()


@needs_postgres
def test_a_server_that_was_restarted_is_the_same_one() -> None:
    server = PostgresServer().start()
    with Packhorse(server.url) as app:
        for number in range(2):
            with psycopg.connect(server.url) as connection:
                app.enqueue("send", {"to": "ann"}, connection=connection)
            assert app.count() == number + 1
            server.stop()
            server.start()
    server.end()


def test_a_connection_to_another_file_is_refused(tmp_path: Path) -> None:
    place = CallerDatabase("sqlite", tmp_path)

    with pytest.raises(BadValue, match="this connection is to"):
        place.app.enqueue("send", {"to": "ann"}, connection=sqlite3.connect(tmp_path / "other.db"))
    place.app.close()


def test_a_storage_that_is_in_no_database_refuses() -> None:
    app = Packhorse("memory://")

    with pytest.raises(BadValue, match="it is not in that database"):
        app.enqueue("send", {"to": "ann"}, connection=sqlite3.connect(":memory:"))


def test_a_coroutine_gets_a_hint_how_to_do_it(place: CallerDatabase) -> None:
    task = place.app.task(send, name="other")
    connection = place.connect()

    for call in (
        lambda: task.using(connection=connection).aenqueue("ann"),
        lambda: place.app.aenqueue("send", {"to": "ann"}, connection=connection),
    ):
        with pytest.raises(BadValue, match="plain enqueue"):
            asyncio.run(call())
    with pytest.raises(BadValue, match="enqueue_many"):
        task.using(connection=connection).call("ann")
    connection.close()


@needs_postgres
def test_a_sleeper_is_woken_by_the_commit_and_not_before(postgres: CallerDatabase) -> None:
    sleeper = IdleWorker(postgres)
    connection = postgres.connect()
    postgres.app.enqueue("send", {"to": "ann"}, connection=connection)

    assert not sleeper.is_woken()
    connection.commit()
    until(sleeper.is_woken, "it wakes")
    sleeper.end()
    connection.close()


# --- others beside the caller's transaction ---------------------------------------------------------------------------


@pytest.fixture(params=[pytest.param("postgres", marks=needs_postgres), pytest.param("mysql", marks=needs_mysql)])
def served(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[CallerDatabase]:
    """A place on a server: several transactions write concurrently."""
    place = CallerDatabase(request.param, tmp_path)
    join(place.app.storage)
    place.app.storage.reserve("ann", {"send": 1}, 1)  # the job that is there from the start
    yield place
    place.close()


def test_a_worker_ends_a_job_while_its_twin_is_enqueued(served: CallerDatabase) -> None:
    task = served.app.task(send, name="keyed", unique=True)
    job = task.enqueue("ann")
    (held,) = served.app.storage.reserve("ann", {"keyed": 1}, 1)
    connection = served.connect()
    assert task.using(connection=connection).enqueue("ann").id == job.id

    verdicts = served.app.storage.finish([Completed(held.token)])

    assert verdicts == [Verdict.ACCEPTED]
    connection.rollback()
    connection.close()


def test_a_twin_that_waits_is_not_started_before_the_callers_work_is_there(served: CallerDatabase) -> None:
    task = served.app.task(send, name="keyed", unique=True)
    job = task.enqueue("ann")
    connection = served.connect()
    task.using(connection=connection).enqueue("ann")

    assert served.app.storage.reserve("ann", {"keyed": 1}, 1) == []
    connection.commit()
    assert [one.id for one in served.app.storage.reserve("ann", {"keyed": 1}, 1)] == [job.id]
    connection.close()


def test_a_twin_that_has_ended_is_seen_by_a_transaction_that_began_before(served: CallerDatabase) -> None:
    task = served.app.task(send, name="keyed", unique=True)
    job = task.enqueue("ann")
    (held,) = served.app.storage.reserve("ann", {"keyed": 1}, 1)
    connection = served.connect()
    if served.kind == "postgres":
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    run(connection, f"SELECT * FROM {served.sales}")  # from now on it sees what is there now
    served.app.storage.finish([Completed(held.token)])

    second = task.using(connection=connection).enqueue("ann")
    connection.commit()

    assert second.id != job.id
    assert served.app.get(second.id).state == "queued"
    connection.close()


def test_a_new_name_in_the_callers_transaction_blocks_no_other(served: CallerDatabase) -> None:
    task = served.app.task(send, name="brand-new")
    connection = served.connect()
    task.using(connection=connection).enqueue("ann")
    another = Packhorse(served.jobs_url)

    job = another.enqueue("brand-new", {"to": "bob"})

    assert served.app.get(job.id).state == "queued"
    connection.rollback()
    connection.close()
    another.close()


def test_a_lost_race_raises_the_error_of_the_callers_driver(place: CallerDatabase) -> None:
    task = place.app.task(send, name="keyed", unique=True)
    connection, rival = place.connect(), place.connect()
    if place.kind == "mysql":
        run(connection, "SET SESSION innodb_lock_wait_timeout = 1")
        task.using(connection=rival).enqueue("ann")
    else:
        if place.kind == "postgres":
            connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        else:
            run(connection, "BEGIN")
        run(connection, f"SELECT * FROM {place.sales}")
        task.enqueue("ann")
    error = {
        "sqlite": sqlite3.OperationalError,
        "postgres": psycopg.errors.SerializationFailure,
        "mysql": pymysql.OperationalError,
    }[place.kind]

    with pytest.raises(error):
        task.using(connection=connection).enqueue("ann")

    for one in (rival, connection):
        one.rollback()
        one.close()


@needs_mysql
def test_a_deadlock_of_two_callers_raises_the_drivers_error_in_one(mysql: CallerDatabase) -> None:
    """MySQL has undone the whole transaction then, and with it the savepoints to which we would go back."""
    storage, told = open_storage(mysql.jobs_url), []
    callers = {"ann": mysql.connect(), "bob": mysql.connect()}
    for name, connection in callers.items():
        storage.enqueue_within(connection, [new_job(name)])

    def enqueue(name: str, job_id: str) -> None:
        try:
            storage.enqueue_within(callers[name], [new_job(job_id)])
        except Exception as error:
            told.append(error)
            callers[name].rollback()

    at_once([lambda: enqueue("ann", "bob"), lambda: enqueue("bob", "ann")])

    assert [(type(error), error.args[0]) for error in told] == [(pymysql.err.OperationalError, 1213)]
    for connection in callers.values():
        connection.rollback()
        connection.close()
    storage.close()


# --- SQLAlchemy -------------------------------------------------------------------------------------------------------


@pytest.fixture
def engine(place: CallerDatabase) -> Iterator[Any]:
    engine = create_engine(place.alchemy_url)
    yield engine
    engine.dispose()


def test_sqlalchemy_connections(place: CallerDatabase, engine: Any) -> None:
    with engine.connect() as connection:
        place.app.enqueue("send", {"to": "nobody"}, connection=connection)
        connection.rollback()
        place.app.enqueue("send", {"to": "ann"}, connection=connection)
        connection.exec_driver_sql(place.insert)
        assert place.number_of_jobs() == 0
        connection.commit()

    assert (place.number_of_jobs(), place.number_of_sales()) == (1, 1)
    with engine.begin() as connection:
        place.app.enqueue("send", {"to": "bob"}, connection=connection)
    assert place.number_of_jobs() == 2


@needs_postgres
def test_sqlalchemy_by_psycopg2(tmp_path: Path) -> None:
    place = CallerDatabase("postgres", tmp_path, "psycopg2")
    engine = create_engine(place.alchemy_url)
    with engine.connect() as connection:
        place.app.enqueue("send", {"to": "nobody"}, connection=connection)
        connection.rollback()
        place.app.enqueue("send", {"to": "ann"}, connection=connection)
        assert place.number_of_jobs() == 0
        connection.commit()

    assert place.number_of_jobs() == 1
    engine.dispose()
    place.app.close()


def test_sqlalchemy_sessions(place: CallerDatabase, engine: Any) -> None:
    with Session(engine) as session:
        session.execute(text(place.insert))
        place.app.enqueue("send", {"to": "ann"}, connection=session)
        session.rollback()
        place.app.enqueue("send", {"to": "bob"}, connection=session)
        session.commit()

    assert (place.number_of_jobs(), place.number_of_sales()) == (1, 0)


@needs_postgres
def test_an_asynchronous_session_of_sqlalchemy_through_its_synchronous_side(postgres: CallerDatabase) -> None:
    async def work() -> None:
        engine = create_async_engine(postgres.alchemy_url)
        async with AsyncSession(engine) as session:
            for to, end in (("nobody", session.rollback), ("ann", session.commit)):
                await session.run_sync(
                    lambda own, to=to: postgres.app.enqueue("send", {"to": to}, connection=own, unique=True)
                )
                await end()
        await engine.dispose()

    asyncio.run(work())

    assert next(iter(postgres.app.jobs(limit=5))).args == {"to": "ann"}
    assert postgres.number_of_jobs() == 1


@needs_postgres
def test_an_asynchronous_connection_of_sqlalchemy_through_its_synchronous_side(postgres: CallerDatabase) -> None:
    async def work() -> None:
        engine = create_async_engine(postgres.alchemy_url)
        async with engine.begin() as connection:
            own = connection.sync_connection
            await connection.run_sync(lambda _: postgres.app.enqueue("send", {"to": "ann"}, connection=own))
            assert postgres.number_of_jobs() == 0
        async with engine.connect() as connection:
            await connection.run_sync(lambda own: postgres.app.enqueue("send", {"to": "nobody"}, connection=own))
            await connection.rollback()
        await engine.dispose()

    asyncio.run(work())

    assert postgres.number_of_jobs() == 1


@needs_postgres
def test_an_async_session_is_rejected_with_a_hint(postgres: CallerDatabase) -> None:
    async def work() -> None:
        engine = create_async_engine(postgres.alchemy_url)
        async with AsyncSession(engine) as session, engine.connect() as connection:
            for given in (session, connection, connection.sync_connection):
                with pytest.raises(BadValue, match=r"has to be awaited.*run_sync"):
                    postgres.app.enqueue("send", {"to": "ann"}, connection=given)
        await engine.dispose()
        async with await psycopg.AsyncConnection.connect(shared_postgres().url) as raw:
            with pytest.raises(BadValue, match=r"cannot enqueue by psycopg\.AsyncConnection"):
                postgres.app.enqueue("send", {"to": "ann"}, connection=raw)

    asyncio.run(work())

    assert postgres.number_of_jobs() == 0


def test_a_savepoint_of_sqlalchemy(place: CallerDatabase, engine: Any) -> None:
    with Session(engine) as session:
        session.execute(text(place.insert))
        with session.begin_nested():
            place.app.enqueue("send", {"to": "ann"}, connection=session)
        nested = session.begin_nested()
        place.app.enqueue("send", {"to": "nobody"}, connection=session)
        nested.rollback()
        session.commit()

    assert [job.args["to"] for job in place.app.jobs(limit=1)] == ["ann"]
    assert (place.number_of_jobs(), place.number_of_sales()) == (1, 1)


def test_a_closed_connection_of_sqlalchemy_is_refused(place: CallerDatabase, engine: Any) -> None:
    connection = engine.connect()
    connection.close()

    with pytest.raises(BadValue, match="is closed"):
        place.app.enqueue("send", {"to": "ann"}, connection=connection)


@needs_postgres
def test_sqlalchemy_with_another_kind_of_database_is_refused(postgres: CallerDatabase) -> None:
    with create_engine("sqlite://").connect() as connection, pytest.raises(BadValue, match="cannot enqueue by"):
        postgres.app.enqueue("send", {"to": "ann"}, connection=connection)


def test_the_commit_of_a_session_wakes_a_sleeper(place: CallerDatabase, engine: Any) -> None:
    sleeper = IdleWorker(place)
    with Session(engine) as session:
        place.app.enqueue("send", {"to": "ann"}, connection=session)
        assert not sleeper.is_woken()
        session.commit()

        until(sleeper.is_woken, "it wakes")
    sleeper.end()


# --- Django -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def django_connection(place: CallerDatabase) -> Iterator[Any]:
    if place.kind == "sqlite":
        database: dict[str, Any] = {"ENGINE": "django.db.backends.sqlite3", "NAME": str(place.path)}
    elif place.kind == "mysql":
        pymysql.version_info = (2, 2, 1, "final", 0)  # Django asks whether it is at least its usual driver's
        pymysql.install_as_MySQLdb()
        database = {"ENGINE": "django.db.backends.mysql", "NAME": place.jobs_url.rpartition("/")[2], "USER": "root"}
        database |= {"HOST": "127.0.0.1", "PORT": str(shared_mysql().port)}
    else:
        port = str(shared_postgres().port)
        database = {"ENGINE": "django.db.backends.postgresql", "NAME": "postgres", "USER": "postgres"}
        database |= {"HOST": "127.0.0.1", "PORT": port}
    if not settings.configured:
        settings.configure(DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}})
        django.setup()
    connections.databases["place"] = {**connections.databases["default"], **database}
    yield connections["place"]
    connections["place"].close()
    del connections["place"]


def test_django_transactions(place: CallerDatabase, django_connection: Any) -> None:
    atomic: Callable[[], Any] = lambda: transaction.atomic(using="place")  # noqa: E731
    with atomic():
        place.app.enqueue("send", {"to": "ann"}, connection=django_connection)
        with django_connection.cursor() as cursor:
            cursor.execute(place.insert)
        if place.kind != "sqlite":
            assert place.number_of_jobs() == 0
    with atomic():
        place.app.enqueue("send", {"to": "bob"}, connection=django_connection)
        transaction.set_rollback(True, using="place")

    assert (place.number_of_jobs(), place.number_of_sales()) == (1, 1)
    place.app.enqueue("send", {"to": "cas"}, connection=django_connection)
    assert place.number_of_jobs() == 2


def test_a_savepoint_of_django(place: CallerDatabase, django_connection: Any) -> None:
    with transaction.atomic(using="place"):
        place.app.enqueue("send", {"to": "ann"}, connection=django_connection)
        with transaction.atomic(using="place"):
            place.app.enqueue("send", {"to": "nobody"}, connection=django_connection)
            transaction.set_rollback(True, using="place")

    assert [job.args["to"] for job in place.app.jobs(limit=1)] == ["ann"]
    assert place.number_of_jobs() == 1


def test_an_error_within_a_savepoint_of_django_takes_its_jobs_along(
    place: CallerDatabase, django_connection: Any
) -> None:
    task = place.app.task(send, name="keyed", unique={"on_conflict": "reject"})
    with transaction.atomic(using="place", durable=True):
        task.using(connection=django_connection).enqueue("ann")
        with suppress(ZeroDivisionError), transaction.atomic(using="place"):
            place.app.enqueue_many([task.call("bob"), task.call("cas")], connection=django_connection)
            raise ZeroDivisionError
        with pytest.raises(NotUnique), transaction.atomic(using="place"):
            place.app.enqueue_many([task.call("bob"), task.call("ann")], connection=django_connection)

    assert [job.args["to"] for job in place.app.jobs(task="keyed")] == ["ann"]


def test_a_transaction_that_django_will_not_commit_is_refused(place: CallerDatabase, django_connection: Any) -> None:
    """Something in it has failed, and Django refuses the caller's own statements, too."""
    with transaction.atomic(using="place"):
        with suppress(ZeroDivisionError), transaction.atomic(using="place", savepoint=False):
            raise ZeroDivisionError
        with pytest.raises(BadValue, match="has failed already"):
            place.app.enqueue("send", {"to": "nobody"}, connection=django_connection)

    place.app.enqueue("send", {"to": "ann"}, connection=django_connection)
    assert place.number_of_jobs() == 1


def test_a_request_of_django_that_fails_leaves_no_job(place: CallerDatabase, django_connection: Any) -> None:
    """With ATOMIC_REQUESTS, where each request is a transaction."""
    elsewhere = Packhorse("memory://")
    task = elsewhere.task(send)

    def view(request: Any) -> HttpResponse:
        to = request.GET["to"]
        place.app.enqueue("send", {"to": to}, connection=django_connection)
        elsewhere.enqueue_after_commit(django_connection, [task.call(to)])
        assert elsewhere.count() == 0
        if to == "nobody":
            raise ZeroDivisionError
        return HttpResponse("enqueued")

    django_connection.settings_dict["ATOMIC_REQUESTS"] = True
    answer = BaseHandler().make_view_atomic(view)
    with pytest.raises(ZeroDivisionError):
        answer(RequestFactory().get("/", {"to": "nobody"}))
    answer(RequestFactory().get("/", {"to": "ann"}))

    assert place.number_of_jobs() == 1
    assert [job.args for job in elsewhere.jobs()] == [{"to": "ann"}]


def test_the_commit_of_django_wakes_a_sleeper(place: CallerDatabase, django_connection: Any) -> None:
    sleeper = IdleWorker(place)
    with transaction.atomic(using="place"):
        place.app.enqueue("send", {"to": "ann"}, connection=django_connection)
        assert not sleeper.is_woken()

    until(sleeper.is_woken, "it wakes")
    sleeper.end()


def test_a_closed_connection_of_django_opens_itself(place: CallerDatabase, django_connection: Any) -> None:
    django_connection.close()

    place.app.enqueue("send", {"to": "ann"}, connection=django_connection)

    assert place.number_of_jobs() == 1


# --- jobs that are somewhere else -------------------------------------------------------------------------------------


def test_after_a_session_has_committed_jobs_are_enqueued_elsewhere(place: CallerDatabase, engine: Any) -> None:
    elsewhere = Packhorse("memory://")
    task = elsewhere.task(send)
    with Session(engine) as session:
        elsewhere.enqueue_after_commit(session, [task.call("nobody")])
        session.rollback()
        session.commit()
        session.execute(text(place.insert))
        (job,) = elsewhere.enqueue_after_commit(session, [task.call("ann")])
        assert elsewhere.count() == 0
        session.commit()
        session.commit()

    assert [one.args for one in elsewhere.jobs()] == [{"to": "ann"}]
    assert job.state == "queued"


def test_what_is_enqueued_after_a_commit_goes_with_its_savepoint_and_with_no_other(engine: Any) -> None:
    elsewhere = Packhorse("memory://")
    task = elsewhere.task(send)
    with Session(engine) as session:
        elsewhere.enqueue_after_commit(session, [task.call("ann")])
        with session.begin_nested():
            elsewhere.enqueue_after_commit(session, [task.call("bob")])
        nested = session.begin_nested()
        elsewhere.enqueue_after_commit(session, [task.call("nobody")])
        nested.rollback()
        assert elsewhere.count() == 0
        session.commit()
        assert {job.args["to"] for job in elsewhere.jobs()} == {"ann", "bob"}

        with session.begin_nested():
            elsewhere.enqueue_after_commit(session, [task.call("nobody")])
        session.rollback()
        elsewhere.enqueue_after_commit(session, [task.call("nobody")])
        session.close()
        session.execute(text("SELECT 1"))
        session.commit()

    assert elsewhere.count() == 2


def test_the_session_of_a_thread_will_do(place: CallerDatabase, engine: Any) -> None:
    """As `db.session` of Flask-SQLAlchemy is one."""
    elsewhere = Packhorse("memory://")
    task = elsewhere.task(send)
    session = scoped_session(sessionmaker(engine))
    for end in (session.rollback, session.commit):
        place.app.enqueue("send", {"to": "ann"}, connection=session)
        elsewhere.enqueue_after_commit(session, [task.call("ann")])
        assert (place.number_of_jobs(), elsewhere.count()) == (0, 0)
        end()
    session.remove()

    assert (place.number_of_jobs(), elsewhere.count()) == (1, 1)


def test_if_jobs_cannot_be_enqueued_after_a_commit_it_raises_and_the_session_stays_usable(
    place: CallerDatabase, engine: Any, tmp_path: Path
) -> None:
    (tmp_path / "no").write_text("a file, not a directory")
    unreachable, elsewhere = Packhorse(f"sqlite:///{tmp_path / 'no' / 'jobs.db'}"), Packhorse("memory://")
    lost, kept = unreachable.task(send), elsewhere.task(send)
    with Session(engine) as session:
        session.execute(text(place.insert))
        unreachable.enqueue_after_commit(session, [lost.call("ann")])
        elsewhere.enqueue_after_commit(session, [kept.call("bob")])
        with pytest.raises(StorageError):
            session.commit()
        session.execute(text(place.insert))
        session.commit()

    assert place.number_of_sales() == 2
    assert [job.args for job in elsewhere.jobs()] == [{"to": "bob"}]


@needs_postgres
def test_after_an_asynchronous_session_has_committed_jobs_are_enqueued_elsewhere(postgres: CallerDatabase) -> None:
    elsewhere = Packhorse("memory://")
    task = elsewhere.task(send)

    async def work() -> None:
        engine = create_async_engine(postgres.alchemy_url)
        async with AsyncSession(engine) as session:
            for to, end in (("nobody", session.rollback), ("ann", session.commit)):
                await session.execute(text(postgres.insert))
                elsewhere.enqueue_after_commit(session, [task.call(to)])
                assert elsewhere.count() == 0
                await end()
        await engine.dispose()

    asyncio.run(work())

    assert [job.args for job in elsewhere.jobs()] == [{"to": "ann"}]


def test_after_django_has_committed_jobs_are_enqueued_elsewhere(place: CallerDatabase, django_connection: Any) -> None:
    elsewhere = Packhorse("memory://")
    task = elsewhere.task(send)
    with transaction.atomic(using="place"):
        elsewhere.enqueue_after_commit(django_connection, [task.call("ann")])
        assert elsewhere.count() == 0
    with transaction.atomic(using="place"):
        elsewhere.enqueue_after_commit(django_connection, [task.call("nobody")])
        transaction.set_rollback(True, using="place")

    assert [one.args for one in elsewhere.jobs()] == [{"to": "ann"}]


def test_a_connection_that_does_not_tell_of_commits_is_refused() -> None:
    app = Packhorse("memory://")

    with pytest.raises(BadValue, match="commit"):
        app.enqueue_after_commit(sqlite3.connect(":memory:"), [])


# --- the page ---------------------------------------------------------------------------------------------------------


def programs() -> dict[str, str]:
    """The programs of docs/transactions.md, by the headings above them."""
    page = (ROOT / "docs" / "transactions.md").read_text("utf-8")
    title, found = "", {}
    for heading, code in re.findall(r"^## (.*?)$|^```python\n(.*?)^```$", page, flags=re.MULTILINE | re.DOTALL):
        title = heading or title
        if code:
            found[f"{title}, once more" if title in found else title] = code
    return found


@pytest.mark.parametrize(
    ("title", "only_on"),
    [
        ("psycopg", "postgres"),
        ("PyMySQL", "mysql"),
        ("sqlite3", "sqlite"),
        ("SQLAlchemy", None),
        ("SQLAlchemy, once more", "postgres"),
        ("Django", None),
        ("If the jobs are in another storage", None),
    ],
)
def test_a_program_of_the_page_does_what_it_says(
    title: str, only_on: str | None, place: CallerDatabase, django_connection: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it stands there, but for the names of database and table."""
    if only_on not in (None, place.kind):
        pytest.skip(f"this program is for {only_on}")
    monkeypatch.setattr(connections._connections, "default", django_connection, raising=False)
    engine = create_engine(place.alchemy_url)
    names: dict[str, Any] = {"app": place.app, "AsyncSession": AsyncSession, "text": text}
    names |= {"Session": Session, "engine": engine}
    _, _, task = programs()[""].partition("\n\n\n")
    program = programs()[title].replace("orders (id)", f"{place.sales} (amount)").replace("shop.db", str(place.path))
    program = re.sub(r'"postgresql\+psycopg:[^"]*"', repr(place.alchemy_url), program)
    program = re.sub(r'"postgresql:[^"]*"', f'"{shared_postgres().url}"' if place.kind == "postgres" else "", program)
    if place.kind == "mysql":
        where = f'host="127.0.0.1", port={shared_mysql().port}, user="root"'
        program = program.replace('host="localhost", user="app"', where)
        program = program.replace('database="shop"', f'database="{place.jobs_url.rpartition("/")[2]}"')
    exec(task + program, names)
    if "order" in names:
        asyncio.run(_with_session(place, names["order"]))
    engine.dispose()

    assert place.number_of_jobs() == place.number_of_sales() >= 1
    assert place.app.count(state="queued", task="send_invoice") == place.number_of_jobs()


async def _with_session(place: CallerDatabase, work: Callable[[AsyncSession], Any]) -> None:
    engine = create_async_engine(place.alchemy_url)
    async with AsyncSession(engine) as session:
        await work(session)
    await engine.dispose()


def test_every_program_of_the_page_is_tried() -> None:
    assert list(programs()) == [
        "",
        "psycopg",
        "PyMySQL",
        "sqlite3",
        "SQLAlchemy",
        "SQLAlchemy, once more",
        "Django",
        "If the jobs are in another storage",
    ]


# --- MySQL ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def mysql(tmp_path: Path) -> Iterator[CallerDatabase]:
    place = CallerDatabase("mysql", tmp_path)
    yield place
    place.close()


@needs_mysql
def test_a_long_open_transaction_blocks_no_other(mysql: CallerDatabase) -> None:
    """Not even one that enqueues a unique job under a new name, in MySQL's default isolation."""
    keyed = mysql.app.task(send, name="keyed", unique=True)
    connection = mysql.connect()
    keyed.using(connection=connection).enqueue("ann")

    others = [keyed.enqueue(f"b{number}") for number in range(5)]  # a lock that is not given would take seconds
    mysql.app.enqueue_many([keyed.call(f"c{number}") for number in range(50)])
    mysql.app.pause("keyed")
    assert len({job.id for job in others}) == 5
    assert mysql.app.storage._db.meter.busy_retries == 0
    connection.commit()

    assert mysql.number_of_jobs() == 56
    connection.close()


@needs_mysql
def test_two_transactions_want_the_same_key_and_the_second_waits_for_the_first(mysql: CallerDatabase) -> None:
    keyed = mysql.app.task(send, name="keyed", unique=True)
    first, second = mysql.connect(), mysql.connect()
    winner = keyed.using(connection=first).enqueue("ann")
    told: list[str] = []
    thread = threading.Thread(target=lambda: told.append(keyed.using(connection=second).enqueue("ann").id))
    thread.start()
    with mysql.connect() as bystander:
        waits = "SHOW GLOBAL STATUS LIKE 'Innodb_row_lock_current_waits'"
        until(lambda: run(bystander, waits).fetchone()[1] != "0", "the second waits")

    first.commit()
    thread.join(PATIENCE)
    second.commit()

    assert told == [winner.id]
    assert mysql.number_of_jobs() == 1
    first.close()
    second.close()


@needs_mysql
@pytest.mark.parametrize("charset", ["utf8mb4", "latin1"])
def test_text_arrives_whatever_the_session_makes_of_quotes(mysql: CallerDatabase, charset: str) -> None:
    text = 'it\'s \\ "so" % $1 č 🐎'
    name = mysql.jobs_url.rpartition("/")[2]
    connection = shared_mysql().connect(
        database=name, charset=charset, sql_mode="NO_BACKSLASH_ESCAPES,ANSI_QUOTES,STRICT_ALL_TABLES"
    )
    job = mysql.app.enqueue("send", {"to": text}, connection=connection)
    connection.commit()

    assert mysql.app.get(job.id).args == {"to": text}
    connection.close()


@needs_mysql
def test_any_connection_to_the_server_will_do_but_none_to_another(mysql: CallerDatabase) -> None:
    with shared_mysql().connect() as connection:  # in no database at all
        mysql.app.enqueue("send", {"to": "ann"}, connection=connection)
        connection.commit()
    assert mysql.number_of_jobs() == 1

    server = MySQLServer().start()
    with server.connect() as connection, pytest.raises(BadValue, match="this connection is to another server"):
        mysql.app.enqueue("send", {"to": "ann"}, connection=connection)
    server.end()
