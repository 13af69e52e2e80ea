"""MariaDB: a private server with its default settings, on a free loopback port, in a temporary folder."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any, Self

from bench.storages.server import Server
from bench.storages.storage import NoServer, free_port, program
from bench.wait import wait_until


class MySQL(Server):
    """Every trial has a database of its own. MariaDB refuses to run as root, so root starts it as another user."""

    name = "mysql"
    settles_after = 6.0  # after a job a worker polls often, then less and less often, for this long

    def __enter__(self) -> Self:
        places = (Path("/usr/sbin"), Path("/usr/libexec"), Path("/usr/local/sbin"))
        server, self._client, install = (
            program(name, package="mariadb-server", folders=places)
            for name in ("mariadbd", "mariadb", "mariadb-install-db")
        )
        self._port, self._trials = free_port(), 0
        self._folder = Path(tempfile.mkdtemp(prefix="packhorse-bench-mysql-"))
        as_user = []
        if os.geteuid() == 0:
            shutil.chown(self._folder, "mysql")
            as_user = ["--user=mysql"]
        data = f"--datadir={self._folder / 'data'}"
        self._run([install, "--no-defaults", data, *as_user, "--auth-root-authentication-method=normal"])
        words = [server, "--no-defaults", data, *as_user, f"--port={self._port}", "--bind-address=127.0.0.1"]
        words += [
            f"--socket={self._folder / 'socket'}",
            f"--pid-file={self._folder / 'pid'}",
            f"--tmpdir={self._folder}",
        ]
        with (self._folder / "log").open("wb") as log:
            self._process = subprocess.Popen(words, stdout=log, stderr=log)
        wait_until(lambda: self._ask("SELECT 1") == "1", 60, "the start of MariaDB")
        return self

    @property
    def version(self) -> str:
        return f"MariaDB {self._ask('SELECT version()').partition('-')[0]}, default settings, loopback TCP"

    def fresh(self, folder: Path) -> str:
        self._ask(f"DROP DATABASE IF EXISTS trial_{self._trials}")
        self._trials += 1
        self._ask(f"CREATE DATABASE trial_{self._trials}")
        return f"mysql://root@127.0.0.1:{self._port}/trial_{self._trials}"

    def operations(self) -> dict[str, int]:
        """Statements that the server received."""
        return {"idle_requests": int(self._ask("SHOW GLOBAL STATUS LIKE 'Questions'").split()[1])}

    def _ask(self, statement: str) -> str:
        words = [self._client, "--no-defaults", "-h", "127.0.0.1", "-P", str(self._port), "-u", "root", "-BNe"]
        return subprocess.run([*words, statement], capture_output=True, text=True, check=False).stdout.strip()

    def _run(self, words: list[Any]) -> None:
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        if done.returncode:
            raise NoServer(f"{words[0]} failed: {done.stderr.strip()}")
