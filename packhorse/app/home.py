"""Where an app lives: its settings, its tasks, its storage, and the courier that carries what coroutines call.

Nothing is opened until it is used, so importing a module that makes an app touches no disk and no network.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from packhorse.announcement import Announced
from packhorse.calls import JobTemplate
from packhorse.courier import Courier
from packhorse.errors import BadValue
from packhorse.hooks import Hooks
from packhorse.schedule import Schedules
from packhorse.settings import load_settings
from packhorse.storage import BATCH, Storage, open_storage
from packhorse.subscriber import Client
from packhorse.task import Registry, TaskOptions

if TYPE_CHECKING:
    from packhorse.app.app import Packhorse


class Home:
    """The part of an app that every group of its methods builds on."""

    def __init__(
        self,
        url: str | Storage | None = None,
        *,
        storage: Storage | None = None,
        accept_unknown: bool = False,
        **settings: Any,
    ) -> None:
        if url is not None and storage is not None:
            raise BadValue("give a url or a storage, not both")
        if isinstance(url, Storage):
            url, storage = None, url
        self.settings = load_settings({"url": url, **settings})
        self.registry = Registry()
        self.hooks = Hooks()
        self.schedules = Schedules(self.settings.app or _maker(sys._getframe(1).f_globals))
        self._accept_unknown = accept_unknown
        self._defaults = TaskOptions(max_attempts=self.settings.max_attempts, max_halts=self.settings.max_halts)
        self._templates: dict[str, JobTemplate] = {}
        self._storage = storage
        self._is_handed = storage is not None  # as an object, which no other process can be told of
        self._address = self.settings.shown("url") if storage is None else type(storage).__name__
        self._opening = threading.Lock()
        self._courier = Courier(BATCH)
        self._announced = Announced(lambda: self.storage.tasks(), self._defaults)
        self._clients: list[Client] = []

    def __repr__(self) -> str:
        return f"<Packhorse {self._address}>"

    @property
    def storage(self) -> Storage:
        """Where the jobs live; opened when first asked for."""
        if self._storage is None:
            with self._opening:
                if self._storage is None:
                    self._storage = open_storage(self.settings.url)
        return self._storage

    def _another_storage(self) -> Storage:
        """The same jobs by other connections; where there is only one object that knows them, that."""
        is_the_only_one = self._is_handed or self.settings.url.startswith("memory:")
        return self.storage if is_the_only_one else open_storage(self.settings.url)

    def use(self, storage: Storage) -> None:
        """Keep the jobs in this storage from now on; a worker is told so with `--url`."""
        self._storage = storage
        self._is_handed = True

    def close(self) -> None:
        """Let go of the storage's files and connections, and close its clients. The app may be used again."""
        while self._clients:
            self._clients.pop().close()
        self._courier.close()
        if self._storage is not None:
            self._storage.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    @property
    def _app(self) -> Packhorse:
        """The app of which this is a part, for the handles that it makes."""
        return self  # type: ignore[return-value]  # whoever makes an app makes the whole of it


def _maker(module: Mapping[str, Any]) -> str:
    """The name of the module that makes an app: it tells whose schedules are whose."""
    name = str(module.get("__name__", ""))
    # A program that is run as a script is the same one that workers import.
    return Path(str(module.get("__file__", name))).stem if name == "__main__" else name
