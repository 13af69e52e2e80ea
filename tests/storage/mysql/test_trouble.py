"""When the server or the neighbours make trouble: killed and restarted, full, deadlocked, held up by others.
Nothing that was acknowledged is lost, and nobody has to be restarted."""

from __future__ import annotations

import itertools
import random
import threading
import time

import pytest

from packhorse.errors import StorageFull, StorageReadOnly, StorageUnavailable
from packhorse.job import COMPLETED, UNFINISHED
from packhorse.outcome import Completed, Failed, Verdict
from packhorse.storage.mysql import MySQL
from packhorse.storage.mysql import database as database_module
from packhorse.storage.records import EventFilter, Filter
from tests.children import PATIENCE, until
from tests.mysql_server import MySQLServer, numbers_to, shared_mysql
from tests.storage import laws
from tests.storage.builders import FAILURE, add, at_once, find_all, history, join, new_job, new_jobs, recount, tallies
from tests.storage.mysql.conftest import Bystander

# --- the server goes and comes ----------------------------------------------------------------------------------------


def test_a_server_that_was_restarted_is_found_again_by_the_next_call(server: MySQLServer) -> None:
    storage = MySQL.from_url(server.url)
    add(storage, "before")
    server.stop()
    server.start()

    add(storage, "after")

    assert [job.id for job in storage.get_many(["before", "after"])] == ["before", "after"]
    storage.close()


def test_while_the_server_is_away_a_call_says_so_and_changes_nothing(server: MySQLServer) -> None:
    storage = MySQL.from_url(f"{server.url}?patience=0.2s")
    add(storage)
    server.stop()

    with pytest.raises(StorageUnavailable, match="cannot be reached"):
        storage.enqueue([new_job("lost")])
    server.start()

    assert storage.get("lost") is None
    storage.close()


class Producer(threading.Thread):
    """Enqueues until told to stop, and repeats each call until it is acknowledged."""

    def __init__(self, url: str, name: str) -> None:
        super().__init__(daemon=True)
        self.storage = MySQL.from_url(url)
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


def test_no_acknowledged_job_is_lost_when_the_server_is_killed_under_load(server: MySQLServer) -> None:
    url = f"{server.url}?patience=0.2s&connections=2"
    producers = [Producer(url, f"p{number}") for number in range(3)]
    worker = MySQL.from_url(url)
    join(worker)
    told: list[str] = []
    for producer in producers:
        producer.start()

    deadline = time.monotonic() + 6
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
    check = MySQL.from_url(server.url)
    acknowledged = {job_id for producer in producers for job_id in producer.acknowledged}
    jobs = {job.id: job for job in find_all(check, limit=1_000)}
    assert acknowledged <= jobs.keys()
    assert {jobs[job_id].state for job_id in told} == {COMPLETED}
    assert tallies(check) == recount(check)
    for job in random.sample(list(jobs.values()), 50):
        laws.check_job(job)
        laws.check_history(job, history(check, job.id))
    check.close()


def _work_once(worker: MySQL) -> list[str]:
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


def test_a_full_server_is_waited_for(server: MySQLServer) -> None:
    storage = MySQL.from_url(server.url)
    add(storage)
    storage.close()
    others = [server.connect() for _ in range(21)]  # root may have one more than the rest
    freed = threading.Timer(0.3, lambda: [other.close() for other in others])
    freed.start()

    assert len(find_all(storage)) == 1
    freed.join()
    storage.close()


def test_a_server_that_stays_full_is_told(server: MySQLServer) -> None:
    storage = MySQL.from_url(f"{server.url}?patience=0.2s")
    others = [server.connect() for _ in range(21)]  # root may have one more than the rest

    with pytest.raises(StorageUnavailable, match="no connection left"):
        storage.tallies()
    for other in others:
        other.close()


def test_threads_share_the_connections_that_there_are(url: str) -> None:
    storage = MySQL.from_url(f"{url}?connections=2")

    at_once([lambda: storage.enqueue(new_jobs(2)) for _ in range(16)])

    assert storage._db.connections()[0] <= 2
    assert len(find_all(storage)) == 32
    storage.close()


def test_a_process_whose_connections_are_all_in_use_is_told(url: str) -> None:
    storage = MySQL.from_url(f"{url}?connections=1&patience=0.05s")
    add(storage)

    with storage._db.lent(), pytest.raises(StorageUnavailable, match="connections"):
        storage.tallies()
    storage.close()


