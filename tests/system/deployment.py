"""A deployment: a storage, by default a SQLite file, foremen that `packhorse work` starts on it with short heartbeats,
and a run log of what their tasks did. Tests kill, stop and continue whom they like, and ask at the end whether all is
sound.
"""

from __future__ import annotations

import os
import secrets
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from packhorse.client.job_builder import JobTemplate
from packhorse.core.clock import Now
from packhorse.core.event import Event, Kind, Subject
from packhorse.core.job import FINAL, Job, NewJob
from packhorse.foreman.process_tree import is_alive
from packhorse.storage import open_storage
from packhorse.storage.records import EventFilter, WorkerInfo
from tests.children import PATIENCE, ROOT
from tests.system.deployment_tasks import app
from tests.system.run_log import RUN_LOG, Run, RunLog

HEARTBEAT, LEASE = 0.3, 1.2
LONG_LEASE = 600.0
"""Ten times what any test waits for anything: what is noticed within that was seen and not waited for, and nobody is
taken for dead who only gets no processor for a while."""
LEASES = (1.5 * LEASE, 8 * LEASE, 25 * LEASE)
"""Where everybody is watched and nobody may be taken for dead: each is for a busier machine than the one before."""
MARK = "SITE_MARK"
"""The environment variable by which all processes of a deployment are known, however they came to be."""


