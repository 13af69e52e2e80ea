"""The channel: messages between a foreman and one of its workers, one JSON object to a line, over a socket pair.

Losing the other end means that the other process is gone; `receive` says so by ending.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import msgspec

Message = dict[str, Any]
CONDEMNED = 70
"""Exit code of a worker that wrote everything down and must be replaced, because a job of its would not end. The last
word that it has for its foreman."""

_AT_ONCE = 65_536


class Channel:
    """One end. Any thread may send; one thread receives."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._lock = threading.Lock()
        self._rest = b""

    @classmethod
    def pair(cls) -> tuple[Channel, Channel]:
        """Both ends of a new channel."""
        one, other = socket.socketpair()
        return cls(one), cls(other)

    @classmethod
    def from_fd(cls, fd: int) -> Channel:
        """The end that was inherited under this number."""
        return cls(socket.socket(fileno=fd))

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, message: Message) -> bool:
        """False: the other end is gone."""
        line = msgspec.json.encode(message) + b"\n"
        with self._lock:
            try:
                self._socket.sendall(line)
            except OSError:
                return False
        return True

    def receive(self) -> Iterator[Message]:
        """The messages that come in, until the other end is gone."""
        while True:
            messages, is_open = self.read()
            yield from messages
            if not is_open:
                return

    def read(self) -> tuple[list[Message], bool]:
        """What has come in; waits for the first. The second value is False once the other end is gone."""
        try:
            data = self._socket.recv(_AT_ONCE)
        except BlockingIOError:
            return [], True
        except OSError:
            return [], False
        return self._messages_in(data), bool(data)

    def read_rest(self) -> list[Message]:
        """All that has come in and was not read yet; waits for nothing. For the words of one who has died: somebody
        who inherited its end may keep it open for ever."""
        messages: list[Message] = []
        with suppress(OSError):
            while data := self._socket.recv(_AT_ONCE, socket.MSG_DONTWAIT):
                messages += self._messages_in(data)
        return messages

    def _messages_in(self, data: bytes) -> list[Message]:
        *lines, self._rest = (self._rest + data).split(b"\n")
        messages: list[Message] = []
        for line in lines:
            with suppress(msgspec.DecodeError, UnicodeDecodeError):
                messages.append(msgspec.json.decode(line, type=dict[str, Any]))
        return messages

    @property
    def socket(self) -> socket.socket:
        """The socket itself, to hand it to another process."""
        return self._socket

    def hang_up(self) -> None:
        """Say no more; what the other end still says is heard."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self._socket.close()
