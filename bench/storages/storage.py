"""The base of the storages, and how the harness finds the programs of servers."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from abc import ABC, abstractmethod
from contextlib import AbstractContextManager
from pathlib import Path


class Storage(AbstractContextManager["Storage"], ABC):
    """A private storage that runs inside its `with` block."""

    name: str
    settles_after: float = 2.0  # seconds until `operations` is complete and all workers are idle

    @property
    def pid(self) -> int | None:
        """The process of its server, if it has one."""
        return None

    @property
    @abstractmethod
    def version(self) -> str:
        """Product, version and settings, for the page."""

    @abstractmethod
    def fresh(self, folder: Path) -> str:
        """Remove everything and return the URL of an empty storage. `folder` belongs to the trial."""

    def operations(self) -> dict[str, int]:
        """What it has executed since its start, by the names of `bench.figure`; empty if it cannot say."""
        return {}


class NoServer(Exception):
    """The server's program is not installed and cannot be installed; the message says what to do."""


def program(name: str, *, package: str, folders: tuple[Path, ...] = ()) -> str:
    """The path of a server's program. If it is missing and we are root, apt-get installs it."""
    where = os.pathsep.join([os.environ.get("PATH", ""), *map(str, folders)])
    if found := shutil.which(name, path=where):
        return found
    if os.geteuid() == 0 and shutil.which("apt-get"):
        print(f"Installing {package} …", file=sys.stderr)
        words = ["apt-get", "install", "--quiet", "--yes", "--no-install-recommends", package]
        subprocess.run(words, stdout=subprocess.DEVNULL, check=False)
    if found := shutil.which(name, path=where):
        return found
    raise NoServer(f"{name} is not on PATH; install it (Debian, Ubuntu: apt-get install {package})")


def free_port() -> int:
    """A free port of the loopback address."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
    return port
