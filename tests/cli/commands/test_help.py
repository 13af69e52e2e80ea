"""`packhorse help` and `packhorse version`."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from packhorse import __version__
from packhorse.cli.commands.help import TOPICS
from packhorse.cli.errors import ExitCode
from packhorse.monitor.filters import FILTER_WORDS
from tests.children import ROOT
from tests.cli.conftest import Call
from tests.cli.sample_storage import SampleStorage


def test_help_alone_is_that_of_the_program(packhorse: Call):
    result = packhorse("help")

    assert result.stdout.startswith(packhorse("--help").stdout.rstrip())
    assert all(topic in result.stdout for topic in TOPICS)


def test_help_on_a_command_is_its_own(packhorse: Call):
    assert packhorse("help", "retry").stdout == packhorse("retry", "--help").stdout


@pytest.mark.parametrize("topic", TOPICS)
def test_every_topic_fits_a_narrow_screen(packhorse: Call, topic: str):
    result = packhorse("help", topic)

    assert result.exit_code == 0
    assert max(map(len, result.stdout.splitlines())) <= 80


def test_every_exit_code_and_every_filter_word_is_told(packhorse: Call):
    codes = packhorse("help", "exit-codes").stdout

    assert all(f"{code:>3}  " in codes for code in ExitCode)
    assert all(f"{word}:" in TOPICS["filters"] for word in FILTER_WORDS)


def test_a_topic_that_is_none_brings_the_nearest(packhorse: Call):
    result = packhorse("help", "exit-code")

    assert result.exit_code == 3
    assert "did you mean 'exit-codes'?" in result.stderr


def test_a_topic_that_is_none_is_told_in_json_too(packhorse: Call):
    result = packhorse("help", "exit-code", "--json")

    assert result.exit_code == 3
    assert "there is no help on 'exit-code'" in json.loads(result.stderr)["error"]["message"]
    assert "exit-codes" in json.loads(packhorse("help", "--json").stdout)["topics"]


def test_the_version_is_told_with_what_it_runs_on(packhorse: Call):
    assert packhorse("version").stdout.startswith(f"packhorse {__version__} (python 3.")
    assert json.loads(packhorse("version", "--json").stdout)["packhorse"] == __version__


LOOKING = (
    *("status", "jobs", "jobs dead", "job {id}", "failures", "queues", "workers", "tasks", "stats"),
    *("schedules", "storage", "events", "config", "version"),
)

# What only servers, workers and other storages need, and what the standard library makes one wait for.
NEEDLESS = (
    *("packhorse.web", "packhorse.worker", "packhorse.foreman", "packhorse.chores", "packhorse.testing"),
    *("packhorse.storage.redis", "packhorse.storage.postgres", "packhorse.storage.mysql", "packhorse.storage.memory"),
    *(
        "packhorse.storage.copy_store",
        "packhorse.cli.commands.copy_store",
        "packhorse.cli.commands.work",
        "packhorse.cli.commands.web",
    ),
    *("starlette", "uvicorn", "jinja2", "httpx", "redis", "psycopg", "pymysql", "rich", "cronsim", "playwright"),
    *("asyncio", "concurrent", "multiprocessing", "subprocess", "socket", "ssl", "http", "email", "urllib.request"),
    *("logging", "shutil", "tempfile", "zipfile", "lzma", "bz2", "hashlib", "secrets", "importlib.resources"),
    *("difflib", "pydoc", "unittest", "getpass", "zoneinfo", "tomllib"),
)

CALLS = """
import json, sys
from packhorse.cli.main import cli
loaded = {}
for words in json.loads(sys.argv[1]):
    before = set(sys.modules)
    try:
        cli.main(words.split())
    except SystemExit as end:
        assert not end.code, (words, end.code)
    loaded[words] = sorted(set(sys.modules) - before) if loaded else sorted(sys.modules)
print(json.dumps(loaded), file=sys.stderr)
"""


def loaded_by(sample: SampleStorage, commands: list[str]) -> dict[str, list[str]]:
    """The modules that these commands load, one after the other in one process; those of the first are all."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PACKHORSE_", "COV_"))}
    done = subprocess.run(
        [sys.executable, "-I", "-c", f"import sys; sys.path.insert(0, {str(ROOT)!r})\n{CALLS}", json.dumps(commands)],
        capture_output=True,
        cwd=sample.directory,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    found: dict[str, list[str]] = json.loads(done.stderr.splitlines()[-1])
    return found


def test_commands_that_look_load_nothing_that_they_do_not_need(sample: SampleStorage):
    sample.in_every_state()
    job = sample.job("dead")

    loaded = loaded_by(sample, [words.format(id=job.id) for words in LOOKING])

    needless = {
        words: [name for name in modules if name in NEEDLESS or name.startswith(tuple(f"{one}." for one in NEEDLESS))]
        for words, modules in loaded.items()
    }
    assert {words: modules for words, modules in needless.items() if modules} == {}
    assert len(loaded["status"]) < 290  # 250 when this was written, the interpreter's own among them
