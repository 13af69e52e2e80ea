"""Records every command that a server runs, also those of scripts, through its MONITOR."""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Iterator
from typing import NamedTuple

from packhorse.storage.redis.address import Address
from packhorse.storage.redis.connection import Connection
from tests.children import PATIENCE
from tests.redis_server import RedisServer

_WORD = re.compile(r'"((?:[^"\\]|\\.)*)"')
_END = "the end of the recording"


class Command(NamedTuple):
    """One command as the server shows it, with everything but ASCII escaped."""

    name: str
    words: tuple[str, ...]


@contextlib.contextmanager
def recorded(server: RedisServer) -> Iterator[list[Command]]:
    """All commands that the server runs within the block; complete when it ends."""
    commands: list[Command] = []
    connection = Connection(("127.0.0.1", server.port), Address.parse(server.url))
    connection.call("MONITOR")
    thread = threading.Thread(target=_read, args=(connection, commands), daemon=True)
    thread.start()
    try:
        yield commands
    finally:
        server.command("ECHO", _END)
        thread.join(PATIENCE)
        connection.close()
        assert not thread.is_alive(), "the server no longer shows its commands"


def _read(connection: Connection, commands: list[Command]) -> None:
    while True:
        name, *words = _WORD.findall(connection.read().decode())
        if words == [_END]:
            return
        commands.append(Command(name.upper(), tuple(words)))
