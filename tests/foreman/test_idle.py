"""An idle workers asks its storage next to nothing: by the server's own count, less than one thing a second, so that
thirty of them make less than thirty reads a second.

The foreman's duties and the worker's polls go by a clock that is turned, so minutes pass in a moment, and what is
counted is always the same.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable, Iterator
from contextlib import closing
from unittest.mock import create_autospec

import pytest

from packhorse.core.clock import SECOND, ManualClock
from packhorse.core.settings import Settings
from packhorse.foreman import heartbeat, poller
from packhorse.foreman.background import BackgroundLoop
from packhorse.foreman.chores import all_chores
from packhorse.foreman.chores.runner import ChoreRunner
from packhorse.foreman.heartbeat import ForemanRecord, Heartbeat
from packhorse.foreman.poller import Backlog, Orders, Poller
from packhorse.foreman.processes import WorkerGroup
from packhorse.foreman.worker_handle import WorkerHandle
from packhorse.storage import open_storage
from packhorse.storage.contract import Storage
from packhorse.storage.postgres import Postgres
from packhorse.storage.records import WorkerInfo
from packhorse.storage.redis import storage as redis_storage
from packhorse.storage.sql import server as sql_server
from packhorse.worker.pace import Pace
from tests import mysql_server, postgres_server, redis_server
from tests.storage.conftest import chosen_storages

SETTINGS = Settings()
LEASE = SETTINGS.lease / SECOND
MOST = {"redis": 0.75, "postgres": 0.75, "mysql": 0.95}
"""Reads in a second. Going to sleep is not counted: once in five seconds on Redis, seldom on PostgreSQL. MySQL wakes no
worker: there it also polls once a second."""


class Counted:
    """A fresh storage on a server of these tests, and the server's own count of what it was asked."""

    def __init__(self, name: str) -> None:
        self.name = name
        addresses = {
            "redis": redis_server.fresh_url,
            "postgres": postgres_server.new_database_url,  # whose counts are its own
            "mysql": mysql_server.new_database_url,
        }
        self.url = addresses[name]()

    def during(self, work: Callable[[], None], *storages: Storage) -> int:
        """What was asked while this was done. To look costs something, too, and always the same."""
        first = self._count(storages)
        cost = self._count(storages) - first
        before = self._count(storages)
        work()
        return self._count(storages) - before - cost

    def work(self) -> int:
        """How many commands a Redis has run, also within scripts."""
        told = redis_server.shared_server().command("INFO", "commandstats").decode()
        return sum(map(int, re.findall(r"calls=(\d+)", told)))

    def _count(self, storages: tuple[Storage, ...]) -> int:
        if self.name == "redis":
            return int(redis_server.shared_server().info("total_reads_processed"))
        if self.name == "mysql":
            with closing(mysql_server.shared_mysql().connect()) as connection, connection.cursor() as cursor:
                cursor.execute("SHOW GLOBAL STATUS LIKE 'Questions'")
                return int(cursor.fetchone()[1])
        count = "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = current_database()"
        number = 0
        for storage in storages:  # each connection reports its counts when asked
            assert isinstance(storage, Postgres)
            with storage._db.lent() as connection:
                if connection.driver.info.server_version < 150_000:
                    pytest.skip("before PostgreSQL 15 counts cannot be flushed on request")
                connection.rows("SELECT pg_stat_force_next_flush()")
                connection.rows("SELECT pg_stat_clear_snapshot()")
                number = int(connection.rows(count)[0][0])
        return number


