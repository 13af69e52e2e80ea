"""The demo is a program of several processes: none of them may stay behind, whatever ends it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from packhorse.foreman.process_tree import is_alive
from tests.children import ROOT, until


def _children(pid: int) -> list[int]:
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text("ascii").split()]
    except OSError:  # it has ended
        return []


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="children are found by /proc")
def test_a_demo_that_is_killed_leaves_no_foreman_behind(tmp_path: Path):
    with (tmp_path / "log").open("wb") as log:
        demo = subprocess.Popen(
            [sys.executable, "-m", "packhorse", "demo"],
            cwd=tmp_path,
            stdout=log,
            stderr=log,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )

    def has_workers() -> bool:
        assert demo.poll() is None, (tmp_path / "log").read_text()
        return any(_children(child) for child in _children(demo.pid))

    try:
        until(has_workers, "the foreman has workers")
        (foreman,) = _children(demo.pid)
    finally:
        demo.send_signal(signal.SIGKILL)
        demo.wait()

    until(lambda: not is_alive(foreman), "the foreman has ended")
