"""Listens to everything that a server is told, also by scripts, through the server's own MONITOR."""

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
_END = "the listener has heard enough"


class Heard(NamedTuple):
    """One command, as the server shows it: what is not ASCII is escaped."""

    name: str
    words: tuple[str, ...]


@contextlib.contextmanager
def listening(server: RedisServer) -> Iterator[list[Heard]]:
    """All commands that the server is told within the block; complete when it ends."""
    heard: list[Heard] = []
    connection = Connection(("127.0.0.1", server.port), Address.parse(server.url))
    connection.call("MONITOR")
    thread = threading.Thread(target=_listen, args=(connection, heard), daemon=True)
    thread.start()
    try:
        yield heard
    finally:
        server.command("ECHO", _END)
        thread.join(PATIENCE)
        connection.close()
        assert not thread.is_alive(), "the server no longer says what it is told"


def _listen(connection: Connection, heard: list[Heard]) -> None:
    while True:
        name, *words = _WORD.findall(connection.read().decode())
        if words == [_END]:
            return
        heard.append(Heard(name.upper(), tuple(words)))
