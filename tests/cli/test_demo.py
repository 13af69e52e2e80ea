"""The demo is a program of several processes: none of them may stay behind, whatever ends it."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.children import until


def _children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text("ascii").split()]


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="children are found by /proc")
def test_a_demo_that_is_killed_leaves_no_foreman_behind(tmp_path: Path):
    demo = subprocess.Popen(
        [sys.executable, "-m", "packhorse", "demo"], cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        until(lambda: any(_children(child) for child in _children(demo.pid)), "the foreman has workers", seconds=60)
        (foreman,) = _children(demo.pid)
    finally:
        demo.send_signal(signal.SIGKILL)
        demo.wait()

    until(lambda: not Path(f"/proc/{foreman}").exists(), "the foreman has ended", seconds=60)
