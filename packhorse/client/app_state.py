"""What an app shares with its handles: settings, storage, hooks, the async bridge, and what is known about tasks.

`Packhorse` owns one; every `Task`, `JobHandle`, `Client` and `Pool` that it makes holds the same one. Nothing is opened
before its first use, so importing a module that makes an app touches no disk and no network.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from packhorse.client.announcements import AnnouncedTasks
from packhorse.client.async_bridge import AsyncBridge
from packhorse.client.hooks import Hooks
from packhorse.core.codec import Signature
from packhorse.core.errors import BadArguments, BadValue
from packhorse.core.job import EffectiveJob, Job, NewJob, effective, left_to_task
from packhorse.core.settings import Settings, load_settings
from packhorse.core.task import Registry, TaskOptions
from packhorse.storage import BATCH, Storage, open_storage
from packhorse.storage.records import Enqueued


class Closable(Protocol):
    """A client or a pool: closed together with its app."""

    def close(self) -> None: ...


class AppState:
    """The shared state of one app."""

    def __init__(self, url: str | Storage | None, storage: Storage | None, settings: dict[str, Any]) -> None:
        if url is not None and storage is not None:
            raise BadValue("give a url or a storage, not both")
        if isinstance(url, Storage):
            url, storage = None, url
        self.settings: Settings = load_settings({"url": url, **settings})
        self.registry = Registry()
        self.hooks = Hooks()
        self.defaults = TaskOptions(max_attempts=self.settings.max_attempts, max_halts=self.settings.max_halts)
        self.bridge = AsyncBridge(BATCH)
        self.announced = AnnouncedTasks(lambda: self.storage.tasks(), self.defaults)
        self.closables: list[Closable] = []
        self.is_test = False  # inside packhorse.testing: no worker runs, and a caller's own connection is not used
        self.has_storage_object = storage is not None  # which other processes cannot open
        self._storage = storage
        self._opening = threading.Lock()

    # --- the storage ----------------------------------------------------------------------------------------------

    @property
    def storage(self) -> Storage:
        if self._storage is None:
            with self._opening:
                if self._storage is None:
                    self._storage = open_storage(self.settings.url)
        return self._storage

    def open_another_storage(self) -> Storage:
        """The same jobs over other connections; the same object where only that one has them."""
        only_one = self.has_storage_object or self.settings.url.startswith("memory:")
        return self.storage if only_one else open_storage(self.settings.url)

    def use(self, storage: Storage) -> None:
        self._storage = storage
        self.has_storage_object = True

    def close(self) -> None:
        while self.closables:
            self.closables.pop().close()
        self.bridge.close()
        if self._storage is not None:
            self._storage.close()

    @contextmanager
    def test_storage(self, storage: Storage) -> Iterator[None]:
        """Keep the jobs in this storage inside a `with` block; clients made inside are closed at its end."""
        before, closables = (self._storage, self.announced, self.is_test), list(self.closables)
        self._storage, self.is_test = storage, True
        self.announced = AnnouncedTasks(lambda: self.storage.tasks(), self.defaults)
        try:
            yield
        finally:
            for closable in [each for each in self.closables if each not in closables]:
                closable.close()
            self._storage, self.announced, self.is_test = before

    def enqueue(self, new_jobs: list[NewJob], connection: Any = None) -> list[Enqueued]:
        """Store at most `BATCH` jobs, all or none; with a connection, within the caller's transaction."""
        if connection is not None and not self.is_test:
            return self.storage.enqueue_within(connection, new_jobs)
        return self.storage.enqueue(new_jobs)

    def read_jobs(self, ids: list[str]) -> list[Job | None]:
        """The jobs with these ids, in order. Coroutines share such reads, so it also reads what their properties may
        need later: on the event loop they must not wait for the storage."""
        found = {job.id: job for job in self.storage.get_many(ids)}
        self.learn_tasks(found.values())
        return [found.get(job_id) for job_id in ids]

    # --- what is known about tasks --------------------------------------------------------------------------------

    def options_of(self, task: str) -> TaskOptions:
        """The options of a task: as registered here, as announced by workers, or the defaults."""
        if task in self.registry:
            return self.registry.get(task).options
        known = self.announced.last(task) if _is_on_event_loop() else self.announced.get(task)
        return self.defaults if known is None else known.options

    def effective_job(self, job: Job) -> EffectiveJob:
        """The job with the options that it leaves to its task filled in."""
        if not left_to_task(job):
            return effective(job, None)
        options = self.options_of(job.task)
        return effective(job, {name: getattr(options, name) for name in ("max_attempts", "timeout", "idle_timeout")})

    def learn_tasks(self, jobs: Iterable[Job]) -> None:
        """Read the announcements of these jobs' tasks now, if the jobs leave options to them."""
        for task in {job.task for job in jobs if left_to_task(job)}:
            self.options_of(task)

    def signature_of(self, task: str) -> Signature | None:
        return self.registry.get(task).signature if task in self.registry else None

    def signature_to_check(self, task: str) -> Signature | None:
        """What new arguments of this task must fit: its function here, or what workers announced."""
        known = None if task in self.registry else self.announced.get(task)
        return known.signature if known else self.signature_of(task)

    def with_fresh_announcements(self, task: str, make: Callable[[], NewJob]) -> NewJob:
        """`make()`. If it rejects the arguments of an announced task, read the announcements again and retry once: a
        worker with newer code may have started."""
        try:
            return make()
        except BadArguments:
            if task in self.registry:
                raise
        self.announced.read_again()
        return make()


def _is_on_event_loop() -> bool:
    """Is this called in a coroutine, which must not wait for the storage?"""
    asyncio = sys.modules.get("asyncio")  # a running loop implies that it is imported
    if asyncio is None:
        return False
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
