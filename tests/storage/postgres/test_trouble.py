"""When the server or the neighbours make trouble: killed and restarted, full, deadlocked, held up by others.
Nothing that was acknowledged is lost, and nobody has to be restarted."""

from __future__ import annotations

import itertools
import os
import random
import threading
import time

import psycopg
import pytest

from packhorse.errors import StorageFull, StorageReadOnly, StorageUnavailable
from packhorse.job import COMPLETED, UNFINISHED
from packhorse.outcome import Completed, Failed, Verdict
from packhorse.storage.postgres import Postgres
from packhorse.storage.postgres import database as database_module
from packhorse.storage.records import Filter
from tests.children import PATIENCE, until
from tests.postgres_server import PostgresServer, shared_postgres
from tests.storage import laws
from tests.storage.builders import FAILURE, add, at_once, find_all, history, join, new_job, new_jobs, recount, tallies

Bystander = psycopg.Connection[tuple[object, ...]]


# --- the server goes and comes ----------------------------------------------------------------------------------------


def test_a_server_that_was_restarted_is_found_again_by_the_next_call(server: PostgresServer) -> None:
    storage = Postgres.from_url(server.url)
    add(storage, "before")
    server.stop()
    server.start()

    add(storage, "after")

    assert [job.id for job in storage.get_many(["before", "after"])] == ["before", "after"]
    storage.close()


def test_while_the_server_is_away_a_call_says_so_and_changes_nothing(server: PostgresServer) -> None:
    storage = Postgres.from_url(f"{server.url}?patience=0.2s")
    add(storage)
    server.stop()

    with pytest.raises(StorageUnavailable, match=r"cannot be reached|does not answer"):
        storage.enqueue([new_job("lost")])
    server.start()

    assert storage.get("lost") is None
    storage.close()


class Producer(threading.Thread):
    """Enqueues until told to stop, and repeats each call until it is acknowledged."""

    def __init__(self, url: str, name: str) -> None:
        super().__init__(daemon=True)
        self.storage = Postgres.from_url(url)
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


def test_no_acknowledged_job_is_lost_when_the_server_is_killed_under_load(server: PostgresServer) -> None:
    url = f"{server.url}?patience=0.2s&connections=2"
    producers = [Producer(url, f"p{number}") for number in range(3)]
    worker = Postgres.from_url(url)
    join(worker)
    told: list[str] = []
    for producer in producers:
        producer.start()

    deadline = time.monotonic() + 8
    kills = 0
    while time.monotonic() < deadline or not kills:
        if len(told) > 400 * (kills + 1):
            server.kill()
            server.start()
            kills += 1
        told += _work_once(worker)
    for producer in producers:
        producer.is_over = True
        producer.join(PATIENCE)
    worker.close()

    assert kills >= 1
    check = Postgres.from_url(server.url)
    acknowledged = {job_id for producer in producers for job_id in producer.acknowledged}
    jobs = {job.id: job for job in find_all(check, limit=1_000)}
    assert acknowledged <= jobs.keys()
    assert {jobs[job_id].state for job_id in told} == {COMPLETED}
    assert tallies(check) == recount(check)
    for job in random.sample(list(jobs.values()), 50):
        laws.check_job(job)
        laws.check_history(job, history(check, job.id))
    check.close()


def _work_once(worker: Postgres) -> list[str]:
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


def test_a_full_server_is_waited_for(server: PostgresServer) -> None:
    storage = Postgres.from_url(server.url)
    add(storage)
    storage.close()
    others = [psycopg.connect(server.url) for _ in range(20)]
    freed = threading.Timer(0.3, lambda: [other.close() for other in others])
    freed.start()

    assert len(find_all(storage)) == 1
    freed.join()
    storage.close()


def test_a_server_that_stays_full_is_told(server: PostgresServer) -> None:
    storage = Postgres.from_url(f"{server.url}?patience=0.2s")
    others = [psycopg.connect(server.url) for _ in range(20)]

    with pytest.raises(StorageUnavailable, match="too many clients"):
        storage.tallies()
    for other in others:
        other.close()


def test_threads_share_the_connections_that_there_are(url: str) -> None:
    storage = Postgres.from_url(f"{url}&connections=2")

    at_once([lambda: storage.enqueue(new_jobs(2)) for _ in range(16)])

    assert storage._db.connections()[0] <= 2
    assert len(find_all(storage)) == 32
    storage.close()


def test_a_process_whose_connections_are_all_in_use_is_told(url: str) -> None:
    storage = Postgres.from_url(f"{url}&connections=1&patience=0.05s")
    add(storage)

    with storage._db.lent(), pytest.raises(StorageUnavailable, match="connections"):
        storage.tallies()
    storage.close()


def test_a_server_that_takes_no_writes_is_told(storage: Postgres, url: str) -> None:
    add(storage)
    reader = Postgres(storage._db.address, options=storage.options)
    with reader._db.lent() as link:
        link.rows("SET default_transaction_read_only = on")

    with pytest.raises(StorageReadOnly):
        reader.enqueue([new_job()])
    assert len(find_all(reader)) == 1
    reader.close()


