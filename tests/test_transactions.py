"""Enqueueing inside the caller's own transaction: a job is there if and only if it commits, by whatever connection."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row

from packhorse import Packhorse
from packhorse.errors import BadValue, NotUnique
from packhorse.storage.postgres import Postgres
from tests.children import until
from tests.postgres_server import new_schema_url, shared_postgres
from tests.storage.conftest import chosen_storages

needs_postgres = pytest.mark.skipif("postgres" not in chosen_storages(), reason="PACKHORSE_TEST_STORAGES")


class Place:
    """A database in which both the jobs and the caller's own table are, and ways to connect to it."""

    def __init__(self, kind: str, directory: Path) -> None:
        self.kind = kind
        self.path = directory / "shop.db"
        self.jobs_url = f"sqlite:///{self.path}" if kind == "sqlite" else new_schema_url()
        self.app = Packhorse(self.jobs_url)
        self.app.task(send)
        self.app.enqueue("send", {"to": "everybody"})
        self.sales = f"sales_{self.jobs_url.rpartition('=')[2]}" if kind == "postgres" else "sales"
        with self.connect() as connection:
            connection.execute(f"CREATE TABLE {self.sales} (amount integer)")
            connection.commit()

    def connect(self) -> Any:
        return sqlite3.connect(self.path) if self.kind == "sqlite" else psycopg.connect(shared_postgres().url)

    @property
    def alchemy_url(self) -> str:
        if self.kind == "sqlite":
            return f"sqlite:///{self.path}"
        return shared_postgres().url.replace("postgresql://", "postgresql+psycopg://")

    @property
    def insert(self) -> str:
        return f"INSERT INTO {self.sales} VALUES (1)"

    def number_of_jobs(self) -> int:
        return self.app.count() - 1

    def number_of_sales(self) -> int:
        with self.connect() as connection:
            ((number,),) = connection.execute(f"SELECT count(*) FROM {self.sales}").fetchall()
        return int(number)


def send(to: str) -> None:
    """A task."""


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=needs_postgres)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    place = Place(request.param, tmp_path)
    yield place
    place.app.close()


@pytest.fixture
def postgres(tmp_path: Path) -> Iterator[Place]:
    place = Place("postgres", tmp_path)
    yield place
    place.app.close()


# --- drivers ----------------------------------------------------------------------------------------------------------


def test_a_job_is_there_when_the_transaction_commits(place: Place) -> None:
    connection = place.connect()
    connection.execute(place.insert)
    job = place.app.enqueue("send", {"to": "ann"}, connection=connection)

    assert place.number_of_jobs() == 0
    connection.commit()

    assert (place.number_of_jobs(), place.number_of_sales()) == (1, 1)
    assert place.app.get(job.id).args == {"to": "ann"}
    connection.close()


def test_a_job_vanishes_with_the_transaction(place: Place) -> None:
    connection = place.connect()
    place.app.enqueue("send", {"to": "ann"}, connection=connection)  # before anything else: it begins the transaction
    connection.execute(place.insert)
    connection.rollback()

    assert (place.number_of_jobs(), place.number_of_sales()) == (0, 0)
    assert place.app.storage.tallies()[0].number == 1
    connection.close()


def test_every_way_of_enqueueing_takes_a_connection(place: Place) -> None:
    task = place.app.task(send, name="other")
    connection = place.connect()
    mine = task.using(connection=connection, priority=5)
    jobs = [mine.enqueue("a"), mine.enqueue_in(60, "b"), mine.enqueue_unique("c")]
    jobs += place.app.enqueue_many([task.call(to=f"m{n}") for n in range(1_500)], connection=connection)
    jobs.append(place.app.enqueue_in(60, "send", {"to": "d"}, connection=connection))
    assert place.number_of_jobs() == 0
    connection.commit()

    assert place.number_of_jobs() == len(jobs) == 1_504
    assert place.app.get(jobs[0].id).record.priority == 5
    connection.close()


def test_a_refused_batch_leaves_the_callers_own_work_alone(place: Place) -> None:
    task = place.app.task(send, name="strict", unique={"on_conflict": "reject"})
    task.enqueue("ann")
    connection = place.connect()
    connection.execute(place.insert)

    with pytest.raises(NotUnique):
        place.app.enqueue_many([task.call("bob"), task.call("ann")], connection=connection)
    connection.commit()

    assert (place.number_of_jobs(), place.number_of_sales()) == (1, 1)
    connection.close()


def test_without_a_transaction_the_job_is_there_at_once(place: Place) -> None:
    connection = place.connect()
    if place.kind == "sqlite":
        connection.isolation_level = None
    else:
        connection.autocommit = True
    place.app.enqueue("send", {"to": "ann"}, connection=connection)

    assert place.number_of_jobs() == 1
    connection.close()


def test_rows_may_look_as_the_caller_likes(place: Place) -> None:
    connection = place.connect()
    connection.row_factory = sqlite3.Row if place.kind == "sqlite" else dict_row
    task = place.app.task(send, name="keyed", unique=True)
    job = task.using(connection=connection).enqueue("ann")
    connection.commit()

    assert task.enqueue("ann").id == job.id
    connection.close()


