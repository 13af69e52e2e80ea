"""Real Redis servers for tests: private ones on free ports of this machine, with directories of their own.

`shared_server()` is one for the whole test process, where each test takes a prefix of its own; a test that stops or
kills a server starts its own with `RedisServer`. All are ended by their ids, and also when the test process is killed.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import itertools
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from packhorse.storage.redis.address import Address
from packhorse.storage.redis.connection import Connection, ConnectionLost, ErrorReply
from tests.ports import free_port

_NEEDED = (
    "the tests need a redis-server (or valkey-server) on PATH, at least 6.2.\n"
    "Install it:  Debian, Ubuntu: apt-get install redis-server   Fedora: dnf install valkey\n"
    "             macOS: brew install redis\n"
    "Or leave Redis out on purpose:  PACKHORSE_TEST_STORAGES=memory,sqlite"
)
_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG
_libc = ctypes.CDLL(None) if sys.platform == "linux" else None


def server_program() -> str:
    """The program on PATH; where there is none the test run ends and says what to install."""
    found = shutil.which("redis-server") or shutil.which("valkey-server")
    if found is None:
        raise pytest.UsageError(_NEEDED)
    return found


class RedisServer:
    """One server process. It keeps nothing on disk unless `options` say so."""

    def __init__(self, directory: Path, *options: str, port: int | None = None, words: tuple[str, ...] = ()) -> None:
        self.directory = directory
        self.port = port or free_port()
        self.options = options
        self._words = words  # before the options: a configuration file, for a sentinel
        self._process: subprocess.Popen[bytes] | None = None
        self.password: str | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self, *, wait: bool = True) -> None:
        words = [
            *(server_program(), *self._words, "--port", str(self.port), "--bind", "127.0.0.1"),
            *("--dir", str(self.directory), "--logfile", str(self.directory / f"{self.port}.log")),
            *([] if self._words else ["--save", "", "--appendonly", "no"]),
            *self.options,
        ]
        self._process = subprocess.Popen(words, stdin=subprocess.DEVNULL, preexec_fn=_die_with_parent)
        if wait:
            self._wait_until_it_answers()

    def _wait_until_it_answers(self, seconds: float = 60.0) -> None:
        deadline = time.monotonic() + seconds
        while not self._answers():
            assert self._process is not None
            assert self._process.poll() is None, f"the server ended: {self.log()}"
            assert time.monotonic() < deadline, f"the server does not answer: {self.log()}"
            time.sleep(0.002)

    def _answers(self) -> bool:
        try:
            self.command("PING")
        except ConnectionLost:
            return False
        except ErrorReply as refusal:
            return refusal.code != "LOADING"
        return True

    def command(self, *words: str | bytes | int) -> Any:
        """The reply to one command, on a connection of its own."""
        connection = Connection(("127.0.0.1", self.port), Address.parse(self.url)._replace(password=self.password))
        try:
            return connection.call(*words)
        finally:
            connection.close()

    def info(self, name: str) -> str:
        """One line of what the server says of itself."""
        facts = dict(line.split(":", 1) for line in self.command("INFO").decode().splitlines() if ":" in line)
        return facts[name]

    def log(self) -> str:
        with contextlib.suppress(FileNotFoundError):
            return (self.directory / f"{self.port}.log").read_text("utf-8")[-2000:]
        return "it wrote no log"

    def freeze(self) -> None:
        """It keeps its connections and answers nothing."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """As if the machine had stopped."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def stop(self) -> None:
        """An ordered end."""
        if self._process is not None:
            self._process.terminate()
            self._process.send_signal(signal.SIGCONT)
            self._process.wait(60)
            self._process = None


def _die_with_parent() -> None:
    if _libc is not None:
        _libc.prctl(_DIE_WITH_PARENT, signal.SIGKILL)


@contextlib.contextmanager
def redis_server(directory: Path, *options: str) -> Iterator[RedisServer]:
    """A server for the length of the block."""
    server = RedisServer(directory, *options)
    server.start()
    try:
        yield server
    finally:
        server.kill()


@functools.cache
def shared_server() -> RedisServer:
    """The server of this test process, started when it is first asked for."""
    directory = tempfile.TemporaryDirectory(prefix="packhorse-redis-")
    server = RedisServer(Path(directory.name), "--appendonly", "yes")  # as it should be; else its health complains
    server.start()
    atexit.register(directory.cleanup)
    atexit.register(server.kill)
    return server


_numbers = itertools.count(1)


def fresh_url() -> str:
    """The address of an empty place on the shared server."""
    return f"{shared_server().url}/0?prefix=test-{next(_numbers)}"
