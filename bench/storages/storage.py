"""What the harness asks of a storage, and how it finds the programs of servers."""

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
    """A storage of our own, running between entering and leaving."""

    name: str
    tells_after: float = 2.0  # seconds after which `operations` counts everything, and nobody is awake from a job

    @property
    def pid(self) -> int | None:
        """The process of its server; None: there is none."""
        return None

    @property
    @abstractmethod
    def version(self) -> str:
        """What runs, and how it is set, for the page."""

    @abstractmethod
    def fresh(self, folder: Path) -> str:
        """The address of an empty storage; whatever was there before is gone. `folder` is the trial's."""

    def operations(self) -> dict[str, int]:
        """What it has carried out since it was started, as far as it can tell, by the names of `bench.figure`."""
        return {}


class NoServer(Exception):
    """The server's program is not here and cannot be installed; the message says what to do."""


def program(name: str, *, package: str, folders: tuple[Path, ...] = ()) -> str:
    """The path of a server's program; installed by apt-get when it is missing and we may."""
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
    """A port of the loopback address that nobody listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
    return port
