"""When neighbours on MySQL make trouble: deadlocks, locks that are not given, transactions that stay open, and rights
that are missing. What is the same on every server is in `tests/storage/test_servers.py`."""

from __future__ import annotations

import os
import threading

import pymysql
import pytest

from packhorse.conformance.builders import add, find_all, join, new_job, new_jobs
from packhorse.core.errors import StorageReadOnly, StorageUnavailable
from packhorse.core.job import COMPLETED, UNFINISHED
from packhorse.core.outcome import Completed
from packhorse.storage.mysql import MySQL
from packhorse.storage.mysql import database as database_module
from packhorse.storage.mysql.transaction import MySQLTransaction
from packhorse.storage.records import EventFilter, Filter
from tests.children import PATIENCE, until
from tests.mysql_server import MySQLServer, numbers_to, shared_mysql
from tests.storage.mysql.conftest import Observer


def test_a_server_that_takes_no_writes_is_told(server: MySQLServer) -> None:
    storage = MySQL.from_url(server.url)
    add(storage)
    with server.connect() as admin, admin.cursor() as cursor:
        cursor.execute("CREATE USER reader@localhost")
        cursor.execute("GRANT SELECT ON jobs.* TO reader@localhost")
    reader = MySQL.from_url(server.url.replace("root@127.0.0.1", "reader@localhost"))

    with pytest.raises(StorageReadOnly, match="grant"):
        reader.enqueue([new_job()])
    assert len(find_all(reader)) == 1
    assert len(reader.events(EventFilter(after=0))) == 1
    reader.close()
    storage.close()


def test_a_server_that_has_become_a_replica_is_asked_by_a_new_connection_the_next_time(storage: MySQL) -> None:
    """Which may lead to another, that has become the primary meanwhile."""
    add(storage)
    with storage._db.lent() as connection:
        connection.script(["SET SESSION TRANSACTION READ ONLY"])

    with pytest.raises(StorageReadOnly, match="takes no writes"):
        storage.enqueue([new_job()])
    storage.enqueue([new_job()])

    assert len(find_all(storage)) == 2


def test_a_deadlock_is_repeated(storage: MySQL, database: str, observer: Observer) -> None:
    one, two = add(storage, "job-1"), add(storage, "job-2")
    observer.execute("CREATE TABLE IF NOT EXISTS packhorse_ballast (n int)")
    observer.execute("BEGIN")
    # The server ends the transaction that has changed less: it shall be the storage's.
    observer.execute(f"INSERT INTO packhorse_ballast SELECT n FROM {numbers_to(100)}")
    observer.execute("SELECT 1 FROM packhorse_job WHERE id = 'job-2' FOR UPDATE")
    steering = threading.Thread(target=lambda: storage.set_priority([one.id, two.id], 9))

    steering.start()  # locks the first, waits for the second
    waits = "SHOW GLOBAL STATUS LIKE 'Innodb_row_lock_current_waits'"
    until(lambda: observer.execute(waits)[0][1] != "0", "it waits")
    observer.execute("SELECT 1 FROM packhorse_job WHERE id = 'job-1' FOR UPDATE")
    observer.execute("COMMIT")
    steering.join(PATIENCE)
    observer.execute("DROP TABLE packhorse_ballast")

    assert storage._db.meter.busy_retries >= 1
    assert [job.priority for job in storage.get_many(["job-1", "job-2"])] == [9, 9]


@pytest.mark.parametrize("code", [1205, 1213, 1020])
def test_a_race_that_was_lost_is_run_again_as_a_whole(storage: MySQL, code: int) -> None:
    add(storage)
    lost: list[int] = []

    def work(tx: MySQLTransaction) -> int:
        found = tx.execute("SELECT count(*) FROM packhorse_queue").fetchone()
        tx.execute(storage._sql["know_queue"], ("post",))
        if len(lost) < 2:
            lost.append(found[0])
            raise pymysql.OperationalError(code, "lost")
        return int(found[0])

    assert storage._db.write("test", work) == 1
    assert lost == [1, 1], "what was written before went with its transaction"
    assert [queue.name for queue in storage.queues()] == ["mail", "post"]


def test_a_lock_that_is_not_given_is_told(storage: MySQL, observer: Observer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database_module, "TRIES", 1)
    job = add(storage)
    with storage._db.lent() as connection:
        connection.rows("SET innodb_lock_wait_timeout = 1")
    observer.execute("BEGIN")
    observer.execute("SELECT 1 FROM packhorse_job FOR UPDATE")

    with pytest.raises(StorageUnavailable, match="held up"):
        storage.abort([job.id])
    observer.execute("ROLLBACK")

    assert storage.abort([job.id])[0].changed


def test_a_connection_that_the_server_has_cut_is_replaced(storage: MySQL, observer: Observer) -> None:
    add(storage)
    with storage._db.lent() as connection:
        number = connection.driver.thread_id()
    observer.execute(f"KILL {number}")
    until(lambda: not observer.execute("SELECT 1 FROM information_schema.processlist WHERE id = %s", (number,)), "cut")

    assert len(find_all(storage)) == 1


PASSING = int(os.environ.get("PACKHORSE_SCALE", "20000"))


@pytest.mark.timeout(max(300, PASSING // 200))
@pytest.mark.long
def test_a_long_transaction_elsewhere_does_not_bring_work_to_a_stand(storage: MySQL, observer: Observer) -> None:
    """Nothing can be cleaned up behind it; still a batch at the end may not be much slower than one at the start."""
    observer.execute("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    observer.execute("START TRANSACTION WITH CONSISTENT SNAPSHOT")
    join(storage)
    times = []
    for _ in range(10):
        for _ in range(PASSING // 10_000):
            storage.enqueue(new_jobs(1_000))
        before = shared_mysql().cpu_time()
        outcomes: list[Completed] = []
        while True:
            _, jobs = storage.finish_and_reserve(outcomes, "ann", {"mail": 1}, 200)
            outcomes = [Completed(job.token) for job in jobs]
            if not jobs:
                break
        times.append(shared_mysql().cpu_time() - before)
    observer.execute("ROLLBACK")

    assert min(times[-3:]) < 5 * min(times[:3])
    assert storage.count(Filter(UNFINISHED)).number == 0
    assert storage.count(Filter(frozenset({COMPLETED}))).number == PASSING
