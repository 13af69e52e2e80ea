"""`packhorse completion`, and the words that a shell gets at the Tab key."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from click.shell_completion import BashComplete

from packhorse.cli import completion
from packhorse.cli.context import CommandContext
from packhorse.cli.main import cli
from packhorse.storage.records import ScheduleInfo
from tests.children import ROOT
from tests.cli.conftest import Call
from tests.cli.sample_storage import WORKER, SampleStorage
from tests.cli.terminal import Terminal

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
    assert "Choose from: bash, zsh, fish\n" in packhorse("completion").stderr


def test_commands_and_options_are_offered(here: Path):
    assert offered(here, "stat") == ["status", "stats"]
    assert offered(here, "stats", "--ra") == ["--range"]


@pytest.fixture
def offered_here(sample: SampleStorage, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """The same in this process, with all the time that a slow machine may need."""
    monkeypatch.setattr(completion, "_TIMEOUT", 60)

    def offer(*words: str) -> list[str]:
        context = CommandContext()
        try:
            completer = BashComplete(cli, {"obj": context}, "packhorse", "_PACKHORSE_COMPLETE")
            return [item.value for item in completer.get_completions(list(words[:-1]), words[-1])]
        finally:
            context.close()

    return offer


def test_what_the_storage_knows_is_offered(sample: SampleStorage, offered_here: Callable[..., list[str]]):
    sample.join()
    sample.storage.put_schedules([ScheduleInfo("nightly", "report", "0 3 * * *")])
    job = sample.add("send_notice", queue="mail")

    assert offered_here("pause", "ma") == ["mail"]
    assert offered_here("run", "send") == ["send_notice"]
    assert offered_here("job", "") == [job.id[-8:]]
    assert offered_here("schedule", "run", "n") == ["nightly"]
    assert WORKER[:8] in offered_here("quiet", "")
    assert offered_here("jobs", "de") == ["dead"]
    assert offered_here("config", "lea") == ["lease"]


def test_a_filter_is_offered_names_and_what_fits_behind_their_colon(
    sample: SampleStorage, offered_here: Callable[..., list[str]]
):
    sample.join()
    sample.add("send_notice", queue="mail")
    sample.add("resize")

    assert offered_here("jobs", "st") == ["state:"]
    assert offered_here("jobs", "queue:ma") == ["queue:mail"]
    assert offered_here("jobs", "queue:mail,re") == ["queue:mail,resize"]
    assert offered_here("jobs", "task:se") == ["task:send_notice"]
    assert offered_here("jobs", "state:dead,ab") == ["state:dead,aborted"]
    assert offered_here("jobs", "order:t") == ["order:took"]
    assert offered_here("jobs", "error:x") == []
    assert offered_here("jobs", "queue", ":") == ["mail", "resize"]  # as bash breaks words
    assert offered_here("jobs", "queue", ":", "ma") == ["mail"]
    assert offered_here("jobs", "queue", ":", "mail,re") == ["mail,resize"]


class TypedInBash:
    """What becomes of a line at the Tab key of a real bash on a real terminal; the program is on its path."""

    def __init__(self, sample: SampleStorage, monkeypatch: pytest.MonkeyPatch) -> None:
        program = sample.directory / "packhorse"
        # A slow machine may need longer than people would wait at the Tab key.
        program.write_text(
            f"#!{sys.executable}\nimport sys\nsys.path.insert(0, {str(ROOT)!r})\n"
            "from packhorse.cli import completion, main\ncompletion._TIMEOUT = 60\nmain.cli()\n"
        )
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{sample.directory}{os.pathsep}{os.environ['PATH']}")
        monkeypatch.setenv("PS1", "")
        monkeypatch.setenv("INPUTRC", os.devnull)
        self._terminal = Terminal(sample, program=("bash", "--norc", "--noprofile", "-i"))

    def __enter__(self) -> TypedInBash:
        self._terminal.write(b'PS1=; eval "$(packhorse completion bash)"; echo rea""dy\n')
        self._terminal.read_until("ready")
        return self

    def __exit__(self, *about: object) -> None:
        self._terminal.__exit__(None, None, None)

    def line_of(self, keys: str) -> str:
        """The line that these keys make, from what is behind `packhorse` on; told by a command that prints it."""
        times = self._terminal.seen.count(">end")
        self._terminal.write(f"{keys}x\x01echo '<beg''in' \"\x05\" '>e''nd'\n".encode())
        self._terminal.read_until(">end", times + 1)
        return self._terminal.seen.rpartition("<begin ")[2].partition(" >end")[0].removesuffix("x")


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_bash_completes_words_with_colons(sample: SampleStorage, monkeypatch: pytest.MonkeyPatch):
    sample.join()
    sample.add("send_notice", queue="mail")
    sample.storage.put_schedules([ScheduleInfo("nightly", "report", "0 3 * * *")])

    with TypedInBash(sample, monkeypatch) as bash:
        assert bash.line_of("packhorse jobs st\t") == "packhorse jobs state: "
        assert bash.line_of("packhorse jobs queue:ma\t") == "packhorse jobs queue:mail "
        assert bash.line_of("packhorse jobs schedule:\t") == "packhorse jobs schedule:nightly "
        assert bash.line_of("packhorse jobs 'queue:ma\t") == "packhorse jobs 'queue:mail' "


def test_a_storage_that_takes_its_time_is_not_waited_for(
    sample: SampleStorage, offered_here: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch
):
    answers = threading.Event()
    monkeypatch.setattr(completion, "_TIMEOUT", 0.01)
    monkeypatch.setattr(type(sample.storage), "queues", lambda self: answers.wait(60) and [])

    assert offered_here("pause", "") == []
    answers.set()


def test_without_a_storage_nothing_is_offered_and_none_is_made(here: Path):
    assert offered(here, "pause", "") == []
    assert offered(here, "--url", "redis://127.0.0.1:1/0", "pause", "") == []
    assert list(here.iterdir()) == []
