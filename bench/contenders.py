"""The contenders of the race on SQLite: Packhorse, and Huey with its own SQLite storage.

Each is driven by its own program in its own virtual environment, as a user would run it: an app file, a producer, and
the worker's command line. All run the same job, which returns its argument; results are kept; ten threads a process.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

_ROOT = Path(__file__).parent.parent
_ENVIRONMENTS = _ROOT / ".bench"

_PACKHORSE_APP = """\
import os, time
from packhorse import Packhorse
app = Packhorse("sqlite:///" + os.environ["BENCH_FILE"])

@app.task
def noop(user_id: int, email: str) -> int:
    return user_id

@app.task
def stamp(sent: float, file: str) -> None:
    with open(file, "a") as out:
        out.write(f"{time.time() - sent}\\n")
"""
_PACKHORSE_SEND = """\
import sys, time
from app import app, noop, stamp
what, number = sys.argv[1], int(sys.argv[2])
began = time.perf_counter()
if what == "single":
    for _ in range(number):
        noop.enqueue(user_id=1, email="a@b.c")
elif what == "many":
    for _ in range(0, number, 1000):
        app.enqueue_many([noop.call(user_id=1, email="a@b.c") for _ in range(1000)])
else:
    for _ in range(number):
        stamp.enqueue(sent=time.time(), file=sys.argv[3])
        time.sleep(0.1)
print(number / (time.perf_counter() - began))
"""
_HUEY_APP = """\
import os, time
from huey import SqliteHuey
huey = SqliteHuey(filename=os.environ["BENCH_FILE"])

@huey.task()
def noop(user_id, email):
    return user_id

@huey.task()
def stamp(sent, file):
    with open(file, "a") as out:
        out.write(f"{time.time() - sent}\\n")
"""
_HUEY_SEND = """\
import sys, time
from app import huey, noop, stamp
what, number = sys.argv[1], int(sys.argv[2])
began = time.perf_counter()
if what in ("single", "many"):
    for _ in range(number):
        noop(1, "a@b.c")
else:
    for _ in range(number):
        stamp(time.time(), sys.argv[3])
        time.sleep(0.1)
print(number / (time.perf_counter() - began))
"""


class Contender(NamedTuple):
    """How one system is set up, fed and run."""

    name: str
    requirement: str | None  # None: it is this project
    app: str
    send: str
    work: tuple[str, ...]  # the worker's command line, behind the interpreter
    left: str  # SQL that counts what is still to be done

    @property
    def python(self) -> str:
        if self.requirement is None:
            return sys.executable
        python = _ENVIRONMENTS / self.name / "bin" / "python"
        if not python.exists():
            subprocess.run([sys.executable, "-m", "venv", python.parent.parent], check=True)
            subprocess.run([python, "-m", "pip", "install", "-q", self.requirement], check=True)
        return str(python)

    def lay_out(self, folder: Path) -> dict[str, str]:
        """Write its program into a folder; answers the environment that its processes need."""
        (folder / "app.py").write_text(self.app)
        (folder / "send.py").write_text(self.send)
        paths = f"{folder}{os.pathsep}{_ROOT}" if self.requirement is None else str(folder)
        return {**os.environ, "BENCH_FILE": str(folder / "jobs.db"), "PYTHONPATH": paths}

    def enqueue(self, folder: Path, what: str, number: int, *more: str) -> float:
        """Feed it; answers jobs a second."""
        words = [self.python, "send.py", what, str(number), *more]
        done = subprocess.run(words, cwd=folder, env=self.lay_out(folder), check=True, capture_output=True, text=True)
        return float(done.stdout)

    def start(self, folder: Path, processes: int) -> list[subprocess.Popen[bytes]]:
        """Start its workers."""
        environment = self.lay_out(folder)
        log = (folder / "work.log").open("ab")
        return [
            subprocess.Popen(
                [self.python, *words], cwd=folder, env=environment, stdout=log, stderr=log, start_new_session=True
            )
            for words in self._commands(processes)
        ]

    def _commands(self, processes: int) -> list[list[str]]:
        if self.requirement is None:  # one foreman has as many workers as are asked for
            return [[*self.work, "--min", str(processes), "--max", str(processes)]]
        return [list(self.work)] * processes

    def number_left(self, folder: Path) -> int:
        """How many jobs are still to be done, read from its file."""
        connection = sqlite3.connect(f"file:{folder / 'jobs.db'}?mode=ro", uri=True, timeout=10)
        try:
            number: int = connection.execute(self.left).fetchone()[0]
        finally:
            connection.close()
        return number


def stop(workers: list[subprocess.Popen[bytes]]) -> None:
    """End workers and all that they have started."""
    for worker in workers:
        worker.send_signal(signal.SIGTERM)
    for worker in workers:
        try:
            worker.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(worker.pid, signal.SIGKILL)
            worker.wait()


PACKHORSE = Contender(
    "packhorse",
    None,
    _PACKHORSE_APP,
    _PACKHORSE_SEND,
    ("-m", "packhorse", "work", "app:app", "--quiet", "--log-level", "warning"),
    "SELECT coalesce(sum(number), 0) FROM packhorse_tally WHERE state NOT IN ('completed', 'dead', 'aborted')",
)
HUEY = Contender(
    "huey",
    "huey",
    _HUEY_APP,
    _HUEY_SEND,
    ("-m", "huey.bin.huey_consumer", "app.huey", "-w", "10", "-k", "thread", "-q"),
    "SELECT count(*) FROM task",
)