class Days:
    """A foreman's duties, without their threads: each has its turn when it asked for it, or is woken."""

    def __init__(self, storage: Storage, clock: ManualClock, worker: str) -> None:
        self.clock = clock
        worker = create_autospec(WorkerHandle, instance=True, id=worker, is_online=True)
        worker.is_stopped.return_value = False
        worker.stored_report.return_value = worker.report = {"busy": 0}
        workers = create_autospec(WorkerGroup, instance=True, members=[worker], serving=None)
        record = ForemanRecord(storage, {})
        self.heartbeat = Heartbeat(
            storage,
            workers,
            record,
            heartbeat=SETTINGS.heartbeat / SECOND,
            lease=LEASE,
            report=lambda: {"busy": 0},
            wake=lambda: None,
        )
        self.backlog = Backlog(storage, workers, wake=lambda: None)
        self.orders = Orders(storage, record, wake=lambda: None)
        chores = all_chores(storage, SETTINGS, self.heartbeat.trusted_time)
        self.chore_runner = ChoreRunner(chores, self._seconds)
        self.poller = Poller(storage, workers, record, self.heartbeat, self.backlog, self.orders, self.chore_runner)
        self._pace, self._next_poll = Pace(10), 0.0
        self._turns: dict[BackgroundLoop, float] = {
            each.loop: 0.0 for each in (self.heartbeat, self.backlog, self.orders, self.chore_runner, self.poller)
        }

    def _seconds(self) -> float:
        return self.clock() / SECOND

    def pass_by(self, seconds: float, poll: Callable[[], None]) -> None:
        until = self._seconds() + seconds
        while self._seconds() < until:
            for loop in self._turns:
                self._give_turn(loop)
            if self._seconds() >= self._next_poll:
                poll()
                self._pace.note_answer(1, 0)
                self._next_poll = self._seconds() + max(0.25, self._pace.idle_wait)
            self.clock.turn(min(0.25, max(0.001, min(self._turns.values()) - self._seconds())))

    def _give_turn(self, loop: BackgroundLoop) -> None:
        if loop._woken.is_set() or self._seconds() >= self._turns[loop]:
            loop._woken.clear()
            pause = loop._step()
            self._turns[loop] = self._seconds() + (1e9 if pause is None else pause)


@pytest.fixture(params=[name for name in chosen_storages() if name in ("redis", "postgres", "mysql")])
def server(request: pytest.FixtureRequest) -> Counted:
    return Counted(request.param)


@pytest.fixture
def foreman_storage(server: Counted, clock: ManualClock) -> Iterator[Storage]:
    storage = open_storage(server.url, now=clock)
    yield storage
    storage.close()


@pytest.fixture
def worker_storage(server: Counted) -> Iterator[Storage]:
    """By the server's clock, as workers have it."""
    storage = open_storage(server.url)
    yield storage
    storage.close()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> ManualClock:
    clock = ManualClock()
    for module in (heartbeat, poller):
        monkeypatch.setattr(module, "boot_time", lambda: clock() / SECOND)
    monkeypatch.setattr(random, "uniform", lambda least, most: (least + most) / 2)
    # However slow this machine is just now.
    monkeypatch.setattr(sql_server, "FRESH", math.inf)
    monkeypatch.setattr(redis_storage, "_FRESH", math.inf)
    return clock


def test_idle_workers_make_less_than_one_read_a_second(
    server: Counted,
    foreman_storage: Storage,
    worker_storage: Storage,
    clock: ManualClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    foreman_storage.join(WorkerInfo("ann"))
    days = Days(foreman_storage, clock, "ann")

    def poll() -> None:
        assert worker_storage.reserve("ann", {"mail": 1, "pics": 2}, 10) == []
        assert worker_storage.next_due() is None

    days.pass_by(4 * LEASE, poll)
    assert days.heartbeat.may_rescue()  # so it rescues and prunes
    times_told: list[int] = []  # by the clock of a test they cost nothing
    monkeypatch.setattr(foreman_storage, "now", lambda: times_told.append(clock()) or clock())

    asked = server.during(lambda: days.pass_by(60.0, poll), foreman_storage, worker_storage)
    writes = 60 * SECOND / SETTINGS.heartbeat

    assert 0.5 * 60 < asked - writes + len(times_told) <= MOST[server.name] * 60


def test_an_idle_foreman_asks_no_more_after_many_others_have_come_and_gone(
    server: Counted, foreman_storage: Storage, worker_storage: Storage, clock: ManualClock
) -> None:
    if server.name != "redis":
        pytest.skip("one statement looks at all of them by an index")
    foreman_storage.join(WorkerInfo("ann"))
    days = Days(foreman_storage, clock, "ann")
    days.pass_by(2 * LEASE, lambda: None)

    def commands() -> int:
        """What the server has done in twenty seconds; on Redis also what scripts have it do."""
        before = server.work()
        days.pass_by(20.0, lambda: None)
        return server.work() - before

    alone = commands()
    for _ in range(150):
        other = ForemanRecord(worker_storage, {})
        other.join()
        other.leave("a burst is over")
    commands()  # which come upon the others for the first time

    assert commands() <= 1.2 * alone
