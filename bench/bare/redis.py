"""The limit on Redis: one script enqueues, one completes a batch and takes the next, over a plain socket.

They write the keys of docs/decisions/0007-redis-keys.md for the jobs of one task.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

import hiredis
import msgspec

from bench.bare import ARGS, OWNER, RESULT, TASK
from packhorse.core.ids import new_id

_packed: Callable[[tuple[object, ...]], bytes] = cast(Any, hiredis.pack_command)  # its type hints allow a single word

_PREFIX = "{packhorse}:"
_NOTHING = (None,) * 9  # parts of a body that a plain job lacks


class BareRedis:
    """One connection that waits for each answer."""

    def __init__(self, url: str) -> None:
        self._connection = _Connection(url)
        self._enqueue, self._exchange = self._load("enqueue"), self._load("finish_and_reserve")
        self._connection.call("HSETNX", f"{_PREFIX}tasks", TASK, f'["{TASK}",{{}},null]')  # known from the first job on
        self._connection.call("HSETNX", f"{_PREFIX}queues", TASK, "")

    def enqueue(self, number: int, batch: int) -> None:
        for _ in range(number // batch):
            words: list[str | bytes] = []
            for _ in range(batch):
                words += (new_id(), msgspec.msgpack.encode((TASK, TASK, ARGS, 4, 3, *_NOTHING)))
            self._connection.call("EVALSHA", self._enqueue, 1, _PREFIX, TASK, *words)

    def drain(self, batch: int) -> int:
        done: list[bytes] = []
        finished = 0
        while True:
            taken = self._connection.call("EVALSHA", self._exchange, 1, _PREFIX, TASK, OWNER, batch, RESULT, *done)
            finished += len(done)
            done = taken[::2]
            if not done:
                return finished

    def scripts_called(self) -> int:
        """How often the server has run a script."""
        stats = self._connection.call("INFO", "commandstats").decode()
        found = re.search(r"cmdstat_evalsha:calls=(\d+)", stats)
        return int(found[1]) if found else 0

    def close(self) -> None:
        self._connection.close()

    def _load(self, name: str) -> bytes:
        """Load a script into the server; return its SHA1."""
        text = Path(__file__).with_name(f"{name}.lua").read_text("utf-8")
        sha: bytes = self._connection.call("SCRIPT", "LOAD", text)
        return sha


class _Connection:
    """Commands and replies, nothing else."""

    def __init__(self, url: str) -> None:
        address = urlsplit(url)
        self._socket = socket.create_connection((address.hostname, address.port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._reader = hiredis.Reader()

    def call(self, *words: object) -> Any:
        self._socket.sendall(_packed(words))
        while (reply := self._reader.gets()) is False:
            self._reader.feed(self._socket.recv(65_536))
        if isinstance(reply, Exception):
            raise reply
        return reply

    def close(self) -> None:
        self._socket.close()
