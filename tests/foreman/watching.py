"""Foremen in real processes, seen from outside, and jobs that say what their fake workers do."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from packhorse.core.clock import SECOND
from packhorse.core.event import Subject
from packhorse.core.job import Job, NewJob
from packhorse.foreman import process_tree
from packhorse.storage.contract import Storage
from packhorse.storage.records import WorkerInfo

LEASE = SECOND
"""For those who are to take jobs from the silent, and soon."""
QUICK = {
    "heartbeat": SECOND // 5,
    "lease": 600 * SECOND,  # no process counts as dead only because the machine is busy
    "idle_stop": SECOND // 2,
    "stop_grace": 600 * SECOND,
    "abort_grace": 0,
    "concurrency": 2,
    "max_workers": 1,
}


class RunningForeman:
    """A foreman in a process of its own, seen through its storage."""

    def __init__(self, process: subprocess.Popen[str], storage: Storage) -> None:
        self.process = process
        self.storage = storage

    def record(self) -> WorkerInfo | None:
        found = [each for each in self.storage.workers() if each.pid == self.process.pid]
        return found[0] if found else None

    def report(self) -> dict[str, Any]:
        record = self.record()
        return record.report if record else {}

    def workers(self) -> list[WorkerInfo]:
        """Those that are online."""
        return [each for each in self.storage.workers() if each.subject is Subject.WORKER]

    def takes_jobs(self) -> bool:
        """Does any worker of it? What a foreman says of itself its workers may not have heard yet."""
        return any(each.report.get("takes_jobs", True) for each in self.workers())

    def pids(self) -> set[int]:
        return {worker.pid for worker in self.workers()}

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def is_over(self) -> bool:
        return self.process.poll() is not None


Start = Callable[..., RunningForeman]


def remaining_children(foremen: list[RunningForeman]) -> list[int]:
    """Fake workers that name one of these foremen as their parent."""
    parents = {f"--parent={foreman.process.pid}\0" for foreman in foremen}
    left = []
    for path in Path("/proc").iterdir():
        if path.name.isdigit() and int(path.name) != os.getpid() and process_tree.is_alive(int(path.name)):
            try:
                command = (path / "cmdline").read_text()
            except OSError:
                continue
            if any(parent in command for parent in parents):
                left.append(int(path.name))
    return left


def add(storage: Storage, number: int, do: str = "finish", **facts: Any) -> Job:
    """A job that says what a fake worker does."""
    job_id = f"job-{number}"
    storage.enqueue([NewJob(id=job_id, task="send", queue="work", args=json.dumps({"do": do, **facts}))])
    job = storage.get(job_id)
    assert job is not None
    return job


def state_of(storage: Storage, number: int) -> str:
    job = storage.get(f"job-{number}")
    return job.state.value if job else "gone"
