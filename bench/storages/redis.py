"""Redis or Valkey: a private server on a free loopback port, without persistence, in a temporary folder."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Self

from bench.storages.server import Server
from bench.storages.storage import free_port, program
from bench.wait import wait_until

_READS_TO_ASK = 2  # the command, and the end of the connection


class Redis(Server):
    """Talks to its server through `redis-cli`, so that the harness needs no driver."""

    name = "redis"

    def __enter__(self) -> Self:
        server, self._client = _programs()
        self._folder = Path(tempfile.mkdtemp(prefix="packhorse-bench-redis-"))
        self._port = free_port()
        self._asked = 0
        words = [server, "--port", str(self._port), "--bind", "127.0.0.1", "--dir", str(self._folder)]
        words += ["--save", "", "--appendonly", "no"]
        self._process = subprocess.Popen(words, stdout=subprocess.DEVNULL)
        wait_until(lambda: self._ask("PING") == "PONG", 10, "the start of Redis")
        return self

    @property
    def version(self) -> str:
        info = self._info("server")
        name = "Valkey" if "valkey_version" in info else "Redis"
        return f"{name} {info.get('valkey_version', info['redis_version'])}, no persistence, loopback TCP"

    def fresh(self, folder: Path) -> str:
        self._ask("FLUSHALL")
        return f"redis://127.0.0.1:{self._port}/0"

    def operations(self) -> dict[str, int]:
        """Requests from clients, and commands including those inside scripts, without the ones of this method."""
        self._asked += 1
        info = self._info("stats")
        return {
            "idle_requests": int(info["total_reads_processed"]) - _READS_TO_ASK * self._asked,
            "idle_commands": int(info["total_commands_processed"]) - self._asked,
        }

    def _info(self, section: str) -> dict[str, str]:
        lines = self._ask("INFO", section).splitlines()
        return dict(line.split(":", 1) for line in lines if ":" in line)

    def _ask(self, *words: str) -> str:
        asked = [self._client, "-p", str(self._port), *words]
        return subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()


def _programs() -> tuple[str, str]:
    """The server and its client."""
    if not shutil.which("redis-server") and (server := shutil.which("valkey-server")):
        return server, program("valkey-cli", package="valkey-tools")
    return program("redis-server", package="redis-server"), program("redis-cli", package="redis-tools")
