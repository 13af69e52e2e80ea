"""A worker inside the test's own process, without children: the test turns its loop, or lets it run in a thread.

Waiting is for a condition, with a deadline; tasks wait for events that the test sets.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from packhorse.client.app import Packhorse
from packhorse.client.job import JobHandle
from packhorse.core.errors import StorageUnavailable
from packhorse.core.event import Kind
from packhorse.core.job import Job, State
from packhorse.storage import open_storage
from packhorse.storage.contract import Storage
from packhorse.storage.records import EventFilter, WorkerInfo
from packhorse.worker import loop as loop_module
from packhorse.worker.config import WorkerConfig, WorkerLimits
from packhorse.worker.process import WorkerProcess
from tests.children import PATIENCE

DEADLINE = PATIENCE
PATIENT = {"stop_grace": DEADLINE, "abort_grace": DEADLINE, "other_jobs": DEADLINE}
"""Nobody is given up because the machine is slow."""


class FlakyStorage:
    """A storage that is away while `is_away`, or for the calls named in `fails`. With `loses_answers` it does what it
    was asked, and only the answer does not come back."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self.is_away = False
        self.fails: set[str] = set()
        self.loses_answers: set[str] = set()
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._storage, name)
        if not callable(call):
            return call

        def guarded(*args: Any, **kwargs: Any) -> Any:
            if name in ("interrupt", "measured", "connections"):  # which ask nobody
                return call(*args, **kwargs)
            self.calls.append(name)
            if self.is_away or name in self.fails:
                raise StorageUnavailable("the storage is away")
            answer = call(*args, **kwargs)
            if name in self.loses_answers:
                self.loses_answers.remove(name)
                raise StorageUnavailable("the answer was lost")
            return answer

        return guarded


class WorkerHarness:
    """A worker, and the app whose jobs it runs."""

    def __init__(self, app: Packhorse, storage: Storage) -> None:
        self.app = app
        self.storage = storage
        self.flaky_storage = FlakyStorage(storage)
        self.said: list[dict[str, Any]] = []
        self.worker: WorkerProcess
        self.opened: list[WorkerProcess] = []
        self.threads: list[threading.Thread] = []
        self.codes: list[int] = []

    def open(self, concurrency: int = 4, *, join: bool = True, **options: Any) -> WorkerProcess:
        """A worker that is turned by hand."""
        owner, shared_status = options.pop("owner", "ann"), options.pop("shared_status", None)
        limits = WorkerLimits(**{**PATIENT, **options.pop("limits", {})})
        config = WorkerConfig(owner, concurrency=concurrency, limits=limits, **options)
        self.worker = WorkerProcess(
            self.app, self.flaky_storage, config, shared_status=shared_status, send=self.said.append
        )
        self.opened.append(self.worker)
        if join:
            self.storage.join(WorkerInfo(owner))
        return self.worker

    def run(self, concurrency: int = 4, **options: Any) -> WorkerProcess:
        """A worker that runs by itself, in a thread; `codes` has its exit code at the end."""
        worker = self.open(concurrency, join=False, **options)
        thread = threading.Thread(target=lambda: self.codes.append(worker.run()), daemon=True)
        self.threads.append(thread)
        thread.start()
        return worker

    def ended(self) -> int:
        """The exit code of the worker that runs by itself."""
        self.threads[-1].join(DEADLINE)
        assert self.codes, "the worker has not ended"
        return self.codes[-1]

    def until(self, condition: Callable[[], object], what: str = "it did not come to pass") -> None:
        """Turn the loop until the condition holds; only look, if the worker runs by itself."""
        deadline = time.monotonic() + DEADLINE
        while not condition():
            assert time.monotonic() < deadline, what
            if self.threads:
                time.sleep(0.002)
            else:
                self.worker.loop.turn(0.01)

    def finish(self, *jobs: JobHandle[Any]) -> list[Job]:
        """Turn until these jobs have ended; answers them as they are stored."""
        self.until(lambda: all(self.job(job).state in (State.COMPLETED, State.DEAD, State.ABORTED) for job in jobs))
        return [self.job(job) for job in jobs]

    def job(self, job: JobHandle[Any]) -> Job:
        stored = self.storage.get(job.id)
        assert stored is not None
        return stored

    def state(self, job: JobHandle[Any]) -> State:
        return self.job(job).state

    def has_begun(self, job: JobHandle[Any]) -> bool:
        """Does it run here? The storage says that a job is reserved a moment before the loop knows of it."""
        held = self.worker.loop.held_jobs.get(job.id)
        return held is not None and held.began_at is not None

    def kinds(self, job: JobHandle[Any]) -> list[Kind]:
        return [event.kind for event in self.storage.events(EventFilter(job_id=job.id))]

    def log(self, job: JobHandle[Any]) -> list[str]:
        return [line.message for line in self.storage.log_lines(job.id)]

    def fill_buffer(self) -> None:
        """Let the worker believe that its jobs are very short, so that it takes many at once."""
        self.worker.loop.fetcher.pace.note([1])

    def close(self) -> None:
        for worker in self.opened:
            worker.quit()
            for executor in (worker.executors.threads, worker.executors.coroutines):
                with suppress(RuntimeError):  # its loop was closed before
                    executor.close()
        for thread in self.threads:
            thread.join(DEADLINE)


@pytest.fixture(params=["memory", "sqlite"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Storage]:
    storage = open_storage("memory://" if request.param == "memory" else f"sqlite:///{tmp_path / 'jobs.db'}")
    yield storage
    storage.close()


@pytest.fixture
def harness(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> Iterator[WorkerHarness]:
    monkeypatch.setattr(loop_module, "BUFFER_LIMIT", DEADLINE)  # nothing is handed back because the machine is slow
    monkeypatch.setattr(loop_module, "LONG_AFTER_CHECKS", 1_000_000)
    with Packhorse(storage) as app:
        harness = WorkerHarness(app, storage)
        yield harness
        harness.close()


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """What tasks wait for; it opens at the end of the test at the latest, so that no thread stays behind."""
    gate = threading.Event()
    yield gate
    gate.set()


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loop that visits its held jobs all the time."""
    monkeypatch.setattr(loop_module, "VISIT", 0.005)
    monkeypatch.setattr(loop_module, "MARK_AFTER", 0.01)
