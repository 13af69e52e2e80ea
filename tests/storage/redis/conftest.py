"""The Redis storage alone, with the server's own clock; skipped where Redis is not among the chosen storages."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from packhorse.storage.redis import Redis
from packhorse.storage.redis.address import Address
from packhorse.storage.redis.server import Server
from tests.redis_server import RedisServer, fresh_url, redis_server
from tests.storage.conftest import chosen_storages

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if "redis" not in chosen_storages():
        for item in items:
            if HERE in item.path.parents:
                item.add_marker(pytest.mark.skip("PACKHORSE_TEST_STORAGES leaves Redis out"))


@pytest.fixture
def url() -> str:
    return fresh_url()


@pytest.fixture
def server(url: str) -> Iterator[Server]:
    """The storage's view of the shared server."""
    server = Server(Address.parse(url))
    yield server
    server.close()


@pytest.fixture
def storage(url: str) -> Iterator[Redis]:
    storage = Redis.from_url(url)
    yield storage
    storage.close()


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[RedisServer]:
    """A server that the test may stop, kill and freeze."""
    with redis_server(tmp_path) as server:
        yield server
