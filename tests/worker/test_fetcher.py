"""Admission: jobs of unknown tasks are handed back, and the storage is asked about them only now and then."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from packhorse.core.errors import StorageUnavailable, TaskNotFound
from packhorse.storage.records import WorkerInfo
from packhorse.worker.fetcher import Admission
from tests.worker.factories import a_job


class ExecutorPool:
    """One that knows no task, and serves a queue of others."""

    def __init__(self) -> None:
        self.outcomes: list[Any] = []
        self.left: list[str] = []
        self.served_queues = SimpleNamespace(
            is_of_others=lambda queue: True, waits_in=lambda queue, tallies: bool(tallies), leave=self.left.append
        )

    def hold(self, job: Any) -> Any:
        raise TaskNotFound(f"there is no task {job.task!r}")


def test_a_storage_that_is_away_is_asked_once_for_many_jobs():
    asked: list[int] = []

    def workers() -> Any:
        asked.append(1)
        raise StorageUnavailable("away")

    executors = ExecutorPool()
    outage: Any = SimpleNamespace(note=lambda error, waiting: None)
    storage: Any = SimpleNamespace(workers=workers)
    admission = Admission(storage, "ann", executors, outage)  # type: ignore[arg-type]

    assert admission.admit([a_job() for _ in range(50)]) == []

    assert len(asked) == 1
    assert len(executors.left) == 50, "nobody can tell, so the queue is left for a while"


def test_the_log_names_a_task_that_is_not_known_once_a_minute(caplog: pytest.LogCaptureFixture):
    storage: Any = SimpleNamespace(workers=list, tallies=list)
    admission = Admission(storage, "ann", ExecutorPool(), SimpleNamespace())  # type: ignore[arg-type]

    admission.admit([a_job() for _ in range(50)])

    assert len([record for record in caplog.records if record.levelname == "WARNING"]) == 1


def test_what_a_foreign_worker_tells_of_itself_ends_no_worker():
    ruby = WorkerInfo("ruby-1", info={"serves": [5, ["x"], None], "tasks": [{}, "mail"]})
    executors = ExecutorPool()
    storage: Any = SimpleNamespace(workers=lambda: [ruby], tallies=lambda: ["a job that is known"])
    admission = Admission(storage, "ann", executors, SimpleNamespace())  # type: ignore[arg-type]

    assert admission.admit([a_job()]) == []

    assert executors.left == [], "nobody else takes it"