def test_a_server_that_takes_no_writes_is_told(server: MySQLServer) -> None:
    storage = MySQL.from_url(server.url)
    add(storage)
    with server.connect() as hand, hand.cursor() as cursor:
        cursor.execute("CREATE USER reader@localhost")
        cursor.execute("GRANT SELECT ON jobs.* TO reader@localhost")
    reader = MySQL.from_url(server.url.replace("root@127.0.0.1", "reader@localhost"))

    with pytest.raises(StorageReadOnly, match="grant"):
        reader.enqueue([new_job()])
    assert len(find_all(reader)) == 1
    assert len(reader.events(EventFilter(after=0))) == 1
    reader.close()
    storage.close()


@pytest.mark.timeout(120)
def test_on_a_full_disk_nothing_is_half_written_and_work_goes_on_when_there_is_room_again() -> None:
    """A real one: the tables are on a disk of twenty megabytes."""
    server = MySQLServer()
    server.start_with_small_disk(20)
    storage = MySQL.from_url(server.url)
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


def test_a_deadlock_is_repeated(storage: MySQL, database: str, bystander: Bystander) -> None:
    one, two = add(storage, "job-1"), add(storage, "job-2")
    bystander.execute("CREATE TABLE IF NOT EXISTS packhorse_ballast (n int)")
    bystander.execute("BEGIN")
    # The server ends the transaction that has changed less: it shall be the storage's.
    bystander.execute(f"INSERT INTO packhorse_ballast SELECT n FROM {numbers_to(100)}")
    bystander.execute("SELECT 1 FROM packhorse_job WHERE id = 'job-2' FOR UPDATE")
    steering = threading.Thread(target=lambda: storage.set_priority([one.id, two.id], 9))

    steering.start()  # locks the first, waits for the second
    waits = "SHOW GLOBAL STATUS LIKE 'Innodb_row_lock_current_waits'"
    until(lambda: bystander.execute(waits)[0][1] != "0", "it waits")
    bystander.execute("SELECT 1 FROM packhorse_job WHERE id = 'job-1' FOR UPDATE")
    bystander.execute("COMMIT")
    steering.join(PATIENCE)
    bystander.execute("DROP TABLE packhorse_ballast")

    assert storage._db.meter.busy_retries >= 1
    assert [job.priority for job in storage.get_many(["job-1", "job-2"])] == [9, 9]


def test_a_lock_that_is_not_given_is_told(
    storage: MySQL, bystander: Bystander, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database_module, "TRIES", 1)
    job = add(storage)
    with storage._db.lent() as link:
        link.rows("SET innodb_lock_wait_timeout = 1")
    bystander.execute("BEGIN")
    bystander.execute("SELECT 1 FROM packhorse_job FOR UPDATE")

    with pytest.raises(StorageUnavailable, match="held up"):
        storage.abort([job.id])
    bystander.execute("ROLLBACK")

    assert storage.abort([job.id])[0].changed


def test_a_connection_that_the_server_has_cut_is_replaced(storage: MySQL, bystander: Bystander) -> None:
    add(storage)
    with storage._db.lent() as link:
        number = link.connection.thread_id()
    bystander.execute(f"KILL {number}")
    until(lambda: not bystander.execute("SELECT 1 FROM information_schema.processlist WHERE id = %s", (number,)), "cut")

    assert len(find_all(storage)) == 1


def test_a_storm_of_steering_failing_and_finishing_leaves_every_job_whole(url: str) -> None:
    """Everybody locks the same jobs, in whatever order the callers name them."""
    storages = [MySQL.from_url(url) for _ in range(6)]
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


def test_a_long_transaction_elsewhere_does_not_bring_work_to_a_stand(storage: MySQL, bystander: Bystander) -> None:
    """Nothing can be cleaned up behind it; still a batch at the end may not be much slower than one at the start."""
    bystander.execute("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    bystander.execute("START TRANSACTION WITH CONSISTENT SNAPSHOT")
    join(storage)
    times = []
    for _ in range(10):
        for _ in range(2):
            storage.enqueue(new_jobs(1_000))
        before = shared_mysql().processor_time()
        outcomes: list[Completed] = []
        while True:
            _, jobs = storage.finish_and_reserve(outcomes, "ann", {"mail": 1}, 200)
            outcomes = [Completed(job.token) for job in jobs]
            if not jobs:
                break
        times.append(shared_mysql().processor_time() - before)
    bystander.execute("ROLLBACK")

    assert min(times[-3:]) < 5 * min(times[:3])
    assert storage.count(Filter(UNFINISHED)).number == 0
    assert storage.count(Filter(frozenset({COMPLETED}))).number == 20_000
