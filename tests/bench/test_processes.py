from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench import processes

VARIABLE = "PACKHORSE_TEST_PROCESSES"
PROGRAM = """
import subprocess
subprocess.Popen(["sh", "-c", "echo $$; read line < never"], start_new_session=True).wait()
"""


@pytest.fixture
def parent(tmp_path: Path):
    """A process with a child that has left its session; both carry the mark."""
    os.mkfifo(tmp_path / "never")  # into which nobody writes, so that the child stays
    words, around = [sys.executable, "-c", PROGRAM], {**os.environ, VARIABLE: str(tmp_path)}
    with subprocess.Popen(words, cwd=tmp_path, env=around, stdout=subprocess.PIPE, text=True) as process:
        yield process
        processes.kill(processes.members(VARIABLE, tmp_path))


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_all_processes_of_a_trial_are_found_by_the_mark_in_their_environment(
    parent: subprocess.Popen[str], tmp_path: Path
):
    assert parent.stdout is not None
    child = int(parent.stdout.readline())

    assert processes.members(VARIABLE, tmp_path) == [parent.pid, child]
    assert processes.members(VARIABLE, tmp_path / "another") == []


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_child_is_found_when_its_parent_is_dead(parent: subprocess.Popen[str], tmp_path: Path):
    assert parent.stdout is not None
    child = int(parent.stdout.readline())

    processes.kill([parent.pid])
    parent.wait()

    assert processes.members(VARIABLE, tmp_path) == [child]


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_cost_of_processes_is_their_sum(parent: subprocess.Popen[str], tmp_path: Path):
    assert parent.stdout is not None
    parent.stdout.readline()
    both = processes.members(VARIABLE, tmp_path)

    cost = processes.cost(both)

    assert cost.processes == 2
    assert cost.memory_mb > processes.cost(both[1:]).memory_mb > 0
    assert cost.largest_mb == pytest.approx(processes.cost(both[:1]).largest_mb, rel=0.05)  # it may still be settling
    assert processes.cost([]) == processes.Cost(0, 0, 0, 0)
