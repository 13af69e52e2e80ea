"""What the worker's tests build upon: jobs, tasks and held jobs without a storage, and a line that remembers."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence
from typing import Any

from packhorse.core.job import RESERVED, Job
from packhorse.core.task import RegisteredTask, Registry, TaskOptions
from packhorse.worker.held_job import HeldJob, WorkerStop
from packhorse.worker.middleware import Chain, compose

RESULT_LIMIT = 1 << 20


def task_of(function: Callable[..., Any], name: str | None = None, **options: Any) -> RegisteredTask:
    return Registry().add(function, name, TaskOptions.parse(**options))


def a_job(job_id: str = "job-1", args: str = "{}", **fields: Any) -> Job:
    """A job as its worker gets it."""
    given = {
        "seq": 1,
        "task": "send",
        "queue": "send",
        "args": args,
        "state": RESERVED,
        "priority": 1,
        "rank": 12,
        "created_at": 0,
        "updated_at": 0,
        "owner": "ann",
        "fence": 1,
    }
    return Job(id=job_id, **{**given, **fields})


def chain_of(task: RegisteredTask, middleware: Sequence[Callable[..., Any]] = ()) -> Chain:
    return compose(task, middleware, loop=None)[0]


def a_held_job(
    job: Job | None = None,
    task: RegisteredTask | None = None,
    *,
    worker_stop: WorkerStop | None = None,
    now: float = 0.0,
) -> HeldJob:
    task = task or task_of(lambda: None, "send")
    chain, is_async = compose(task, (), loop=None)
    return HeldJob(job or a_job(), task, chain, is_async, worker_stop or WorkerStop(), now)


def throw_into(thread: threading.Thread, error: type[BaseException]) -> None:
    """As libraries do that end what takes too long. It is raised at the next step of the thread's own Python code."""
    hit = ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(error))
    assert hit == 1, "the thread is gone"


class RecordingLink:
    """A job's line to the outside that keeps what was said."""

    def __init__(self, *, stops: bool = False) -> None:
        self.stops = stops
        self.lines: list[tuple[str, str]] = []
        self.checkins: list[tuple[str | None, int | None, str | None]] = []

    def log(self, message: str, kind: str = "log") -> None:
        self.lines.append((kind, message))

    def check_in(self, message: str | None, progress: int | None, progress_text: str | None) -> None:
        self.checkins.append((message, progress, progress_text))

    def is_stopping(self) -> bool:
        return self.stops

    def should_stop(self) -> bool:
        return self.stops
