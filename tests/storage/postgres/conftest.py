"""The PostgreSQL storage alone, in a schema of its own, with the server's clock."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from packhorse.storage.postgres import Postgres
from tests.postgres_server import PostgresServer, new_schema_url, shared_postgres
from tests.storage.conftest import chosen_storages

_HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if "postgres" not in chosen_storages():
        skip = pytest.mark.skip(reason="PACKHORSE_TEST_STORAGES does not name postgres")
        for item in items:
            if _HERE in item.path.parents:
                item.add_marker(skip)


@pytest.fixture
def url() -> str:
    return new_schema_url()


@pytest.fixture
def storage(url: str) -> Iterator[Postgres]:
    storage = Postgres.from_url(url)
    yield storage
    storage.close()


@pytest.fixture
def schema(storage: Postgres) -> str:
    return storage.options.schema


@pytest.fixture
def observer() -> Iterator[psycopg.Connection[tuple[object, ...]]]:
    """Another program's connection to the shared server."""
    with psycopg.connect(shared_postgres().url, autocommit=True) as connection:
        yield connection


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    """A server that the test may kill, with few connections."""
    server = PostgresServer("max_connections=20").start()
    yield server
    server.end()
