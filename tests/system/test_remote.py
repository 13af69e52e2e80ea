"""Real foremen and workers whose storage is a manager's web: the manager is killed, a whole machine is lost. Nothing is
lost, nothing has ended twice, and nobody has to be restarted."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from packhorse.core.errors import StorageError
from packhorse.core.job import COMPLETED
from packhorse.storage import open_storage
from packhorse.storage.records import Filter
from tests.children import ROOT
from tests.ports import free_port
from tests.system.sites import HEARTBEAT, LEASE, Site, until
from tests.system.soundness import assert_sound

pytestmark = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="looks at processes through /proc")

TOKEN = "a-token-for-the-farm"


class Manager:
    """`packhorse web` on a SQLite file, for those who have a token."""

    def __init__(self, directory: Path) -> None:
        self._port = free_port()
        self._tokens = directory / "tokens"
        self._tokens.write_text(f"farm work {TOKEN}\n")
        self._tokens.chmod(0o600)
        self._command = [sys.executable, "-m", "packhorse", "web", "--port", str(self._port)]
        self._command += ["--url", f"sqlite:///{directory / 'manager.db'}", "--token-file", str(self._tokens)]
        self.url = f"http://farm:{TOKEN}@127.0.0.1:{self._port}"

    def start(self) -> Manager:
        self._process = subprocess.Popen(
            self._command,
            cwd=ROOT,
            env={**os.environ, "PACKHORSE_LEASE": str(LEASE), "PACKHORSE_HEARTBEAT": str(HEARTBEAT)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        until(self._answers, "the manager answers")
        return self

    def _answers(self) -> bool:
        assert self._process.poll() is None, "the manager is gone"
        storage = open_storage(self.url)
        try:
            storage.now()
        except StorageError:
            return False
        finally:
            storage.close()
        return True

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[Manager]:
    manager = Manager(tmp_path).start()
    yield manager
    manager.kill()


@pytest.fixture
def site(tmp_path: Path, manager: Manager) -> Iterator[Site]:
    site = Site(tmp_path, f"{manager.url}?patience=20s")
    yield site
    site.close()
    if site.log.exists():
        print(site.log.read_text())


def test_a_manager_that_is_killed_in_the_middle_of_work_costs_no_acknowledged_job(site: Site, manager: Manager) -> None:
    site.start(workers=2, slots=4)

    for _ in range(2):
        first, *_ = site.add("nap", number=100)
        site.until_begun(first)
        manager.kill()
        manager.start()
    site.until_final()

    assert site.storage.count(Filter(states=frozenset({COMPLETED}))).number == 200
    assert_sound(site)


def test_the_jobs_of_a_machine_that_is_lost_are_run_on_another(site: Site) -> None:
    lost = site.start(slots=2, lease=LEASE)
    jobs = site.add("nap", {"seconds": 600.0, "again": 0.0}, number=2, max_halts=1_000)
    site.until_begun(*jobs)
    other = site.start(slots=2, lease=LEASE)
    site.until_steady(other)

    crew = [worker.pid for worker in lost.workers()]
    lost.kill()
    for pid in crew:
        with suppress(ProcessLookupError):  # it may have seen its foreman die
            os.kill(pid, signal.SIGKILL)
    site.until_final()

    assert [site.job(job).state for job in jobs] == [COMPLETED] * 2
    assert all("was silent" in site.why(job) for job in jobs)
    assert_sound(site)


@pytest.fixture
def hasty_site(tmp_path: Path, manager: Manager) -> Iterator[Site]:
    """Whose workers notice soon that the manager is away."""
    site = Site(tmp_path, f"{manager.url}?patience=500ms")
    yield site
    site.close()


def test_a_result_outlives_its_worker_that_is_told_to_stop_while_the_manager_is_away(
    hasty_site: Site, manager: Manager, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = hasty_site
    monkeypatch.setenv("PACKHORSE_STATE_DIR", str(tmp_path / "state"))
    gate = tmp_path / "gate"
    crew = site.start(stop_grace=0.5)
    (job,) = site.add("nap", {"gate": str(gate)})
    site.until_begun(job)

    manager.kill()
    gate.touch()
    until(lambda: list((tmp_path / "state").rglob("*.outcomes")), "what it came to is on the disk")
    crew.end()
    manager.start()
    site.start()
    site.until_final()

    assert (site.job(job).state, site.job(job).attempts) == (COMPLETED, 1)
    assert len(site.ledger.lines()) == 2  # it began, and it ended
    assert list((tmp_path / "state").rglob("*.outcomes")) == []
    assert_sound(site)


def test_a_job_that_ends_while_the_manager_is_away_is_completed_when_that_is_back(
    hasty_site: Site, manager: Manager, tmp_path: Path
) -> None:
    site = hasty_site
    gate = tmp_path / "gate"
    site.start()
    (job,) = site.add("nap", {"gate": str(gate)})
    site.until_begun(job)

    manager.kill()
    gate.touch()
    until(lambda: len(site.ledger.lines()) == 2, "it has ended")
    manager.start()
    site.until_final()

    assert (site.job(job).state, site.job(job).attempts) == (COMPLETED, 1)
    assert_sound(site)
