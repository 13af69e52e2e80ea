"""Where an app lives: its settings, its tasks, its storage, and the courier that carries what coroutines call.

The groups of an app's methods (`app/`) build on it, and the handles that users hold (of tasks, jobs and clients) lead
back to it; what begins with an underscore is for these. Nothing is opened until it is used, so importing a module that
makes an app touches no disk and no network.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from packhorse.client.announcements import Announced
from packhorse.client.async_bridge import Courier
from packhorse.client.hooks import Hooks
from packhorse.client.job_builder import JobTemplate
from packhorse.client.schedule import Schedules
from packhorse.core.codec import Signature
from packhorse.core.errors import BadArguments, BadValue
from packhorse.core.job import EffectiveJob, Job, NewJob, effective, left_to_task
from packhorse.core.settings import load_settings
from packhorse.core.task import Registry, TaskOptions
from packhorse.storage import BATCH, Storage, open_storage
from packhorse.storage.records import Enqueued


class Closing(Protocol):
    """What is closed together with its app: a client."""

    def close(self) -> None: ...


class Home:
    """What every app has, before anything can be done with it."""

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
        self._clients: list[Closing] = []
        self._is_rehearsed = False  # in a test: no worker runs, and a connection of the caller's own is not used

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

    async def aclose(self) -> None:
        """`close`, for coroutines."""
        await self._courier.call(self.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.aclose()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    @contextmanager
    def _staying_in(self, storage: Storage) -> Iterator[None]:
        """Keep the jobs in this storage for the length of a `with` block; clients that come meanwhile go with it."""
        before, clients = (self._storage, self._announced, self._is_rehearsed), list(self._clients)
        self._storage, self._is_rehearsed = storage, True
        self._announced = Announced(lambda: self.storage.tasks(), self._defaults)
        try:
            yield
        finally:
            for client in [client for client in self._clients if client not in clients]:
                client.close()
            self._storage, self._announced, self._is_rehearsed = before

    # --- for handles ----------------------------------------------------------------------------------------------

    def _submit(self, new_jobs: list[NewJob], connection: Any = None) -> list[Enqueued]:
        """The one way of new jobs into the storage; at most `BATCH` of them, stored all or none."""
        if connection is not None and not self._is_rehearsed:
            return self.storage.enqueue_within(connection, new_jobs)
        return self.storage.enqueue(new_jobs)

    def options_of(self, task: str) -> TaskOptions:
        """The options of a task: as it is registered here, as workers announced it, or the usual ones."""
        if task in self.registry:
            return self.registry.get(task).options
        known = self._announced.last(task) if _is_on_event_loop() else self._announced.get(task)
        return self._defaults if known is None else known.options

    def effective_job(self, job: Job) -> EffectiveJob:
        """The job as it will run: what it leaves to its task is as that is registered here, or as workers announced
        it."""
        if not left_to_task(job):
            return effective(job, None)
        options = self.options_of(job.task)
        return effective(job, {name: getattr(options, name) for name in ("max_attempts", "timeout", "idle_timeout")})

    def _get_each(self, ids: list[str]) -> list[Job | None]:
        """For coroutines, in the courier's thread: what their properties will be asked for is known afterwards."""
        found = {job.id: job for job in self.storage.get_many(ids)}
        self._learn_tasks(found.values())
        return [found.get(job_id) for job_id in ids]

    def _learn_tasks(self, jobs: Iterable[Job]) -> None:
        """Ask what workers announced of these jobs' tasks, if that matters: on the event loop nobody may."""
        for task in {job.task for job in jobs if left_to_task(job)}:
            self.options_of(task)

    def _signature_of(self, task: str) -> Signature | None:
        return self.registry.get(task).signature if task in self.registry else None

    def _signature_to_check(self, task: str) -> Signature | None:
        """What new arguments of this task must fit: its function, or what workers announced of it."""
        known = None if task in self.registry else self._announced.get(task)
        return known.signature if known else self._signature_of(task)

    def _checked(self, task: str, make: Callable[[], NewJob]) -> NewJob:
        """The job that `make` makes. If it refuses the arguments of a task that workers announced, they are asked again
        first: one with newer code may have started."""
        try:
            return make()
        except BadArguments:
            if task in self.registry:
                raise
        self._announced.look_again()
        return make()


def _is_on_event_loop() -> bool:
    """Whether this is called in a coroutine, where nothing may wait for the storage."""
    asyncio = sys.modules.get("asyncio")  # who has a loop has loaded it
    if asyncio is None:
        return False
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _maker(module: Mapping[str, Any]) -> str:
    """The name of the module that makes an app: it tells whose schedules are whose."""
    name = str(module.get("__name__", ""))
    # A program that is run as a script is the same one that workers import.
    return Path(str(module.get("__file__", name))).stem if name == "__main__" else name