def test_on_a_full_disk_nothing_is_half_written_and_work_goes_on_when_there_is_room_again() -> None:
    """A real one: the tables are on a disk of twenty megabytes."""
    server = PostgresServer()
    server.start_with_small_disk(20)
    with psycopg.connect(server.url, autocommit=True) as hand:
        hand.execute(f"CREATE TABLESPACE small LOCATION '{server.small}'".encode())
        hand.execute("CREATE DATABASE full_one TABLESPACE small")
    storage = Postgres.from_url(f"{server.url.removesuffix('postgres')}full_one")
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


def test_a_deadlock_is_repeated(storage: Postgres, schema: str, bystander: Bystander) -> None:
    one, two = add(storage, "job-1"), add(storage, "job-2")
    bystander.execute("SET deadlock_timeout = '10s'")  # the storage shall be the one to give way
    bystander.execute("BEGIN")
    bystander.execute(f"SELECT 1 FROM {schema}.packhorse_job WHERE id = 'job-2' FOR UPDATE")
    steering = threading.Thread(target=lambda: storage.set_priority([one.id, two.id], 9))

    steering.start()  # locks the first, waits for the second
    until(lambda: bystander.execute("SELECT 1 FROM pg_locks WHERE NOT granted").fetchall(), "it waits")
    bystander.execute(f"SELECT 1 FROM {schema}.packhorse_job WHERE id = 'job-1' FOR UPDATE")
    bystander.execute("COMMIT")
    steering.join(PATIENCE)

    assert storage._db.meter.busy_retries >= 1
    assert [job.priority for job in storage.get_many(["job-1", "job-2"])] == [9, 9]


def test_a_lock_that_is_not_given_is_told(
    storage: Postgres, schema: str, bystander: Bystander, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database_module, "TRIES", 2)
    job = add(storage)
    with storage._db.lent() as link:
        link.rows("SET lock_timeout = '50ms'")
    bystander.execute("BEGIN")
    bystander.execute(f"SELECT 1 FROM {schema}.packhorse_job FOR UPDATE")

    with pytest.raises(StorageUnavailable, match="held up"):
        storage.abort([job.id])
    bystander.execute("ROLLBACK")

    assert storage.abort([job.id])[0].changed


def test_a_storm_of_steering_failing_and_finishing_leaves_every_job_whole(url: str) -> None:
    """Everybody locks the same jobs, in whatever order the callers name them."""
    storages = [Postgres.from_url(url) for _ in range(6)]
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
        laws.check_job(job)
        laws.check_history(job, history(storages[0], job.id))
    assert tallies(storages[0]) == recount(storages[0])
    for storage in storages:
        storage.close()


PASSING = int(os.environ.get("PACKHORSE_SCALE", "10000"))
"""Jobs that pass while somebody keeps a transaction open; 200000 takes a minute or two."""


@pytest.mark.timeout(max(300, PASSING // 400))
@pytest.mark.parametrize("queues", [["mail"], ["mail", "post", "print"]], ids=["one queue", "three queues"])
def test_a_long_transaction_elsewhere_does_not_bring_work_to_a_stand(
    storage: Postgres, schema: str, bystander: Bystander, queues: list[str]
) -> None:
    """Nothing can be cleaned up behind it; still a batch at the end may not be much slower than one at the start."""
    join(storage)
    bystander.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
    bystander.execute(f"SELECT count(*) FROM {schema}.packhorse_job")
    times = [_pass(storage, queues, PASSING // 10) for _ in range(10)]

    assert min(times[-3:]) < 5 * min(times[:3])
    assert storage.count(Filter(UNFINISHED)).number == 0
    assert storage.count(Filter(frozenset({COMPLETED}))).number == PASSING
    # A job is written three times, and nothing else is left behind; all of it goes when the transaction has ended.
    until(lambda: PASSING <= _dead_rows(storage, schema) <= 2.1 * PASSING, "two dead rows for each job")
    bystander.execute("ROLLBACK")
    until(lambda: _dead_rows(storage, schema) == 0, "nothing is left")


def _dead_rows(storage: Postgres, schema: str) -> int:
    """What the server cannot clean up, as it counts them; it hears late of what a session has just done."""
    with storage._db.lent() as link:
        link.rows(f"VACUUM {schema}.packhorse_job")
        said = "SELECT n_dead_tup FROM pg_stat_user_tables WHERE schemaname = $1 AND relname = 'packhorse_job'"
        return int(link.rows(said, (schema,))[0][0])


def _pass(storage: Postgres, queues: list[str], number: int) -> float:
    """Enqueue and complete so many jobs; answers how long the server worked to complete them."""
    for queue, _ in itertools.product(queues, range(number // len(queues) // 500)):
        storage.enqueue(new_jobs(500, queue=queue))
    rest = number - number // len(queues) // 500 * 500 * len(queues)
    storage.enqueue(new_jobs(rest, queue=queues[0]))
    before = shared_postgres().processor_time()
    outcomes: list[Completed] = []
    while True:
        _, jobs = storage.finish_and_reserve(outcomes, "ann", dict.fromkeys(queues, 1), 200)
        outcomes = [Completed(job.token) for job in jobs]
        if not jobs:
            return shared_postgres().processor_time() - before
