"""PostgreSQL: a private server with its default settings, on a free loopback port, in a temporary folder."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any, Self

from bench.storages.server import Server
from bench.storages.storage import NoServer, free_port, program
from bench.wait import wait_until


class Postgres(Server):
    """Every trial has a database of its own. PostgreSQL refuses to run as root, so root starts it as another user."""

    name = "postgres"
    settles_after = 12.0  # an idle connection reports its last transactions after ten seconds

    def __enter__(self) -> Self:
        server, initdb, self._client = _program("postgres"), _program("initdb"), _program("psql")
        self._user = _user()
        self._port, self._trials = free_port(), 0
        self._folder = Path(tempfile.mkdtemp(prefix="packhorse-bench-postgres-"))
        if self._user:
            shutil.chown(self._folder, self._user)
        data = self._folder / "data"
        self._run([initdb, "--pgdata", data, "--auth", "trust", "--username", "bench", "--encoding", "UTF8"])
        words = [server, "-D", str(data), "-p", str(self._port), "-h", "127.0.0.1", "-k", str(self._folder)]
        with (self._folder / "log").open("wb") as log:
            self._process = subprocess.Popen(words, stdout=log, stderr=log, cwd="/", **self._as_user())
        wait_until(lambda: self._ask("SELECT 1") == "1", 30, "the start of PostgreSQL")
        return self

    @property
    def version(self) -> str:
        return f"PostgreSQL {self._ask('SHOW server_version').split()[0]}, default settings, loopback TCP"

    def fresh(self, folder: Path) -> str:
        self._ask(f"DROP DATABASE IF EXISTS trial_{self._trials} WITH (FORCE)")
        self._trials += 1
        self._ask(f"CREATE DATABASE trial_{self._trials}")
        return f"postgresql://bench@127.0.0.1:{self._port}/trial_{self._trials}"

    def operations(self) -> dict[str, int]:
        """Transactions in the database of the trial."""
        counted = "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = "
        return {"idle_requests": int(self._ask(f"{counted}'trial_{self._trials}'"))}

    def _ask(self, statement: str) -> str:
        words = [self._client, "-h", "127.0.0.1", "-p", str(self._port), "-U", "bench", "-d", "postgres", "-qAtc"]
        return subprocess.run([*words, statement], capture_output=True, text=True, check=False).stdout.strip()

    def _run(self, words: list[str | Path]) -> None:
        done = subprocess.run(words, capture_output=True, text=True, cwd="/", check=False, **self._as_user())
        if done.returncode:
            raise NoServer(f"{words[0]} failed: {done.stderr.strip()}")

    def _as_user(self) -> dict[str, Any]:
        return {"user": self._user, "extra_groups": []} if self._user else {}


def _program(name: str) -> str:
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)  # Debian's directories, newest first
    return program(name, package="postgresql", folders=tuple(folders))


def _user() -> str | None:
    """The user that the server runs as, or None for our own."""
    if os.geteuid() != 0:
        return None
    names = {entry.pw_name for entry in pwd.getpwall()}
    return "postgres" if "postgres" in names else "nobody"
