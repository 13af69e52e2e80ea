"""When a database server makes trouble: killed and restarted, full, or its neighbours in each other's way. Nothing that
was acknowledged is lost, and nobody has to be restarted. The same for PostgreSQL and MySQL; what only one of them knows
is in its own directory."""

from __future__ import annotations

import contextlib
import itertools
import random
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import psycopg
import pymysql
import pytest

from packhorse.conformance.builders import (
    FAILURE,
    add,
    at_once,
    find_all,
    history,
    ids,
    join,
    new_job,
    new_jobs,
    recount,
    stored,
    tallies,
    unique,
)
from packhorse.core.errors import StorageFull, StorageUnavailable
from packhorse.core.job import COMPLETED
from packhorse.core.outcome import Completed, Failed, Verdict
from packhorse.storage import open_storage
from packhorse.storage.contract import Storage
from packhorse.storage.mysql import MySQL
from packhorse.storage.postgres import Postgres
from packhorse.storage.records import Filter
from tests import mysql_server
from tests.children import PATIENCE, forked, in_child, until
from tests.mysql_server import MySQLServer, shared_mysql
from tests.postgres_server import PostgresServer, new_schema_url, shared_postgres
from tests.proxy import proxy_to
from tests.storage import invariants
from tests.storage.conftest import chosen_storages

Server = PostgresServer | MySQLServer
MOST = 20
"""How many connections a server gives."""


@pytest.fixture(params=["postgres", "mysql"])
def kind(request: pytest.FixtureRequest) -> str:
    if request.param not in chosen_storages():
        pytest.skip(f"PACKHORSE_TEST_STORAGES does not name {request.param}")
    return str(request.param)


def new_server(kind: str, *settings: str) -> Server:
    return (PostgresServer if kind == "postgres" else MySQLServer)(*settings)


@pytest.fixture
def server(kind: str) -> Iterator[Server]:
    """A server that the test may kill, with few connections."""
    server = new_server(kind, f"max_connections={MOST}").start()
    yield server
    server.end()


@pytest.fixture
def url(kind: str) -> Iterator[str]:
    """An empty storage on the shared server."""
    if kind == "postgres":
        yield new_schema_url()
    else:
        url = mysql_server.new_database_url()
        yield url
        mysql_server.give_back(url)


def with_options(url: str, options: str) -> str:
    return f"{url}{'&' if '?' in url else '?'}{options}"


def all_connections(server: Server) -> list[Any]:
    """Every one that the server gives. It may refuse one more for a moment, until it has noticed who has left."""
    most = MOST + isinstance(server, MySQLServer)  # which keeps one for its operator
    others: list[Any] = []

    def are_all_ours() -> bool:
        with suppress(psycopg.OperationalError, pymysql.OperationalError):
            others.append(server.connect())
        return len(others) == most

    until(are_all_ours, "all connections are ours")
    return others


# --- the server goes and comes ----------------------------------------------------------------------------------------


def test_a_server_that_was_restarted_is_found_again_by_the_next_call(server: Server) -> None:
    storage = open_storage(server.url)
    add(storage, "before")
    server.stop()
    server.start()

    add(storage, "after")

    assert [job.id for job in storage.get_many(["before", "after"])] == ["before", "after"]
    storage.close()


def test_while_the_server_is_away_a_call_says_so_and_changes_nothing(server: Server) -> None:
    storage = open_storage(f"{server.url}?patience=0.2s")
    add(storage)
    server.stop()

    with pytest.raises(StorageUnavailable, match=r"cannot be reached|does not answer"):
        storage.enqueue([new_job("lost")])
    server.start()

    assert storage.get("lost") is None
    storage.close()


@pytest.mark.parametrize("options", [{}, {"delay": 3_600_000_000}, {"unique": unique("key", on_conflict="reject")}])
def test_a_job_whose_answer_was_lost_is_enqueued_once_and_its_caller_is_not_troubled(
    url: str, kind: str, options: dict[str, Any]
) -> None:
    """Else he would make the call again, with another id."""
    server = shared_mysql() if kind == "mysql" else shared_postgres()
    with proxy_to(server.port) as proxy, contextlib.closing(open_storage(proxy.instead_of(url))) as storage:
        storage.enqueue([new_job()])
        proxy.lose_answers(to=b"once")

        storage.enqueue([new_job("once", **options)])

        assert proxy.lost == 1
        assert len(find_all(storage)) == 2


