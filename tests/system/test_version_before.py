"""A rolling deployment: programs of an earlier version, as it was, at work before, while and after the tables are
migrated, beside programs of this one. Every job runs once, whichever version enqueues and runs it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests import mysql_server, postgres_server
from tests.children import PATIENCE, ROOT, running, until
from tests.storage.conftest import chosen_storages

EARLIER = "c29b2333ab08583b07f401f8242d1d28ec7e825f"
"""The last commit with the first tables: of the databases, the first version that anybody may have in use."""
BATCH = 400
JOBS = """
import os, sys
from packhorse import Packhorse

app = Packhorse(os.environ["PACKHORSE_URL"])


def note(task, n):
    with open("notes", "a") as notes:
        notes.write(f"{task} {n} {os.environ['VERSION']}\\n")


@app.task(queue="for_old")
def by_old(n: int) -> None:
    note("by_old", n)


@app.task(queue="for_new")
def by_new(n: int) -> None:
    note("by_new", n)


@app.task(queue="for_old")
def fails(n: int) -> None:
    raise ValueError("on purpose")


if __name__ == "__main__":
    first, batch = int(sys.argv[1]), int(sys.argv[2])
    for task in (by_old, by_new):
        for n in range(first, first + 5):
            task.enqueue(n=n)
        task.enqueue_in("1s", n=first + 5)
        app.enqueue_many([task.call(n=first + 6 + more) for more in range(batch)])
    fails.enqueue(n=first)
"""


@pytest.fixture(scope="module")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package as it was then."""
    packed = subprocess.run(["git", "archive", EARLIER, "packhorse"], cwd=ROOT, capture_output=True)
    if packed.returncode != 0:
        pytest.skip(f"this copy of the sources does not reach back to {EARLIER[:7]}")
    directory = tmp_path_factory.mktemp("earlier")
    subprocess.run(["tar", "-x", "-C", str(directory)], input=packed.stdout, check=True)
    return directory


@pytest.fixture(params=["postgres", pytest.param("mysql", marks=pytest.mark.long)])
def url(request: pytest.FixtureRequest) -> str:
    if request.param not in chosen_storages():
        pytest.skip(f"PACKHORSE_TEST_STORAGES does not name {request.param}")
    if request.param == "mysql":
        return mysql_server.new_database_url(bare=True)
    return postgres_server.new_schema_url(bare=True)


class Version:
    """Programs of one version."""

    def __init__(self, name: str, sources: Path, url: str, directory: Path) -> None:
        self._directory = directory
        self._environment = {**os.environ, "PYTHONPATH": str(sources), "PACKHORSE_URL": url, "VERSION": name}
        self._environment["PACKHORSE_LEASE"] = "5m"  # the machine may be busy

    def start(self, *words: str) -> subprocess.Popen[str]:
        with (self._directory / "log").open("a") as log:
            return subprocess.Popen(
                [sys.executable, *words], cwd=self._directory, env=self._environment, stdout=log, stderr=log, text=True
            )

    def run(self, *words: str) -> str:
        done = subprocess.run(
            [sys.executable, *words], cwd=self._directory, env=self._environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def work(self, queue: str) -> subprocess.Popen[str]:
        return self.start("-m", "packhorse", "work", "jobs.py", "--queues", queue, "--min", "1", "--max", "1")


def test_both_versions_work_while_the_tables_are_migrated_and_after(earlier: Path, url: str, tmp_path: Path) -> None:
    (tmp_path / "jobs.py").write_text(JOBS)
    (tmp_path / "notes").touch()
    old, new = Version("old", earlier, url, tmp_path), Version("new", ROOT, url, tmp_path)
    assert old.run("-m", "packhorse", "migrate").splitlines() == ["applied 001_start.sql"]

    def ran() -> Counter[str]:
        return Counter((tmp_path / "notes").read_text().splitlines())

    old.run("jobs.py", "0", "20")
    worker = old.work("for_old")
    with running(worker):
        until(lambda: len(ran()) >= 26, "the old one has run what there was")
        bringing = old.start("jobs.py", "10000", str(BATCH))
        with running(bringing):
            assert "002_" in new.run("-m", "packhorse", "migrate")
            assert bringing.wait(PATIENCE) == 0
        other = new.work("for_new")
        with running(other):
            new.run("jobs.py", "20000", str(BATCH))
            old.run("jobs.py", "30000", "20")
            number = 2 * (26 + 2 * (BATCH + 6) + 26)
            until(lambda: len(ran()) >= number, "every job has run", 2 * PATIENCE)

            assert "fails" in new.run("-m", "packhorse", "failures")
            told = old.run("-m", "packhorse", "events", "-n", "50")
            one = new.run("-m", "packhorse", "jobs", "completed", "--task", "by_new", "-n", "1", "--ids").strip()
            told += old.run("-m", "packhorse", "job", one)
            for each in (worker, other):
                each.send_signal(signal.SIGTERM)
            codes = [each.wait(PATIENCE) for each in (worker, other)]

    assert set(ran().values()) == {1}
    assert {tuple(line.split()[::2]) for line in ran()} == {("by_old", "old"), ("by_new", "new")}
    assert len(ran()) == number
    assert "for_new" in told
    assert codes == [0, 0], (tmp_path / "log").read_text()[-2_000:]
