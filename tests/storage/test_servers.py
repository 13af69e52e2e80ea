"""When a database server makes trouble: killed and restarted, full, or its neighbours in each other's way. Nothing that
was acknowledged is lost, and nobody has to be restarted. The same for PostgreSQL and MySQL; what only one of them knows
is in its own directory."""

from __future__ import annotations

import contextlib
import itertools
import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import psycopg
import pymysql
import pytest

from packhorse.conformance.builders import (
    FAILURE,
    LEASE,
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
    take,
    tallies,
    unique,
)
from packhorse.core.errors import StorageFull, StorageUnavailable
from packhorse.core.event import ForemanAction, ForemanOrder
from packhorse.core.job import COMPLETED, Job
from packhorse.core.outcome import Completed, Failed, Verdict
from packhorse.storage import open_storage
from packhorse.storage.contract import Storage
from packhorse.storage.mysql import MySQL
from packhorse.storage.mysql.connection import MySQLConnection
from packhorse.storage.mysql.transaction import MySQLTransaction
from packhorse.storage.postgres import Postgres
from packhorse.storage.postgres.transaction import PostgresTransaction
from packhorse.storage.records import ClientInfo, Filter, WorkerInfo
from packhorse.storage.sql.transaction import SQLTransaction
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


# --- locks ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def storage(url: str) -> Iterator[Postgres | MySQL]:
    storage = served_storage(url)
    yield storage
    storage.close()


def lose_record(storage: Postgres | MySQL, table: str, row_id: str) -> None:
    """Delete a row as an operator may do by hand."""
    with storage._db.unprepared() as connection:
        connection.execute(f"DELETE FROM {storage._dialect.prefix}{table} WHERE id = '{row_id}'")


@contextlib.contextmanager
def locked_row(storage: Postgres | MySQL, table: str, row_id: str) -> Iterator[None]:
    """Another connection locks this row until the block ends."""
    with storage._db.unprepared() as connection:
        connection.execute("BEGIN")
        connection.execute(f"SELECT id FROM {storage._dialect.prefix}{table} WHERE id = '{row_id}' FOR UPDATE")
        yield
        connection.execute("ROLLBACK")


def waits_for_row(storage: Postgres | MySQL, table: str, row_id: str, call: Callable[[], object]) -> bool:
    """Make a call while another connection locks this row. Return whether the call waited for the lock."""
    with ThreadPoolExecutor(1) as pool, storage._db.unprepared() as observer:
        with locked_row(storage, table, row_id):
            future = pool.submit(call)
            until(lambda: future.done() or has_waiters(observer), "the call returns or waits for a lock")
            has_waited = not future.done()
        future.result(PATIENCE)
    return has_waited


def has_waiters(observer: Any) -> bool:
    if isinstance(observer, MySQLConnection):
        return bool(observer.rows("SELECT 1 FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'"))
    return bool(observer.rows("SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'"))


def worker_ids(storage: Storage) -> list[str]:
    return [worker.id for worker in storage.workers()]


def dead_worker_with_job(storage: Postgres | MySQL, owner: str, job_id: str) -> Job:
    """A worker that holds a job and whose last beat is long ago."""
    job = take(storage, add(storage, job_id, queue=owner), owner)
    with storage._db.unprepared() as connection:
        connection.execute(f"UPDATE {storage._dialect.prefix}worker SET beat_at = 1 WHERE id = '{owner}'")
    return job


