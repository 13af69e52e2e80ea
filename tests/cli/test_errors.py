"""Stdin, stdout and stderr that are closed or full: no traceback, and what can be done is done."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import click
import pytest

from packhorse.cli.errors import CommandError, ErrorStyle, ExitCode, masked, report
from packhorse.cli.main import COMMANDS, Entry
from packhorse.core import errors
from tests.children import ROOT
from tests.cli.conftest import Call
from tests.cli.sample_storage import SampleStorage


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.JobNotFound("x"), 3),
        (errors.TaskNotFound("x"), 3),
        (errors.WorkerNotFound("x"), 3),
        (errors.StorageUnavailable("x"), 4),
        (errors.SchemaTooNew("x"), 4),
        (errors.BadURL("x"), 4),
        (errors.MissingDriver("x"), 4),
        (errors.SettingsError(["x"]), 2),
        (errors.BadValue("x"), 2),
        (errors.BadArguments("x"), 2),
        (errors.WrongState("x", "retry", "queued"), 1),
        (errors.NotUnique("x", "k"), 1),
        (errors.JobFailed("x", "resize", "dead", "FAILED", None), 1),
        (errors.WaitTimeout("x", "too long"), 7),
        (CommandError("x", ExitCode.REFUSED), 5),
        (click.UsageError("x"), 2),
        (KeyboardInterrupt(), 130),
        (click.Abort(), 130),
    ],
)
def test_each_error_has_its_exit_code(error: BaseException, code: int):
    assert report(error, ErrorStyle()) == code


def test_an_error_says_what_why_from_where_and_what_to_try(capsys: pytest.CaptureFixture[str]):
    error = errors.StorageUnavailable("cannot reach it", why="refused\nreally", hint="start it")

    report(error, ErrorStyle(storage_source="PACKHORSE_URL in the environment"))

    assert capsys.readouterr().err.splitlines() == [
        "error: cannot reach it",
        "  why:  refused",
        "        really",
        "  from: PACKHORSE_URL in the environment",
        "  try:  start it",
    ]


def test_with_json_an_error_is_an_object(capsys: pytest.CaptureFixture[str]):
    report(errors.StorageUnavailable("gone", hint="wait"), ErrorStyle(as_json=True))

    told = json.loads(capsys.readouterr().err)
    assert told == {"error": {"code": "storage_unavailable", "message": "gone", "hint": "wait"}}


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("redis://ann:hunter2@cache:6379/0", "redis://ann:***@cache:6379/0"),
        ("cannot open 'postgresql://ann:hunter2@db/x' now", "cannot open 'postgresql://ann:***@db/x' now"),
        ("mysql://db/x?password=hunter2 is wrong", "mysql://db/x?password=*** is wrong"),
        ("http//ann:hunter2@h", "http//ann:***@h"),
        ("write name:TOKEN@host", "write name:TOKEN@host"),
        ("at 10:30, mail ann@example.org", "at 10:30, mail ann@example.org"),
        ("redis://cache:6379/0", "redis://cache:6379/0"),
    ],
)
def test_passwords_are_masked(text: str, shown: str):
    assert masked(text) == shown


def test_errors_carry_no_control_characters(capsys: pytest.CaptureFixture[str]):
    report(errors.BadValue("\x1b[2Jgone"), ErrorStyle())

    assert "\x1b" not in capsys.readouterr().err


def test_nonsense_in_json_mode_is_told_in_json(sample: SampleStorage, packhorse: Call):
    for words in (["jobs", "--nonsense"], ["nonsense"], ["jobs", "foo:bar"], ["job", "deadbeef"]):
        result = packhorse(*words, "--json")

        assert result.stdout == ""
        assert json.loads(result.stderr)["error"]["message"]


def test_settings_that_are_wrong_are_all_named(here: Path, packhorse: Call, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PACKHORSE_LEASE", "soon")
    monkeypatch.setenv("PACKHORSE_MAX_ATTEMPTS", "many")

    result = packhorse("jobs")

    assert result.exit_code == 2
    assert "PACKHORSE_LEASE" in result.stderr
    assert "PACKHORSE_MAX_ATTEMPTS" in result.stderr


def test_a_bug_is_told_as_one_and_its_traceback_is_kept(
    sample: SampleStorage, packhorse: Call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    sample.add()
    monkeypatch.setattr("packhorse.cli.commands.jobs.search", lambda *_: 1 / 0)

    result = packhorse("jobs")

    (saved,) = tmp_path.glob("packhorse-error-*.txt")
    assert result.exit_code == 1
    assert "bug in Packhorse: ZeroDivisionError" in result.stderr
    assert "Traceback" not in result.stderr
    assert str(saved) in result.stderr
    assert "Traceback" in saved.read_text()


def test_the_table_of_commands_is_the_only_place_to_add_one(packhorse: Call, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(COMMANDS, "again", Entry("Steer", "actions:retry", "once more"))

    assert packhorse("again", "--help").exit_code == 0
    assert "once more" in packhorse("--help").stdout


def in_shell(sample: SampleStorage, line: str) -> subprocess.CompletedProcess[str]:
    """A line of the shell, in which `packhorse` is the program."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    return subprocess.run(
        ["sh", "-c", f'packhorse() {{ "{sys.executable}" -m packhorse "$@"; }}; {line}'],
        cwd=sample.directory,
        env={**environment, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )


def test_closed_streams_are_no_error_and_nothing_else_takes_their_place(sample: SampleStorage):
    job = sample.add()

    done = in_shell(sample, "packhorse enqueue resize --force <&- >&- 2>&- && packhorse jobs --ids 2>&-")

    assert (done.returncode, done.stderr) == (0, "")
    assert len(done.stdout.splitlines()) == 2
    assert job.id in done.stdout


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has a device that is always full")
def test_a_full_disk_is_told_in_words(sample: SampleStorage):
    sample.add()

    done = in_shell(sample, "packhorse jobs > /dev/full")

    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: cannot print the output\n  why:  No space left on device\n")
    assert "Exception ignored" not in done.stderr
