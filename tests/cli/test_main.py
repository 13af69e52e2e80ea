from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import click
import pytest

from packhorse import __version__
from packhorse.cli.main import COMMANDS, cli
from packhorse.cli.options import Command, CommonOption
from packhorse.conformance.builders import cases
from packhorse.core.job import NewJob
from packhorse.monitor.serializers import (
    EventFields,
    FailureFields,
    HealthFields,
    JobFields,
    QueueFields,
    ShownSchedule,
    TaskFields,
    WorkerFields,
)
from packhorse.storage.records import ScheduleInfo
from tests.children import ROOT
from tests.cli.conftest import Call
from tests.cli.sample_storage import SampleStorage


def command(name: str) -> Command:
    found = cli.get_command(click.Context(cli), name)
    assert isinstance(found, Command)
    return found


def program(*words: str, cwd: Path, **options: object) -> subprocess.CompletedProcess[str]:
    """The program in a process of its own; what it prints goes into pipes."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PACKHORSE_")}
    environment = {**clean, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        [sys.executable, "-m", "packhorse", *words],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        **options,  # type: ignore[call-overload]
    )


# --- the table --------------------------------------------------------------------------------------------------------


@cases("name", COMMANDS)
def test_every_command_is_where_the_table_says(name: str):
    assert command(name).name == name


@cases("name", COMMANDS)
def test_every_command_has_help_with_two_examples(packhorse: Call, name: str):
    result = packhorse(name, "--help")

    examples = result.stdout.partition("Examples:\n")[2].strip().splitlines()
    assert result.exit_code == 0
    assert len(examples) >= 2
    assert all(f"packhorse {name}" in example for example in examples)
    assert all(len(line) <= 80 for line in result.stdout.splitlines())


@cases("name", COMMANDS)
def test_every_option_says_what_it_is_for(name: str):
    options = [param for param in command(name).params if isinstance(param, click.Option)]

    assert [option.name for option in options if not option.help] == []


@cases("name", COMMANDS)
def test_every_command_has_the_common_options(name: str):
    common = {option.opts[-1] for option in command(name).params if isinstance(option, CommonOption)}

    assert common == {"--url", "--json", "--fields", "--utc", "--color", "--no-pager", "--quiet", "--verbose"}


def test_fields_are_picked_in_their_order(sample: SampleStorage, packhorse: Call):
    sample.job("dead")

    assert packhorse("jobs", "--fields", "state,task").stdout == '{"state":"dead","task":"resize"}\n'
    assert packhorse("queues", "--fields", "name").stdout == '{"name":"for-dead"}\n{"name":"mail"}\n{"name":"resize"}\n'
    wrong = packhorse("jobs", "--fields", "sate")
    assert (wrong.exit_code, "did you mean 'state'?" in wrong.stderr) == (2, True)
    for nothing in ("", " , "):  # as from an empty variable of a script, which wants no table
        empty = packhorse("jobs", "--fields", nothing)
        assert (empty.exit_code, empty.stdout, "--fields names no field" in empty.stderr) == (2, "", True)


# What the API says of each thing: --json of the command line says the same.
SAID = {
    "jobs": JobFields,
    "queues": QueueFields,
    "workers": WorkerFields,
    "events": EventFields,
    "failures": FailureFields,
    "tasks": TaskFields,
    "schedules": ShownSchedule,
    "storage": HealthFields,
}


@pytest.mark.parametrize("name", SAID)
def test_json_has_the_fields_of_the_api(sample: SampleStorage, packhorse: Call, name: str):
    sample.in_every_state()
    sample.storage.put_schedules([ScheduleInfo("nightly", "report", "0 3 * * *", next_at=sample.storage.now())])

    lines = packhorse(name, "--json").stdout.splitlines()

    assert lines
    for line in lines:
        # The object of an event is there if it is asked for.
        assert set(json.loads(line)) >= set(SAID[name].__struct_fields__) - {"object"}


def test_help_lists_every_command_and_the_exit_codes(packhorse: Call):
    result = packhorse("--help")

    assert result.exit_code == 0
    assert all(f"  {name} " in result.stdout and entry.purpose in result.stdout for name, entry in COMMANDS.items())
    assert "Exit codes" in result.stdout
    assert all(len(line) <= 80 for line in result.stdout.splitlines())


@pytest.mark.parametrize("words", [("-h",), ("jobs", "-h")])
def test_h_is_help(packhorse: Call, words: tuple[str, ...]):
    assert packhorse(*words).stdout.startswith("Usage: packhorse")


def test_the_version_is_told(packhorse: Call):
    assert packhorse("--version").stdout == f"packhorse {__version__}\n"


# --- no command, and none that exists ---------------------------------------------------------------------------------


def test_alone_it_shows_where_to_begin(here: Path, packhorse: Call):
    result = packhorse()

    assert result.exit_code == 0
    assert len(result.stdout.splitlines()) <= 13
    assert result.stdout.count("  packhorse ") == 5
    assert all(len(line) <= 80 for line in result.stdout.splitlines())
    assert "there is no packhorse.db here yet" in result.stdout
    assert list(here.iterdir()) == []


def test_alone_it_tells_how_the_storage_stands(sample: SampleStorage, packhorse: Call):
    sample.in_every_state()

    result = packhorse()

    assert "packhorse.db: 3 waiting, 2 running, 1 completed, 1 dead, 1 aborted" in result.stdout
    assert "1 worker is running" in result.stdout


def test_alone_it_does_not_fail_over_a_bad_storage(here: Path, packhorse: Call):
    (here / "packhorse.db").write_text("this is no database, and it is long enough to be none" * 20)

    result = packhorse()

    assert result.exit_code == 0
    assert "not a SQLite database" in result.stdout


@pytest.mark.parametrize(
    ("word", "near"),
    [
        ("jbos", "jobs"),
        ("jobz", "jobs"),
        ("enque", "enqueue"),
        ("cancel", "abort"),
        ("requeue", "retry"),
        ("ls", "jobs"),
        ("audit", "events"),
        ("silence", "failure silence"),
        ("unsilence", "failure unsilence"),
    ],
)
def test_an_unknown_word_brings_the_nearest_command(packhorse: Call, word: str, near: str):
    result = packhorse(word)

    assert result.exit_code == 2
    assert f"there is no command {word!r}; did you mean {near!r}?" in result.stderr


@pytest.mark.parametrize("name", ["jobs", "events", "failures"])
def test_what_others_call_limit_is_n(sample: SampleStorage, packhorse: Call, name: str):
    result = packhorse(name, "--limit", "3")

    assert result.exit_code == 2
    assert "there is no option --limit; did you mean -n?" in result.stderr


def test_a_word_like_no_other_is_refused_plainly(packhorse: Call):
    result = packhorse("xyzzy", "--json")

    assert result.exit_code == 2
    assert "there is no command 'xyzzy'" in result.stderr


@pytest.mark.parametrize(
    "words", [("jobs", "--limt"), ("jobs", "-n", "many"), ("job",), ("--nonsense",), ("jobs", "-n", "-1")]
)
def test_bad_usage_ends_with_2_and_no_traceback(sample: SampleStorage, packhorse: Call, words: tuple[str, ...]):
    sample.add()

    result = packhorse(*words)

    assert result.exit_code == 2
    assert result.stderr.startswith("error: ")
    assert "Traceback" not in result.stderr


# --- processes --------------------------------------------------------------------------------------------------------


def test_it_runs_as_a_module_and_pipes_get_whole_plain_text(sample: SampleStorage):
    job = sample.job("dead")

    result = program("jobs", cwd=sample.directory)

    assert result.returncode == 0
    assert "\x1b" not in result.stdout
    assert job.id in result.stdout
    assert "Z" in result.stdout


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("jobs",), 0),
        (("nonsense",), 2),
        (("job", "deadbeef"), 3),
        (("jobs", "--url", "sqlite:///no.db"), 4),
        (("check",), 6),
    ],
)
def test_the_process_ends_with_the_exit_code(sample: SampleStorage, words: tuple[str, ...], code: int):
    sample.add()

    assert program(*words, cwd=sample.directory).returncode == code


def test_a_reader_that_goes_away_is_no_error(sample: SampleStorage):
    long = '{"text": "' + "x" * 200 + '"}'
    sample.storage.enqueue([NewJob(f"job-{number:04}", "resize", "resize", long) for number in range(1_000)])
    command_line = f"{sys.executable} -m packhorse jobs --json; echo ended $? >&2"

    result = subprocess.run(
        ["sh", "-c", f"({command_line}) | head -c 100"],
        cwd=sample.directory,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )

    assert len(result.stdout) == 100
    assert result.stderr == "ended 0\n"


@pytest.mark.parametrize(
    "name",
    [
        *("jobs", "queues", "workers", "events", "check", "job", "status", "top", "failures", "tasks", "stats"),
        *("schedules", "storage", "config", "version", "help"),
    ],
)
def test_looking_imports_no_code_of_the_users_and_nothing_it_does_not_need(sample: SampleStorage, name: str):
    job = sample.add()
    sample.join()
    (sample.directory / "jobs.py").write_text("import packhorse\nraise RuntimeError('imported')\n")
    script = (
        "import sys; sys.argv = ['packhorse', *sys.argv[1:]]\n"
        "from packhorse.cli.main import main\n"
        "try: main()\n"
        "except SystemExit as end: assert not end.code, end.code\n"
        "print(*sys.modules, file=sys.stderr)\n"
    )

    result = subprocess.run(
        [sys.executable, "-c", script, name, *([job.id] if name == "job" else [])],
        cwd=sample.directory,
        # Nobody falls silent before the program has started, however slow the machine.
        env={**os.environ, "PYTHONPATH": str(ROOT), "PACKHORSE_LEASE": "1h"},
        capture_output=True,
        text=True,
        check=True,
    )

    imported = result.stderr.split()
    assert "imported" not in result.stderr
    unwanted = {"jobs", "starlette", "uvicorn", "jinja2", "asyncio", "packhorse.worker", "packhorse.foreman"}
    assert unwanted.isdisjoint(imported)
    assert {"packhorse.cli.commands.enqueue", "packhorse.cli.commands.actions", "click.shell_completion"}.isdisjoint(
        imported
    )


def test_the_entry_point_is_the_function_that_pyproject_names():
    place = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]["packhorse"]
    module, _, function = place.partition(":")

    assert callable(getattr(importlib.import_module(module), function))


def test_an_option_without_its_value_leads_to_the_help_of_its_command(packhorse: Call):
    result = packhorse("jobs", "--queue")

    assert result.exit_code == 2
    assert "packhorse jobs --help" in result.stderr


def test_an_option_that_is_like_none_brings_no_other_one(packhorse: Call):
    assert "error: no such option '--foo'\n" in packhorse("queues", "--foo").stderr
    assert "'--colour'; did you mean --color?\n" in packhorse("queues", "--colour").stderr
