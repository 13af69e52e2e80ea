"""The MySQL storage alone, in a database of its own, with the server's clock."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from packhorse.storage.mysql import MySQL
from tests.mysql_server import MySQLServer, give_back, new_database_url, shared_mysql
from tests.storage.conftest import chosen_storages

_HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if "mysql" not in chosen_storages():
        skip = pytest.mark.skip(reason="PACKHORSE_TEST_STORAGES does not name mysql")
        for item in items:
            if _HERE in item.path.parents:
                item.add_marker(skip)


@pytest.fixture
def url() -> Iterator[str]:
    url = new_database_url()
    yield url
    give_back(url)


@pytest.fixture
def storage(url: str) -> Iterator[MySQL]:
    storage = MySQL.from_url(url)
    yield storage
    storage.close()


@pytest.fixture
def database(storage: MySQL) -> str:
    return storage.address.database


class Observer:
    """Another program's connection to the shared server."""

    def __init__(self, server: MySQLServer, **options: Any) -> None:
        self.connection = server.connect(**options)

    def execute(self, sql: str, values: tuple[Any, ...] = ()) -> tuple[Any, ...]:
        with self.connection.cursor() as cursor:
            cursor.execute(sql, values or None)
            return tuple(cursor.fetchall())


@pytest.fixture
def observer(database: str) -> Iterator[Observer]:
    observer = Observer(shared_mysql(), database=database, autocommit=True)
    yield observer
    observer.connection.close()


@pytest.fixture
def server() -> Iterator[MySQLServer]:
    """A server that the test may kill, with few connections."""
    server = MySQLServer("max-connections=20").start()
    yield server
    server.end()
