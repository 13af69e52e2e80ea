"""A manager on this machine, whose storage is a new one for every test, and the storage that asks it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from packhorse import Packhorse
from packhorse.core.clock import ManualClock
from packhorse.storage import open_storage
from packhorse.storage.contract import Storage
from packhorse.storage.memory import Memory
from packhorse.web.application import Application, make_application
from packhorse.web.security.access import decide_access
from packhorse.web.security.tokens import Tokens
from tests.web.conftest import served


class Manager:
    """A web that is up. `keep` gives it the storage for which it answers."""

    def __init__(self, application: Application, url: str) -> None:
        self.url = url
        self._application = application

    def keep(self, storage: Storage) -> None:
        vars(self._application.web).update(storage=storage, working_storage=storage)


@pytest.fixture(scope="module")
def manager() -> Iterator[Manager]:
    application = make_application(Packhorse(storage=Memory()), decide_access("127.0.0.1", Tokens(), open_mount=True))
    with served(application) as url:
        yield Manager(application, url)


@pytest.fixture
def kept(manager: Manager, clock: ManualClock) -> Storage:
    """The manager's own storage."""
    storage = Memory(clock)
    manager.keep(storage)
    return storage


@pytest.fixture
def storage(manager: Manager, kept: Storage) -> Iterator[Storage]:
    storage = open_storage(manager.url)
    yield storage
    storage.close()


@pytest.fixture
def neighbour(manager: Manager, storage: Storage) -> Iterator[Storage]:
    neighbour = open_storage(manager.url)
    yield neighbour
    neighbour.close()