def test_rescue_leaves_a_worker_that_joins_meanwhile_with_its_jobs(
    storage: Postgres | MySQL, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = take(storage, add(storage), "ann")
    lose_record(storage, "worker", "ann")
    neighbour = served_storage(url)
    find = SQLTransaction.silent_owners

    def find_and_join(tx: SQLTransaction, *asked: Any) -> list[str]:
        found = find(tx, *asked)
        join(neighbour, "ann")
        return found

    monkeypatch.setattr(SQLTransaction, "silent_owners", find_and_join)
    rescued = storage.rescue(lease=LEASE, why="silence")

    assert rescued == []
    assert worker_ids(storage) == ["ann"]
    assert stored(storage, job.id).owner == "ann"
    neighbour.close()


def test_rescue_does_not_delete_a_worker_that_joins_after_its_jobs_are_taken(
    storage: Postgres | MySQL, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = take(storage, add(storage), "ann")
    lose_record(storage, "worker", "ann")
    neighbour = served_storage(url)
    keep = SQLTransaction.keep

    def keep_and_join(tx: SQLTransaction, *change: Any) -> Job:
        kept = keep(tx, *change)
        neighbour.join(WorkerInfo("ann"))
        return kept

    monkeypatch.setattr(SQLTransaction, "keep", keep_and_join)
    rescued = storage.rescue(lease=LEASE, why="silence")

    assert [each.job_id for each in rescued] == [job.id]
    assert worker_ids(storage) == ["ann"]
    neighbour.close()


def test_rescue_skips_a_locked_job_and_takes_it_the_next_time(storage: Postgres | MySQL) -> None:
    for owner, job_id in [("ann", "a"), ("bob", "b")]:
        dead_worker_with_job(storage, owner, job_id)

    with locked_row(storage, "job", "a"):
        first = storage.rescue(lease=LEASE, why="silence")
        left = worker_ids(storage)
    second = storage.rescue(lease=LEASE, why="silence")

    assert [each.job_id for each in first] == ["b"]
    assert left == ["ann"]
    assert [each.job_id for each in second] == ["a"]
    assert worker_ids(storage) == []


def test_leave_waits_for_a_locked_worker(storage: Postgres | MySQL) -> None:
    join(storage, "ann")

    assert waits_for_row(storage, "worker", "ann", lambda: storage.leave("ann"))
    assert worker_ids(storage) == []


def test_events_about_a_worker_do_not_wait_for_its_row(storage: Postgres | MySQL) -> None:
    join(storage, "ann")
    order = ForemanOrder(ForemanAction.STOP)

    for call in (lambda: storage.record_stat("ann", {}), lambda: storage.order("ann", order)):
        assert not waits_for_row(storage, "worker", "ann", call)


def test_a_client_that_leaves_while_it_is_subscribed_leaves_no_subscription(
    storage: Postgres | MySQL, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage.join_client(ClientInfo("shop"))
    neighbour = served_storage(url)
    kind = PostgresTransaction if isinstance(storage, Postgres) else MySQLTransaction
    execute: Any = kind.execute
    left: list[Future[bool]] = []

    def execute_after_leave(tx: Any, sql: str, values: Any = ()) -> Any:
        if sql == storage._sql["add_subscriber"]:
            left.append(pool.submit(neighbour.leave_client, "shop"))
            until(lambda: left[0].done() or has_waiters(observer), "the client leaves or waits for a lock")
        return execute(tx, sql, values)

    monkeypatch.setattr(kind, "execute", execute_after_leave)
    with storage._db.unprepared() as observer, ThreadPoolExecutor(1) as pool:
        storage.enqueue([new_job("a", subscriber="shop")])
        assert left[0].result(PATIENCE)

    assert storage.clients() == []
    assert storage.subscribers("a") == []
    neighbour.close()


def test_two_rescues_at_a_time_do_not_share_the_queues_of_unowned_jobs(
    storage: Postgres | MySQL, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = take(storage, add(storage), "ann")
    with storage._db.unprepared() as connection:
        connection.execute(f"UPDATE {storage._dialect.prefix}job SET owner = NULL WHERE id = '{job.id}'")
    write = storage._db.write

    def write_after_another_rescue(name: str, work: Any) -> Any:
        monkeypatch.setattr(storage._db, "write", write)
        assert storage.rescue(lease=LEASE, why="silence") == []
        return write(name, work)

    monkeypatch.setattr(storage._db, "write", write_after_another_rescue)
    rescued = storage.rescue(lease=LEASE, why="silence")

    assert [each.job_id for each in rescued] == [job.id]


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