def until(condition: Callable[[], object], what: str, seconds: float = PATIENCE) -> None:
    """Come back when the condition holds; looks seldom enough to leave the processor to those under test."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.01)


class ForemanProcess:
    """One foreman and its workers."""

    def __init__(self, deployment: Deployment, process: subprocess.Popen[bytes]) -> None:
        self.deployment = deployment
        self.process = process
        self.pid = process.pid

    def record(self) -> WorkerInfo | None:
        return next((each for each in self.deployment.storage.workers() if each.pid == self.pid), None)

    def workers(self) -> list[WorkerInfo]:
        """Those that have joined, by age. What they say of their foreman is not enough: it may have been removed,
        and have joined again under another id."""
        records = self.deployment.storage.workers()
        ids = [each.id for each in records if each.pid == self.pid]
        found = [each for each in records if each.subject is Subject.WORKER]
        found = [each for each in found if each.foreman in ids or parent_of(each.pid) == self.pid]
        return sorted(found, key=lambda worker: worker.joined_at)

    def report(self) -> dict[str, Any]:
        record = self.record()
        return record.report if record else {}

    def is_steady(self) -> bool:
        """May it take jobs from workers that have fallen silent?"""
        return bool(self.report().get("steady"))

    def tell(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def kill(self) -> float:
        """Kill the foreman, and only that; answers when, by `time.time`."""
        return kill(self.pid, self.process)

    def is_over(self) -> bool:
        return self.process.poll() is not None

    def end(self, number: signal.Signals = signal.SIGTERM, seconds: float = PATIENCE) -> int:
        """Tell it to stop, and wait until it has; answers its exit code."""
        if not self.is_over():
            self.tell(signal.SIGCONT)
            self.tell(number)
        return self.process.wait(seconds)


class Deployment:
    """Where it all happens; `close` leaves no process behind. `now` is the storage's clock as seen from here,
    `variables` are for the environment of the processes."""

    def __init__(
        self,
        directory: Path,
        url: str | None = None,
        *,
        now: Now | None = None,
        python_path: Sequence[Path] = (),
        variables: Mapping[str, str] | None = None,
    ) -> None:
        self.path = directory / "jobs.db"
        self.url = url or f"sqlite:///{self.path}"
        self.run_log = RunLog(directory / "run_log")
        self.log = directory / "log"
        self.mark = secrets.token_hex(8)
        self.storage = open_storage(self.url, now=now)
        self.variables = {
            "PYTHONPATH": os.pathsep.join(map(str, [*python_path, ROOT])),
            "TMPDIR": str(directory),  # for what the killed leave there
            MARK: self.mark,
            RUN_LOG: str(self.run_log.path),
            **(variables or {}),
        }
        self.foremen: list[ForemanProcess] = []
        self.acknowledged: list[str] = []

    @property
    def is_file(self) -> bool:
        return self.url.startswith("sqlite:")

    # --- foremen ----------------------------------------------------------------------------------------------------

    def start(
        self,
        workers: int = 1,
        slots: int = 2,
        *,
        words: Sequence[str] = (),
        online: bool = True,
        target: str = "tests.system.deployment_tasks:app",
        **settings: float,
    ) -> ForemanProcess:
        """`packhorse work` with so many workers; comes back when they are online. Only with a short `lease` does it
        take jobs from silent workers, and loses its own to others."""
        lease = settings.setdefault("lease", LONG_LEASE)
        settings.setdefault("heartbeat", HEARTBEAT if lease == LONG_LEASE else lease * HEARTBEAT / LEASE)
        environment = {f"PACKHORSE_{name.upper()}": str(value) for name, value in settings.items()}
        command = [sys.executable, "-m", "packhorse", "work", target, "--url", self.url]
        size = ["--min", str(workers), "--max", str(workers), "-c", str(slots)]
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                [*command, *size, "--quiet", "--log-level", "warning", *words],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=ROOT,
                env={**os.environ, **environment, **self.variables},
                start_new_session=True,
            )
        foreman = ForemanProcess(self, process)
        self.foremen.append(foreman)
        if online:
            until(
                lambda: foreman.is_over() or len(foreman.workers()) >= workers,
                f"{workers} workers are online",
            )
            assert not foreman.is_over(), self.log.read_text()
        return foreman

    def processes(self) -> list[int]:
        """All living processes of this deployment."""
        mark = f"{MARK}={self.mark}".encode()
        found = []
        for path in Path("/proc").iterdir():
            with suppress(OSError):
                if path.name.isdigit() and mark in (path / "environ").read_bytes().split(b"\0"):
                    found.append(int(path.name))
        return [pid for pid in found if is_alive(pid)]

    def programs(self) -> list[str]:
        """The names of what they run, in the order of the alphabet."""
        names = []
        for pid in self.processes():
            with suppress(OSError):
                names.append(Path(f"/proc/{pid}/comm").read_text().strip())
        return sorted(names)

    def children_of(self, pid: int) -> list[int]:
        """The processes that this one has started: of a worker its fork server, of that the isolated jobs."""
        return [child for child in self.processes() if parent_of(child) == pid]

    def freeze(self, pid: int) -> None:
        """Stop a process, at a moment when it does not hold the file's lock: that would stop everybody else too."""
        if not self.is_file:
            os.kill(pid, signal.SIGSTOP)
            return
        while True:
            os.kill(pid, signal.SIGSTOP)
            connection = sqlite3.connect(self.path, timeout=0.1, isolation_level=None)
            try:
                connection.execute("BEGIN IMMEDIATE")
                return
            except sqlite3.OperationalError:
                os.kill(pid, signal.SIGCONT)
                time.sleep(0.05)  # it gets a little further
            finally:
                connection.close()

    def end(self) -> None:
        """Tell all foremen to stop, and wait."""
        for foreman in self.foremen:
            if not foreman.is_over():
                foreman.tell(signal.SIGCONT)
                foreman.tell(signal.SIGTERM)
        for foreman in self.foremen:
            foreman.process.wait(PATIENCE)

    def close(self) -> None:
        """Whatever happened, nobody stays."""
        for foreman in self.foremen:
            if not foreman.is_over():
                foreman.process.kill()
            foreman.process.wait()
        for pid in self.processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.storage.close()

    # --- jobs -------------------------------------------------------------------------------------------------------

    def add(self, task: str, args: dict[str, Any] | None = None, *, number: int = 1, **fields: Any) -> list[str]:
        """Enqueue so many jobs of this task, in one call; `fields` are those of `NewJob`. Return their ids."""
        return self.send([new_job(task, args, **fields) for _ in range(number)])

    def send(self, jobs: Sequence[NewJob]) -> list[str]:
        """Enqueue these. Only what is answered counts as acknowledged."""
        ids = [answer.job_id for answer in self.storage.enqueue(jobs)]
        self.acknowledged += ids
        return ids

    def job(self, job_id: str) -> Job:
        job = self.storage.get(job_id)
        assert job is not None, f"job {job_id} is gone"
        return job

    def events(self, job_id: str, kind: Kind | None = None) -> list[Event]:
        return self.storage.events(EventFilter(job_id=job_id, kind=kind), limit=1_000)

    def why(self, job_id: str, kind: Kind = Kind.HALTED) -> str:
        """What the last event of this kind says."""
        return str((self.events(job_id, kind)[-1].data or {})["why"])

    def foreman_of(self, job_id: str) -> ForemanProcess:
        """Whose worker holds this job."""
        owner = self.job(job_id).owner
        return next(foreman for foreman in self.foremen if owner in [worker.id for worker in foreman.workers()])

    def owners(self) -> set[str]:
        """All workers, by their ids."""
        return {each.id for each in self.storage.workers() if each.subject is Subject.WORKER}

    def has_heard_silence(self) -> bool:
        """Was any process removed because it was silent for a lease?"""
        return any("was silent" in str(event.data) for event in self.storage.events(EventFilter(kind=Kind.DIED)))

    # --- waiting ----------------------------------------------------------------------------------------------------

    def until_steady(self, *foremen: ForemanProcess) -> None:
        """Wait until each of these foremen may take jobs from silent workers: one quiet lease at least."""
        until(
            lambda: all(foreman.is_steady() for foreman in foremen),
            "they may rescue",
            2 * PATIENCE,
        )

    def until_begun(self, *job_ids: str, runs: int = 1, seconds: float = PATIENCE) -> list[Run]:
        """Wait until each of these jobs has begun so often; answers the line of the latest begin of each."""
        until(lambda: all(len(self.run_log.begun(each)) >= runs for each in job_ids), f"begun {runs} times", seconds)
        return [self.run_log.begun(each)[-1] for each in job_ids]

    def until_final(self, *job_ids: str, seconds: float = PATIENCE) -> None:
        """Wait until these jobs, or all, are final."""
        asked = list(job_ids or self.acknowledged)
        until(lambda: not self.unfinished(asked), "all jobs are final", seconds)

    def unfinished(self, job_ids: Sequence[str]) -> list[Job]:
        parts = (job_ids[start : start + 500] for start in range(0, len(job_ids), 500))
        return [job for part in parts for job in self.storage.get_many(part) if job.state not in FINAL]


def new_job(task: str, args: dict[str, Any] | None = None, **fields: Any) -> NewJob:
    """A new job as a client would send it, with what its task says of queue and attempts."""
    template = JobTemplate.of_task(app.registry.get(task), app.settings.payload_limit)
    return replace(template.fill((), args or {}), **fields)


def has_two_sleepers(deployment: Deployment) -> bool:
    """Foreman, worker, fork server and child, and what two jobs, or one, have started: not a shell that is about to."""
    programs = deployment.programs()
    return len(programs) == 6 and programs.count("sleep") == 2


def kill(pid: int, process: subprocess.Popen[bytes] | None = None) -> float:
    """Kill -9; answers when, by `time.time`."""
    os.kill(pid, signal.SIGKILL)
    at = time.time()
    if process is not None:
        process.wait()
    return at


def parent_of(pid: int) -> int | None:
    """Who started this process, if it is still there."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return None
