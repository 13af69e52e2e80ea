"""When neighbours on PostgreSQL make trouble: deadlocks, locks that are not given, transactions that stay open; or when
it takes no writes. What is the same on every server is in `tests/storage/test_servers.py`."""

from __future__ import annotations

import itertools
import os
import threading

import psycopg
import pytest
from psycopg import errors

from packhorse.conformance.builders import add, find_all, join, new_job, new_jobs
from packhorse.core.errors import StorageReadOnly, StorageUnavailable
from packhorse.core.job import COMPLETED, UNFINISHED
from packhorse.core.outcome import Completed
from packhorse.storage.postgres import Postgres
from packhorse.storage.postgres import database as database_module
from packhorse.storage.postgres.transaction import PostgresTransaction
from packhorse.storage.records import Filter
from tests.children import PATIENCE, until
from tests.cpu_time import cpu_time

Observer = psycopg.Connection[tuple[object, ...]]


def test_a_server_that_takes_no_writes_is_told_and_asked_by_a_new_connection_the_next_time(storage: Postgres) -> None:
    """Which may lead to another, that has become the primary meanwhile."""
    add(storage)
    reader = Postgres(storage._db.address, options=storage.options)
    with reader._db.lent() as connection:
        connection.rows("SET default_transaction_read_only = on")

    assert len(find_all(reader)) == 1
    with pytest.raises(StorageReadOnly):
        reader.enqueue([new_job()])
    reader.enqueue([new_job()])

    assert len(find_all(storage)) == 2
    reader.close()


def test_a_deadlock_is_repeated(storage: Postgres, schema: str, observer: Observer) -> None:
    one, two = add(storage, "job-1"), add(storage, "job-2")
    observer.execute("SET deadlock_timeout = '10s'")  # the storage shall be the one to give way
    observer.execute("BEGIN")
    observer.execute(f"SELECT 1 FROM {schema}.packhorse_job WHERE id = 'job-2' FOR UPDATE")
    steering = threading.Thread(target=lambda: storage.set_priority([one.id, two.id], 9))

    steering.start()  # locks the first, waits for the second
    until(lambda: observer.execute("SELECT 1 FROM pg_locks WHERE NOT granted").fetchall(), "it waits")
    observer.execute(f"SELECT 1 FROM {schema}.packhorse_job WHERE id = 'job-1' FOR UPDATE")
    observer.execute("COMMIT")
    steering.join(PATIENCE)

    assert storage._db.meter.busy_retries >= 1
    assert [job.priority for job in storage.get_many(["job-1", "job-2"])] == [9, 9]


@pytest.mark.parametrize("error", [errors.DeadlockDetected, errors.SerializationFailure, errors.LockNotAvailable])
def test_a_race_that_was_lost_is_run_again_as_a_whole(storage: Postgres, error: type[psycopg.Error]) -> None:
    add(storage)
    lost: list[int] = []

    def work(tx: PostgresTransaction) -> int:
        found = tx.execute(f"SELECT count(*) FROM {storage.options.schema}.packhorse_queue").fetchone()
        tx.execute(storage._sql["know_queue"], ("post",))
        if len(lost) < 2:
            lost.append(found[0])
            raise error("lost")
        return int(found[0])

    assert storage._db.write("test", work) == 1
    assert lost == [1, 1], "what was written before went with its transaction"
    assert [queue.name for queue in storage.queues()] == ["mail", "post"]


def test_a_lock_that_is_not_given_is_told(
    storage: Postgres, schema: str, observer: Observer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database_module, "TRIES", 2)
    job = add(storage)
    with storage._db.lent() as connection:
        connection.rows("SET lock_timeout = '50ms'")
    observer.execute("BEGIN")
    observer.execute(f"SELECT 1 FROM {schema}.packhorse_job FOR UPDATE")

    with pytest.raises(StorageUnavailable, match="held up"):
        storage.abort([job.id])
    observer.execute("ROLLBACK")

    assert storage.abort([job.id])[0].changed


PASSING = int(os.environ.get("PACKHORSE_SCALE", "10000"))
"""Jobs that pass while somebody keeps a transaction open; 200000 takes a minute or two."""


@pytest.mark.timeout(max(300, PASSING // 400))
@pytest.mark.parametrize("queues", [["mail"], ["mail", "post", "print"]], ids=["one queue", "three queues"])
def test_a_long_transaction_elsewhere_does_not_bring_work_to_a_stand(
    storage: Postgres, schema: str, observer: Observer, queues: list[str]
) -> None:
    """Nothing can be cleaned up behind it; still a batch at the end may not be much slower than one at the start."""
    join(storage)
    observer.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
    observer.execute(f"SELECT count(*) FROM {schema}.packhorse_job")
    times = [_pass(storage, queues, PASSING // 10) for _ in range(10)]

    assert min(times[-3:]) < 5 * min(times[:3])
    assert storage.count(Filter(UNFINISHED)).number == 0
    assert storage.count(Filter(frozenset({COMPLETED}))).number == PASSING
    # A job is written three times, and nothing else is left behind; all of it goes when the transaction has ended.
    until(lambda: PASSING <= _dead_rows(storage, schema) <= 2.1 * PASSING, "two dead rows for each job")
    observer.execute("ROLLBACK")
    until(lambda: _dead_rows(storage, schema) == 0, "nothing is left")


def _dead_rows(storage: Postgres, schema: str) -> int:
    """What the server cannot clean up, as it counts them; it hears late of what a session has just done."""
    with storage._db.lent() as connection:
        connection.rows(f"VACUUM {schema}.packhorse_job")
        said = "SELECT n_dead_tup FROM pg_stat_user_tables WHERE schemaname = $1 AND relname = 'packhorse_job'"
        return int(connection.rows(said, (schema,))[0][0])


def _pass(storage: Postgres, queues: list[str], number: int) -> float:
    """Enqueue and complete so many jobs; answers how long the server worked to complete them."""
    for queue, _ in itertools.product(queues, range(number // len(queues) // 500)):
        storage.enqueue(new_jobs(500, queue=queue))
    rest = number - number // len(queues) // 500 * 500 * len(queues)
    storage.enqueue(new_jobs(rest, queue=queues[0]))
    with storage._db.lent() as connection:  # the one connection that there is
        pid = connection.driver.info.backend_pid
    before = cpu_time([pid])
    outcomes: list[Completed] = []
    while True:
        _, jobs = storage.finish_and_reserve(outcomes, "ann", dict.fromkeys(queues, 1), 200)
        outcomes = [Completed(job.token) for job in jobs]
        if not jobs:
            return cpu_time([pid]) - before
