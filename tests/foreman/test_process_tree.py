from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from packhorse.foreman.process_tree import MemoryWatch, is_alive, kill_session, reap, why_it_ended
from tests.children import until

WITH_A_CHILD = """
import subprocess, time
print(subprocess.Popen(["sleep", "60"], process_group=0).pid, flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize(
    ("code", "memory", "told"),
    [
        (1, None, "worker 7 exited with code 1"),
        (-signal.SIGSEGV, "out of memory", "worker 7 was killed by SIGSEGV"),
        (-signal.SIGKILL, None, "worker 7 was killed by SIGKILL"),
        (-signal.SIGKILL, "out of memory", "worker 7 was killed by SIGKILL (out of memory)"),
        (-40, None, "worker 7 was killed by signal 40"),
    ],
)
def test_an_exit_is_explained(code: int, memory: str | None, told: str) -> None:
    assert why_it_ended(7, code, memory) == told


def events(path: Path, kills: int) -> Path:
    path.write_text(f"low 0\nhigh 0\noom 4\noom_kill {kills}\n")
    return path


def test_a_rise_of_the_kernels_count_speaks_for_a_lack_of_memory(tmp_path: Path) -> None:
    path = events(tmp_path / "memory.events", 2)
    watch = MemoryWatch([(path, "out of memory")])
    watch.read()
    assert watch.reason() is None

    events(path, 3)

    assert watch.reason() == "out of memory"


def test_the_count_may_rise_a_moment_before_the_worker_is_seen_to_be_gone(tmp_path: Path) -> None:
    path = events(tmp_path / "memory.events", 2)
    watch = MemoryWatch([(path, "out of memory")])

    events(path, 3)
    watch.read()

    assert watch.reason() == "out of memory"


def test_a_rise_of_long_ago_says_nothing(tmp_path: Path) -> None:
    path = events(tmp_path / "memory.events", 2)
    watch = MemoryWatch([(path, "out of memory")])

    events(path, 3)
    for _ in range(3):
        watch.read()

    assert watch.reason() is None


def test_the_first_file_that_has_the_count_is_used(tmp_path: Path) -> None:
    path = events(tmp_path / "vmstat", 0)
    watch = MemoryWatch([(tmp_path / "missing", "out of memory"), (path, "out of memory?")])

    events(path, 1)

    assert watch.reason() == "out of memory?"


def test_without_a_counter_nothing_is_explained(tmp_path: Path) -> None:
    watch = MemoryWatch([(tmp_path / "missing", "out of memory")])

    watch.read()

    assert watch.reason() is None


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
def test_a_session_is_killed_with_all_groups_in_it() -> None:
    leader = subprocess.Popen(
        [sys.executable, "-c", WITH_A_CHILD], stdout=subprocess.PIPE, start_new_session=True, text=True
    )
    assert leader.stdout is not None
    child = int(leader.stdout.readline())

    others = kill_session(leader.pid)

    assert child in others
    assert leader.wait() == -signal.SIGKILL
    until(lambda: not is_alive(child), "the child is gone")
    leader.stdout.close()


def test_the_remains_of_a_process_are_not_alive() -> None:
    pid = os.posix_spawn("/bin/true", ["true"], {})

    until(lambda: not is_alive(pid), "it has ended, and is not reaped")

    assert reap({pid}) == set()
    assert reap({pid}) == set()  # not ours any more


def test_a_foreign_process_is_not_waited_for() -> None:
    assert reap({1}) == set()
