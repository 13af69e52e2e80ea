"""`packhorse completion`, and the words that a shell gets at the Tab key."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.children import ROOT
from tests.cli.conftest import Call
from tests.cli.yard import WORKER, Yard

SHELLS = ["bash", "zsh", "fish"]


def offered(here: Path, *words: str) -> list[str]:
    """What is offered for the last of these words."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "_PACKHORSE_COMPLETE": "bash_complete",
        "COMP_WORDS": " ".join(["packhorse", *words]),
        "COMP_CWORD": str(len(words)),
    }
    result = subprocess.run(
        [sys.executable, "-m", "packhorse"], cwd=here, env=environment, capture_output=True, text=True, timeout=60
    )
    assert result.stderr == ""
    return [line.partition(",")[2] for line in result.stdout.splitlines() if line]


@pytest.mark.parametrize("shell", SHELLS)
def test_a_script_is_printed(packhorse: Call, shell: str):
    result = packhorse("completion", shell)

    assert result.exit_code == 0
    assert f"_PACKHORSE_COMPLETE={shell}_complete" in result.stdout


@pytest.mark.parametrize("shell", [shell for shell in SHELLS if shutil.which(shell)])
def test_the_shell_understands_its_script(packhorse: Call, shell: str):
    script = packhorse("completion", shell).stdout

    subprocess.run([shell, "-n"], input=script, text=True, check=True)


def test_another_shell_is_refused(packhorse: Call):
    assert packhorse("completion", "cmd").exit_code == 2


def test_commands_and_options_are_offered(here: Path):
    assert offered(here, "sta") == ["status", "stats", "start"]
    assert offered(here, "stats", "--ra") == ["--range"]


def test_what_the_storage_knows_is_offered(yard: Yard):
    yard.join()
    job = yard.add("send_notice", queue="mail")

    assert offered(yard.directory, "pause", "ma") == ["mail"]
    assert offered(yard.directory, "run", "send") == ["send_notice"]
    assert offered(yard.directory, "job", "") == [job.id[-8:]]
    assert WORKER[:8] in offered(yard.directory, "quiet", "")
    assert offered(yard.directory, "jobs", "de") == ["dead"]


def test_without_a_storage_nothing_is_offered_and_none_is_made(here: Path):
    assert offered(here, "pause", "") == []
    assert offered(here, "--url", "redis://127.0.0.1:1/0", "pause", "") == []
    assert list(here.iterdir()) == []
