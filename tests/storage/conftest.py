"""The storages on which the suite that all must pass is run, each fresh for every test, and the clock that they are
handed.

`PACKHORSE_TEST_STORAGES=memory,sqlite` chooses among them. To add a storage, write a function that answers the URL of
an empty one, and give it a line in `ADDRESSES`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from packhorse.core.clock import ManualClock
from packhorse.storage import open_storage
from packhorse.storage.contract import Storage
from packhorse.storage.sql.scan_cursor import ScanCursor
from tests import mysql_server, postgres_server
from tests.postgres_server import new_schema_url, postgres_program
from tests.redis_server import fresh_url, server_program


def memory_address(directory: Path) -> str:
    return "memory://"


def sqlite_address(directory: Path) -> str:
    return f"sqlite:///{directory / 'jobs.db'}"


def postgres_address(directory: Path) -> str:
    return new_schema_url()


def mysql_address(directory: Path) -> str:
    return mysql_server.new_database_url()


def redis_address(directory: Path) -> str:
    return fresh_url()


ADDRESSES: dict[str, Callable[[Path], str]] = {
    "memory": memory_address,
    "sqlite": sqlite_address,
    "postgres": postgres_address,
    "mysql": mysql_address,
    "redis": redis_address,
}


def chosen_storages() -> list[str]:
    names = [name.strip() for name in os.environ.get("PACKHORSE_TEST_STORAGES", ",".join(ADDRESSES)).split(",")]
    unknown = [name for name in names if name not in ADDRESSES]
    if unknown:
        raise pytest.UsageError(
            f"PACKHORSE_TEST_STORAGES names {', '.join(map(repr, unknown))}; it may name {', '.join(ADDRESSES)}"
        )
    if "redis" in names:
        server_program()  # else every one of its tests would fail, and say so
    if "postgres" in names:
        postgres_program()
    if "mysql" in names:
        mysql_server.mysql_program()
    return names


def storages(*quick: str, but: str = "") -> list[Any]:
    """Parameters of a test: every chosen storage except `but`. Only `make test-all` runs those not named in `quick`."""
    names = [name for name in chosen_storages() if name != but]
    return [pytest.param(name, marks=[] if name in quick else pytest.mark.long) for name in names]


def give_back(url: str) -> None:
    """Nobody uses this storage any more. What is dear to make is emptied, for the next test."""
    if url.startswith("postgres"):
        postgres_server.give_back(url)
    elif url.startswith("mysql"):
        mysql_server.give_back(url)


@pytest.fixture
def exact_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow the server is just now, whoever reserves looks at whole lines. Else a job that another process has
    put before the others may be passed over for a while."""
    monkeypatch.setattr(ScanCursor, "note", lambda *_, **__: None)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark most random histories as long. The suite itself has no marks, because it also runs in other projects."""
    for item in items:
        name = getattr(item, "originalname", "")
        if name == "test_events_and_jobs_tell_the_same_story" and item.callspec.params["seed"] >= 4:  # type: ignore[attr-defined]
            item.add_marker(pytest.mark.long)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(params=chosen_storages())
def address(request: pytest.FixtureRequest, swift_path: Path) -> Iterator[str]:
    url = ADDRESSES[request.param](swift_path)
    yield url
    give_back(url)


@pytest.fixture
def storage(address: str, clock: ManualClock) -> Iterator[Storage]:
    storage = open_storage(address, now=clock)
    yield storage
    storage.close()


@pytest.fixture
def neighbour(storage: Storage, address: str, clock: ManualClock) -> Iterator[Storage]:
    """The same jobs as another process sees them; memory has no other process, so there it is the storage itself."""
    if address.startswith("memory:"):
        yield storage
        return
    neighbour = open_storage(address, now=clock)
    yield neighbour
    neighbour.close()
