"""The run log: a file to which tasks add a line when they begin and when they have done their work, whatever happens to
their process in between. The tests compare it with what the storage says.

A line is `begin|end ID FENCE PID AT .`, written in one step to a file that is only ever added to; AT is microseconds
since 1970, so it can be compared with the times of events. Who is killed in that step may leave only the beginning of a
line, and who reads in that moment may see no more of it: a line counts when its full stop is there.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from packhorse import current_job

RUN_LOG = "PACKHORSE_TEST_RUN_LOG"
"""The environment variable that names the file."""
TOLD = "told"
"""The first word of a line that a result handler adds."""


@contextmanager
def noted() -> Iterator[None]:
    """In a task: note that it begins, and, unless it raises, that it has ended."""
    _note("begin")
    yield
    _note("end")


def is_first_run() -> bool:
    """In a task that is noted: had it never begun before this time? Its fence alone does not tell: where the machine is
    slow, a job may be handed back, and taken again, before it begins."""
    job = current_job()
    _, _, first = Path(os.environ[RUN_LOG]).read_bytes().partition(f"\nbegin {job.id} ".encode())
    return first.startswith(f"{job.fence} ".encode())


def _note(word: str) -> None:
    job = current_job()
    line = f"\n{word} {job.id} {job.fence} {os.getpid()} {time.time_ns() // 1_000} ."
    file = os.open(os.environ[RUN_LOG], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(file, line.encode())
    finally:
        os.close(file)


class Run(NamedTuple):
    """One line."""

    word: str
    job_id: str
    fence: int
    pid: int
    at: int

    @property
    def run(self) -> tuple[str, int]:
        """Names one execution: a job, and the handing-over under which it ran."""
        return self.job_id, self.fence


class RunLog:
    """Reads the file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def lines(self) -> list[Run]:
        if not self.path.exists():
            return []
        lines = [line for line in self.path.read_text().splitlines() if line.endswith(" .")]
        words = [line.split() for line in lines]
        return [Run(word, job_id, int(fence), int(pid), int(at)) for word, job_id, fence, pid, at, _ in words]

    def told(self) -> list[str]:
        """The jobs for which a result handler was called, in order."""
        return [line.job_id for line in self.lines() if line.word == TOLD]

    def begun(self, job_id: str | None = None) -> list[Run]:
        """The executions that began, in their order; of this job, or of all."""
        return [line for line in self.lines() if line.word == "begin" and job_id in (None, line.job_id)]

    def ended(self, job_id: str | None = None) -> list[Run]:
        """The executions that came to their end."""
        return [line for line in self.lines() if line.word == "end" and job_id in (None, line.job_id)]

    def runs(self) -> Counter[str]:
        """How often each job began."""
        return Counter(line.job_id for line in self.begun())
