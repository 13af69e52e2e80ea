"""Commands that look answer at once, because they load little. What is loaded is counted here, not the time it takes,
which says as much about the machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from tests.children import ROOT
from tests.cli.yard import Yard

LOOKING = (
    *("status", "jobs", "jobs dead", "job {id}", "failures", "queues", "workers", "tasks", "stats"),
    *("schedules", "storage", "events", "config", "version"),
)

# What only servers, workers and other storages need, and what the standard library makes one wait for.
NEEDLESS = (
    *("packhorse.web", "packhorse.worker", "packhorse.foreman", "packhorse.chores", "packhorse.testing"),
    *("packhorse.storage.redis", "packhorse.storage.postgres", "packhorse.storage.mysql", "packhorse.storage.memory"),
    *("packhorse.storage.copy_store", "packhorse.cli.watching", "packhorse.cli.working", "packhorse.cli.serving"),
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


def loaded_by(yard: Yard, commands: list[str]) -> dict[str, list[str]]:
    """The modules that these commands load, one after the other in one process; those of the first are all."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PACKHORSE_", "COV_"))}
    done = subprocess.run(
        [sys.executable, "-I", "-c", f"import sys; sys.path.insert(0, {str(ROOT)!r})\n{CALLS}", json.dumps(commands)],
        capture_output=True,
        cwd=yard.directory,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    found: dict[str, list[str]] = json.loads(done.stderr.splitlines()[-1])
    return found


def test_commands_that_look_load_nothing_that_they_do_not_need(yard: Yard):
    yard.in_every_state()
    job = yard.job("dead")

    loaded = loaded_by(yard, [words.format(id=job.id) for words in LOOKING])

    needless = {
        words: [name for name in modules if name in NEEDLESS or name.startswith(tuple(f"{one}." for one in NEEDLESS))]
        for words, modules in loaded.items()
    }
    assert {words: modules for words, modules in needless.items() if modules} == {}
    assert len(loaded["status"]) < 290  # 250 when this was written, the interpreter's own among them
