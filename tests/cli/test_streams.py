"""Stdin, stdout and stderr that are closed or full: no traceback, and what can be done is done."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.children import ROOT
from tests.cli.yard import Yard


def in_shell(yard: Yard, line: str) -> subprocess.CompletedProcess[str]:
    """A line of the shell, in which `packhorse` is the program."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    return subprocess.run(
        ["sh", "-c", f'packhorse() {{ "{sys.executable}" -m packhorse "$@"; }}; {line}'],
        cwd=yard.directory,
        env={**environment, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )


def test_closed_streams_are_no_error_and_nothing_else_takes_their_place(yard: Yard):
    job = yard.add()

    done = in_shell(yard, "packhorse enqueue resize --force <&- >&- 2>&- && packhorse jobs --ids 2>&-")

    assert (done.returncode, done.stderr) == (0, "")
    assert len(done.stdout.splitlines()) == 2
    assert job.id in done.stdout


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has a device that is always full")
def test_a_full_disk_is_told_in_words(yard: Yard):
    yard.add()

    done = in_shell(yard, "packhorse jobs > /dev/full")

    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: what was asked for cannot be printed\n  why:  No space left on device\n")
    assert "Exception ignored" not in done.stderr