@pytest.mark.parametrize("stranger", [object(), "postgresql://localhost"])
def test_a_stranger_is_refused(place: Place, stranger: object) -> None:
    with pytest.raises(BadValue, match="cannot enqueue by"):
        place.app.enqueue("send", {"to": "ann"}, connection=stranger)


def test_a_connection_to_another_file_is_refused(tmp_path: Path) -> None:
    place = Place("sqlite", tmp_path)

    with pytest.raises(BadValue, match="this connection is to"):
        place.app.enqueue("send", {"to": "ann"}, connection=sqlite3.connect(tmp_path / "other.db"))
    place.app.close()


def test_a_storage_that_is_in_no_database_refuses() -> None:
    app = Packhorse("memory://")

    with pytest.raises(BadValue, match="it is not in that database"):
        app.enqueue("send", {"to": "ann"}, connection=sqlite3.connect(":memory:"))


def test_a_coroutine_is_told_how(place: Place) -> None:
    task = place.app.task(send, name="other")
    connection = place.connect()

    for call in (
        lambda: task.using(connection=connection).aenqueue("ann"),
        lambda: place.app.aenqueue("send", {"to": "ann"}, connection=connection),
    ):
        with pytest.raises(BadValue, match="by enqueue"):
            asyncio.run(call())
    with pytest.raises(BadValue, match="enqueue_many"):
        task.using(connection=connection).call("ann")
    connection.close()


@needs_postgres
def test_a_sleeper_is_woken_by_the_commit_and_not_before(postgres: Place) -> None:
    import threading

    sleeper = Postgres.from_url(postgres.jobs_url)
    woken: list[bool] = []
    thread = threading.Thread(target=lambda: woken.append(sleeper.wait(30)), daemon=True)
    thread.start()
    schema = sleeper.options.schema
    with postgres.connect() as bystander:
        asleep = f"SELECT 1 FROM {schema}.packhorse_sleeper"
        until(lambda: bystander.execute(asleep).fetchall(), "it lies down")
    connection = postgres.connect()
    postgres.app.enqueue("send", {"to": "ann"}, connection=connection)

    assert not woken
    connection.commit()
    until(lambda: woken, "it wakes")
    thread.join()
    connection.close()
    sleeper.close()


# --- SQLAlchemy -------------------------------------------------------------------------------------------------------


@pytest.fixture
def engine(place: Place) -> Iterator[Any]:
    sqlalchemy = pytest.importorskip("sqlalchemy")
    engine = sqlalchemy.create_engine(place.alchemy_url)
    yield engine
    engine.dispose()


def test_sqlalchemy_connections(place: Place, engine: Any) -> None:
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


def test_sqlalchemy_sessions(place: Place, engine: Any) -> None:
    from sqlalchemy import text
    from sqlalchemy.orm import Session

    with Session(engine) as session:
        session.execute(text(place.insert))
        place.app.enqueue("send", {"to": "ann"}, connection=session)
        session.rollback()
        place.app.enqueue("send", {"to": "bob"}, connection=session)
        session.commit()

    assert (place.number_of_jobs(), place.number_of_sales()) == (1, 0)


@needs_postgres
def test_an_asynchronous_session_of_sqlalchemy_through_its_synchronous_side(postgres: Place) -> None:
    pytest.importorskip("sqlalchemy")
    pytest.importorskip("greenlet")
    from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

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


# --- Django -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def django_connection(place: Place) -> Iterator[Any]:
    django = pytest.importorskip("django")
    from django.conf import settings
    from django.db import connections

    if place.kind == "sqlite":
        database: dict[str, Any] = {"ENGINE": "django.db.backends.sqlite3", "NAME": str(place.path)}
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


def test_django_transactions(place: Place, django_connection: Any) -> None:
    from django.db import transaction

    atomic: Callable[[], Any] = lambda: transaction.atomic(using="place")  # noqa: E731
    with atomic():
        place.app.enqueue("send", {"to": "ann"}, connection=django_connection)
        with django_connection.cursor() as cursor:
            cursor.execute(place.insert)
        if place.kind == "postgres":
            assert place.number_of_jobs() == 0
    with atomic():
        place.app.enqueue("send", {"to": "bob"}, connection=django_connection)
        transaction.set_rollback(True, using="place")

    assert (place.number_of_jobs(), place.number_of_sales()) == (1, 1)
    place.app.enqueue("send", {"to": "cas"}, connection=django_connection)
    assert place.number_of_jobs() == 2


# --- jobs that are somewhere else -------------------------------------------------------------------------------------


def test_after_a_session_has_committed_jobs_are_enqueued_elsewhere(place: Place, engine: Any) -> None:
    from sqlalchemy import text
    from sqlalchemy.orm import Session

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


def test_after_django_has_committed_jobs_are_enqueued_elsewhere(place: Place, django_connection: Any) -> None:
    from django.db import transaction

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

    with pytest.raises(BadValue, match="does not tell when it commits"):
        app.enqueue_after_commit(sqlite3.connect(":memory:"), [])
