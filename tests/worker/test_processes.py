"""Parents and children; the tests of the fork server show what happens when one of them exits."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from packhorse.worker import processes

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks at /proc")


def test_a_process_knows_its_children_also_those_that_have_ended() -> None:
    lives, ended = subprocess.Popen(["sleep", "600"]), subprocess.Popen(["true"], stdout=subprocess.PIPE)
    assert ended.stdout is not None
    ended.stdout.read()

    children = processes.own_children()

    lives.kill()
    lives.wait()
    ended.communicate()
    assert {lives.pid, ended.pid} <= children
    assert not {lives.pid, ended.pid} & processes.own_children()


def test_where_the_kernel_has_no_list_of_children_all_processes_are_looked_at(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for pid, parent in ((7, os.getpid()), (8, 1)):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "stat").write_text(f"{pid} (a ) name) S {parent} 7 7")
    (tmp_path / "self").mkdir()
    monkeypatch.setattr(processes, "_PROC", tmp_path)

    assert processes.own_children() == {7}
