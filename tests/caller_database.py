"""A database with jobs and a table of the caller: for tests that enqueue in the caller's transaction."""

from __future__ import annotations

import sqlite3
import threading
from pathlib import Path
from typing import Any

import psycopg
import psycopg2
import pytest

from packhorse import Packhorse
from packhorse.conformance.builders import join
from packhorse.storage import open_storage
from packhorse.storage.mysql import MySQL
from packhorse.storage.postgres import Postgres
from packhorse.storage.sqlite import SQLite
from tests import mysql_server
from tests.children import until
from tests.mysql_server import shared_mysql
from tests.postgres_server import new_schema_url, shared_postgres
from tests.storage.conftest import chosen_storages

needs_postgres = pytest.mark.skipif("postgres" not in chosen_storages(), reason="PACKHORSE_TEST_STORAGES")
needs_mysql = pytest.mark.skipif("mysql" not in chosen_storages(), reason="PACKHORSE_TEST_STORAGES")


class CallerDatabase:
    """A database with the jobs and the caller's own table, and ways to connect to it."""

    def __init__(self, kind: str, directory: Path, driver: str = "") -> None:
        self.kind = kind
        self.driver = driver
        self.path = directory / "shop.db"
        self.jobs_url = {
            "sqlite": lambda: f"sqlite:///{self.path}",
            "postgres": new_schema_url,
            "mysql": mysql_server.new_database_url,
        }[kind]()
        self.app = Packhorse(self.jobs_url)
        self.task = self.app.task(send)
        self.app.enqueue("send", {"to": "everybody"})
        self.sales = f"sales_{self.jobs_url.rpartition('=')[2]}" if kind == "postgres" else "sales"
        with self.connect() as connection:
            run(connection, f"CREATE TABLE IF NOT EXISTS {self.sales} (amount integer)")
            connection.commit()

    def close(self) -> None:
        self.app.close()
        if self.kind == "mysql":
            mysql_server.give_back(self.jobs_url)

    def connect(self) -> Any:
        if self.kind == "mysql":
            return shared_mysql().connect(database=self.jobs_url.rpartition("/")[2])
        if self.kind == "sqlite":
            return sqlite3.connect(self.path)
        return (psycopg2 if self.driver == "psycopg2" else psycopg).connect(shared_postgres().url)

    @property
    def alchemy_url(self) -> str:
        if self.kind == "mysql":
            return self.jobs_url.replace("mysql://", "mysql+pymysql://")
        if self.kind == "sqlite":
            return f"sqlite:///{self.path}"
        return shared_postgres().url.replace("postgresql://", f"postgresql+{self.driver or 'psycopg'}://")

    @property
    def insert(self) -> str:
        return f"INSERT INTO {self.sales} VALUES (1)"

    def number_of_jobs(self) -> int:
        return self.app.count() - 1

    def number_of_sales(self) -> int:
        with self.connect() as connection:
            ((number,),) = run(connection, f"SELECT count(*) FROM {self.sales}").fetchall()
        return int(number)


def send(to: str) -> None:
    """A task."""


def run(connection: Any, sql: str) -> Any:
    """The caller's own statement."""
    cursor = connection.cursor()
    cursor.execute(sql)
    return cursor


class IdleWorker:
    """Acts as another process's worker: it sleeps until there is a job."""

    def __init__(self, place: CallerDatabase) -> None:
        self.storage = open_storage(place.jobs_url)
        join(self.storage)
        while self.storage.reserve("ann", {"send": 1}, 1):
            pass  # until nothing is left to do
        self._woken: list[bool] = []
        self._thread = threading.Thread(target=lambda: self._woken.append(self.storage.wait(60, ["send"])), daemon=True)
        self._thread.start()
        until(lambda: self._is_asleep(place), "it sleeps")

    def _is_asleep(self, place: CallerDatabase) -> bool:
        if isinstance(self.storage, SQLite | MySQL):
            return bool(self.storage._notifier._waiters)
        assert isinstance(self.storage, Postgres)
        with place.connect() as bystander:
            return bool(run(bystander, f"SELECT 1 FROM {self.storage.options.schema}.packhorse_sleeper").fetchall())

    def is_woken(self) -> bool:
        return bool(self._woken)

    def end(self) -> None:
        self.storage.interrupt()
        self._thread.join()
        self.storage.close()