class Producer(threading.Thread):
    """Enqueues until told to stop, and repeats each call until it is acknowledged."""

    def __init__(self, url: str, name: str) -> None:
        super().__init__(daemon=True)
        self.storage = open_storage(url)
        self.acknowledged: list[str] = []
        self.is_over = False
        self._numbers = (f"{name}-{number}" for number in itertools.count())

    def run(self) -> None:
        while not self.is_over:
            batch = [new_job(job_id) for job_id in itertools.islice(self._numbers, 5)]
            while True:
                try:
                    self.storage.enqueue(batch)
                    break
                except StorageUnavailable:
                    time.sleep(0.01)
            self.acknowledged += [new.id for new in batch]
        self.storage.close()


def test_no_acknowledged_job_is_lost_when_the_server_is_killed_under_load(server: Server) -> None:
    url = f"{server.url}?patience=0.2s&connections=2"
    producers = [Producer(url, f"p{number}") for number in range(3)]
    worker = open_storage(url)
    join(worker)
    told: list[str] = []
    for producer in producers:
        producer.start()

    for kills in range(1, 3):
        while len(told) < 400 * kills:
            told += _work_once(worker)
        server.kill()
        server.start()
    for producer in producers:
        producer.is_over = True
        producer.join(PATIENCE)
    worker.close()

    check = open_storage(server.url)
    acknowledged = {job_id for producer in producers for job_id in producer.acknowledged}
    jobs = {job.id: job for job in find_all(check, limit=1_000)}
    assert acknowledged <= jobs.keys()
    assert {jobs[job_id].state for job_id in told} == {COMPLETED}
    assert tallies(check) == recount(check)
    for job in random.sample(list(jobs.values()), 50):
        invariants.check_job(job)
        invariants.check_history(job, history(check, job.id))
    check.close()


def _work_once(worker: Storage) -> list[str]:
    try:
        jobs = worker.reserve("ann", {"mail": 1}, 20)
        outcomes = [Completed(job.token) for job in jobs]
    except StorageUnavailable:
        return []
    while True:
        try:
            worker.finish(outcomes)
            return [job.id for job in jobs]
        except StorageUnavailable:
            time.sleep(0.01)


# --- no room ----------------------------------------------------------------------------------------------------------


def test_a_full_server_is_waited_for(server: Server) -> None:
    storage = open_storage(server.url)
    add(storage)
    storage.close()
    others = all_connections(server)
    freed = threading.Timer(0.3, lambda: [other.close() for other in others])
    freed.start()

    assert len(find_all(storage)) == 1
    freed.join()
    storage.close()


def test_a_server_that_stays_full_is_told(server: Server) -> None:
    storage = open_storage(f"{server.url}?patience=0.2s")
    others = all_connections(server)

    with pytest.raises(StorageUnavailable, match=r"no connection left|too many clients"):
        storage.tallies()
    for other in others:
        other.close()


def test_threads_share_the_connections_that_there_are(url: str) -> None:
    storage = open_storage(with_options(url, "connections=2"))

    at_once([lambda: storage.enqueue(new_jobs(2)) for _ in range(16)])

    assert storage.health().connections_open <= 2
    assert len(find_all(storage)) == 32
    storage.close()


def test_a_process_whose_connections_are_all_in_use_is_told(url: str) -> None:
    storage = open_storage(with_options(url, "connections=1&patience=0.05s"))
    add(storage)

    with storage._db.lent(), pytest.raises(StorageUnavailable, match="connections"):
        storage.tallies()
    storage.close()


