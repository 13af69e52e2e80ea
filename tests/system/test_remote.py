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
from tests.system.deployment import HEARTBEAT, LEASE, Deployment, until
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
def deployment(tmp_path: Path, manager: Manager) -> Iterator[Deployment]:
    deployment = Deployment(tmp_path, f"{manager.url}?patience=20s")
    yield deployment
    deployment.close()
    if deployment.log.exists():
        print(deployment.log.read_text())


def test_a_manager_that_is_killed_in_the_middle_of_work_costs_no_acknowledged_job(
    deployment: Deployment, manager: Manager
) -> None:
    deployment.start(workers=2, slots=4)

    for _ in range(2):
        first, *_ = deployment.add("nap", number=100)
        deployment.until_begun(first)
        manager.kill()
        manager.start()
    deployment.until_final()

    assert deployment.storage.count(Filter(states=frozenset({COMPLETED}))).number == 200
    assert_sound(deployment)


def test_the_jobs_of_a_machine_that_is_lost_are_run_on_another(deployment: Deployment) -> None:
    lost = deployment.start(slots=2, lease=LEASE)
    jobs = deployment.add("nap", {"seconds": 600.0, "again": 0.0}, number=2, max_halts=1_000)
    deployment.until_begun(*jobs)
    other = deployment.start(slots=2, lease=LEASE)
    deployment.until_steady(other)

    foreman = [worker.pid for worker in lost.workers()]
    lost.kill()
    for pid in foreman:
        with suppress(ProcessLookupError):  # it may have seen its foreman die
            os.kill(pid, signal.SIGKILL)
    deployment.until_final()

    assert [deployment.job(job).state for job in jobs] == [COMPLETED] * 2
    assert all("was silent" in deployment.why(job) for job in jobs)
    assert_sound(deployment)


@pytest.fixture
def hasty_deployment(tmp_path: Path, manager: Manager) -> Iterator[Deployment]:
    """Whose workers notice soon that the manager is away."""
    deployment = Deployment(tmp_path, f"{manager.url}?patience=500ms")
    yield deployment
    deployment.close()


def test_a_result_outlives_its_worker_that_is_told_to_stop_while_the_manager_is_away(
    hasty_deployment: Deployment, manager: Manager, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deployment = hasty_deployment
    monkeypatch.setenv("PACKHORSE_STATE_DIR", str(tmp_path / "state"))
    gate = tmp_path / "gate"
    foreman = deployment.start(stop_grace=0.5)
    (job,) = deployment.add("nap", {"gate": str(gate)})
    deployment.until_begun(job)

    manager.kill()
    gate.touch()
    until(lambda: list((tmp_path / "state").rglob("*.outcomes")), "what it came to is on the disk")
    foreman.end()
    manager.start()
    deployment.start()
    deployment.until_final()

    assert (deployment.job(job).state, deployment.job(job).attempts) == (COMPLETED, 1)
    assert len(deployment.run_log.lines()) == 2  # it began, and it ended
    assert list((tmp_path / "state").rglob("*.outcomes")) == []
    assert_sound(deployment)


def test_a_job_that_ends_while_the_manager_is_away_is_completed_when_that_is_back(
    hasty_deployment: Deployment, manager: Manager, tmp_path: Path
) -> None:
    deployment = hasty_deployment
    gate = tmp_path / "gate"
    deployment.start()
    (job,) = deployment.add("nap", {"gate": str(gate)})
    deployment.until_begun(job)

    manager.kill()
    gate.touch()
    until(lambda: len(deployment.run_log.lines()) == 2, "it has ended")
    manager.start()
    deployment.until_final()

    assert (deployment.job(job).state, deployment.job(job).attempts) == (COMPLETED, 1)
    assert_sound(deployment)
