"""A worker in a process of its own, as a foreman would have it: a channel, a shared status, and orders."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from packhorse.client.app import Packhorse
from packhorse.client.job import JobHandle
from packhorse.core.event import Kind
from packhorse.core.job import FINAL, Job, State
from packhorse.storage import open_storage
from packhorse.storage.records import EventFilter
from packhorse.worker.ipc import Channel
from packhorse.worker.shared_status import SharedStatus
from tests.children import PATIENCE, ROOT, until

OWNER = "ann"
_SLOW = {"PACKHORSE_ABORT_GRACE": "10m", "PACKHORSE_LEASE": "10m"}
"""The machine may be: nobody beats for the worker but once, when its shared status is made."""


class WorkerSubprocess:
    """One worker of `tests.worker.jobs`, or of another target, on a SQLite file in `directory`."""

    def __init__(self, directory: Path, *options: object, target: str = "tests.worker.jobs:app", **env: str) -> None:
        self.directory = directory
        self.url = f"sqlite:///{directory / 'jobs.db'}"
        self.storage = open_storage(self.url)
        self.app = Packhorse(self.storage)
        self.shared_status = SharedStatus.create(directory / "shared status", 10)
        self.said: list[dict[str, Any]] = []
        self._target, self._options, self.env = target, options, env
        self.process: subprocess.Popen[str]
        self.channel: Channel
        self._listener: threading.Thread

    def start(self) -> WorkerSubprocess:
        self.channel, theirs = Channel.pair()
        words = [
            "--url",
            self.url,
            "--id",
            OWNER,
            "--channel",
            theirs.fileno(),
            "--shared-status",
            self.shared_status.path,
        ]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "packhorse.worker", self._target, *map(str, words), *map(str, self._options)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            pass_fds=[theirs.fileno()],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT), **_SLOW, **self.env},
            start_new_session=True,
        )
        theirs.close()
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()
        return self

    def _listen(self) -> None:
        self.said.extend(self.channel.receive())

    # --- jobs -----------------------------------------------------------------------------------------------------

    def enqueue(self, task: str, **args: Any) -> JobHandle[Any]:
        """With the options of the task, as a program that has it would."""
        from tests.worker import jobs

        registered = jobs.app.registry.get(task).options
        options = {name: getattr(registered, name) for name in ("max_attempts", "max_halts", "backoff")}
        return self.app.enqueue(task, args, **options)

    def job(self, job: JobHandle[Any]) -> Job:
        stored = self.storage.get(job.id)
        assert stored is not None
        return stored

    def ended(self, job: JobHandle[Any]) -> Job:
        until(lambda: self.job(job).state in FINAL, f"{job.task} ends")
        return self.job(job)

    def state(self, job: JobHandle[Any]) -> State:
        return self.job(job).state

    def kinds(self, job: JobHandle[Any]) -> list[Kind]:
        return [event.kind for event in self.storage.events(EventFilter(job_id=job.id))]

    def was_taken(self, job: JobHandle[Any]) -> bool:
        """Was it ever in the worker's hands? It may be handed back soon, where the machine is slow."""
        return Kind.RESERVED in self.kinds(job)

    def log(self, job: JobHandle[Any]) -> list[str]:
        return [line.message for line in self.storage.log_lines(job.id)]

    def abort(self, job: JobHandle[Any]) -> None:
        """As an operator does, and then the foreman hands it on."""
        self.storage.abort([job.id])
        self.send({"do": "stop", "job_id": job.id, "owner": OWNER, "fence": self.job(job).fence, "reason": "ABORTED"})

    # --- the process ----------------------------------------------------------------------------------------------

    def send(self, message: dict[str, Any]) -> None:
        assert self.channel.send(message)

    def wait(self) -> tuple[int, str]:
        """Its exit code, and what it wrote to stderr."""
        _, err = self.process.communicate(timeout=PATIENCE)
        self._listener.join(timeout=PATIENCE)  # its last words may still be on their way
        return self.process.returncode, err

    def close(self) -> None:
        self.app.close()
        if hasattr(self, "process"):
            if self.process.poll() is None:
                self.process.send_signal(signal.SIGKILL)
            self.process.communicate(timeout=PATIENCE)
            self.channel.socket.shutdown(2)
            self.channel.close()
        self.shared_status.close()


def file(path: Path) -> Path:
    """The file, once it is there."""
    until(path.exists, f"{path.name} is there")
    return path


def is_alive(pid: int) -> bool:
    """Is there such a process, and not only its remains?"""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


def descendants(pid: int) -> list[int]:
    """Everybody below this process."""
    found = []
    for path in Path("/proc").iterdir():
        if path.name.isdigit() and parent_of(int(path.name)) == pid:
            found += [int(path.name), *descendants(int(path.name))]
    return found


def parent_of(pid: int) -> int | None:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return None