def test_on_a_full_disk_nothing_is_half_written_and_work_goes_on_when_there_is_room_again(
    kind: str,
) -> None:
    """A real one: the tables are on a disk of twenty megabytes."""
    server = new_server(kind)
    storage = open_storage(server.start_with_small_disk(20))
    join(storage)
    storage.enqueue([new_job("first")])
    (held,) = storage.reserve("ann", {"mail": 1}, 1)
    acknowledged = ["first"]

    def fill() -> None:
        while True:
            batch = [new_job(args=f'{{"text":"{random.randbytes(20_000).hex()}"}}') for _ in range(10)]
            storage.enqueue(batch)
            acknowledged.extend(new.id for new in batch)

    with pytest.raises(StorageFull, match="no room") as told:
        fill()
    assert told.value.hint is not None
    assert "free some disk space" in told.value.hint
    assert {job.id for job in find_all(storage)} == set(acknowledged)
    assert tallies(storage) == recount(storage)

    server.enlarge_disk(60)
    storage.enqueue([new_job("afterwards")])
    assert storage.finish([Completed(held.token)]) == [Verdict.ACCEPTED]
    assert len(storage.reserve("ann", {"mail": 1}, 1_000)) == len(acknowledged)
    storage.close()
    server.end()


# --- neighbours -------------------------------------------------------------------------------------------------------


def test_a_storm_of_steering_failing_and_finishing_leaves_every_job_whole(url: str) -> None:
    """Everybody locks the same jobs, in whatever order the callers name them."""
    storages = [open_storage(url) for _ in range(6)]
    for number, storage in enumerate(storages):
        join(storage, f"w{number}")
    names = [f"job-{number}" for number in range(40)]
    storages[0].enqueue([new_job(name, queue="abc"[n % 3]) for n, name in enumerate(names)])

    def storm(number: int) -> None:
        storage, dice = storages[number], random.Random(number)
        for _ in range(40):
            jobs = storage.reserve(f"w{number}", {"a": 1, "b": 2, "c": 3}, 5)
            dice.shuffle(jobs)
            storage.finish(
                [
                    Completed(job.token) if dice.random() < 0.5 else Failed(job.token, FAILURE, retry_in=0)
                    for job in jobs
                ]
            )
            chosen = dice.sample(names, 10)
            step = dice.choice([storage.abort, storage.retry, storage.force_start])
            step(chosen)
            storage.set_priority(dice.sample(names, 10), dice.randint(1, 10))

    at_once([lambda number=number: storm(number) for number in range(6)])

    for job in find_all(storages[0]):
        invariants.check_job(job)
        invariants.check_history(job, history(storages[0], job.id))
    assert tallies(storages[0]) == recount(storages[0])
    for storage in storages:
        storage.close()


# --- forked children --------------------------------------------------------------------------------------------------


def served_storage(url: str) -> Postgres | MySQL:
    storage = open_storage(url)
    assert isinstance(storage, Postgres | MySQL)
    return storage


def test_a_child_goes_on_with_the_same_storage_and_leaves_the_parents_connection_alone(url: str) -> None:
    storage = served_storage(url)
    add(storage, "parent-1")

    def work() -> list[str]:
        storage.enqueue([new_job("child-1")])
        taken = storage.reserve(join(storage), {"mail": 1}, 10)
        storage.finish([Completed(job.token) for job in taken])
        storage.close()
        return ids(taken)

    assert in_child(work) == ["parent-1", "child-1"]
    assert stored(storage, "child-1").state is COMPLETED
    assert storage._db.pool.connections()[0] == 1
    storage.close()


def test_parent_and_children_write_at_the_same_time(url: str) -> None:
    storage = served_storage(url)
    add(storage, "before")

    def work(name: str) -> str:
        for number in range(20):
            storage.enqueue([new_job(f"{name}-{number}-{one}") for one in range(3)])
            assert storage.find(Filter(), limit=1).jobs
        return "done"

    with (
        forked(lambda parent: parent.send(work("ann"))) as ann,
        forked(lambda parent: parent.send(work("bob"))) as bob,
    ):
        assert work("cas") == "done"
        assert (ann.receive(), bob.receive()) == ("done", "done")

    assert len(find_all(storage)) == 181
    assert tallies(storage) == recount(storage)
    storage.close()
