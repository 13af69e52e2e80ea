"""Is the foreman here alive? Seen by real processes, which are stopped and killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from packhorse.monitor import local_liveness
from tests.children import PATIENCE, ROOT, until

JOBS = "from packhorse import Packhorse\n\napp = Packhorse()\n"


@pytest.fixture
def here(tmp_path: Path) -> Path:
    (tmp_path / "jobs.py").write_text(JOBS)
    (tmp_path / "temporary").mkdir()
    return tmp_path


def environment(here: Path, **more: str) -> dict[str, str]:
    known = {name: value for name, value in os.environ.items() if not name.startswith("PACKHORSE_")}
    return {**known, "PYTHONPATH": str(ROOT), "TMPDIR": str(here / "temporary"), **more}


@contextmanager
def foreman(here: Path, **more: str) -> Iterator[subprocess.Popen[bytes]]:
    words = [sys.executable, "-m", "packhorse", "work", "jobs.py", "--min", "0"]
    process = subprocess.Popen(words, cwd=here, env=environment(here, **more), stderr=subprocess.DEVNULL)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGCONT)
            process.kill()
        process.wait(PATIENCE)


def check(here: Path, **more: str) -> tuple[int, str]:
    words = [sys.executable, "-m", "packhorse", "check", "--local", "--json"]
    done = subprocess.run(words, cwd=here, env=environment(here, **more), capture_output=True, timeout=60, check=False)
    told: Any = json.loads(done.stdout)
    return done.returncode, told["checks"][0]["sentence"]


def test_a_foreman_is_alive_until_it_is_killed(here: Path):
    assert check(here) == (6, "no foreman of this user runs on this machine or in this container")
    with foreman(here) as process:
        until(lambda: check(here)[0] == 0, "it is alive")
        assert f"process number {process.pid} is alive" in check(here)[1]

        process.kill()
        process.wait(PATIENCE)
        assert check(here)[0] == 6


def test_one_that_ends_in_order_leaves_nothing(here: Path):
    with foreman(here) as process:
        until(lambda: check(here)[0] == 0, "it is alive")
        process.terminate()
        process.wait(PATIENCE)

    assert [path.name for path in (here / "temporary").glob("packhorse-foreman-*")] == []


def test_a_storage_that_is_away_makes_no_foreman_ill_and_is_not_waited_for(here: Path):
    away = {"PACKHORSE_URL": "redis://127.0.0.1:1/0?patience=1h"}
    with foreman(here, **away):
        until(lambda: check(here, **away)[0] == 0, "it is alive")

        assert "the storage has not taken its heartbeat yet" in check(here, **away)[1]


def test_one_that_is_stuck_is_ill(here: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(local_liveness, "_directory", lambda: here)
    sign = local_liveness.StatusFile(limit=15.0)
    sign.begin()
    sign.tick(time.monotonic() - 14, 2.0)
    (found,) = local_liveness.local_foremen()
    assert not found.is_stuck

    sign._next_at = 0.0
    sign.tick(time.monotonic() - 16, 2.0)
    (found,) = local_liveness.local_foremen()
    assert found.is_stuck
    sign.end()
    assert local_liveness.local_foremen() == []
