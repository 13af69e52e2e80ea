"""Messages between a foreman and one of its workers, over a socket pair, one JSON object to a line.

When the other process is gone, so is the other end of the channel, and `receive` ends.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import msgspec

Message = dict[str, Any]
EXIT_STUCK = 70
"""Exit code of a worker that must be replaced because one of its jobs does not end. It has written all outcomes."""

_CHUNK = 65_536


class Channel:
    """One end of a channel. Any thread may send; one thread receives."""

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
        """The end that this process has inherited under this number."""
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
        """Yield the messages that come in, until the other end is gone."""
        while True:
            messages, is_open = self.read()
            yield from messages
            if not is_open:
                return

    def read(self) -> tuple[list[Message], bool]:
        """Wait for messages and return them. The second value is False once the other end is gone."""
        try:
            data = self._socket.recv(_CHUNK)
        except BlockingIOError:
            return [], True
        except OSError:
            return [], False
        return self._messages_in(data), bool(data)

    def read_rest(self) -> list[Message]:
        """Return the messages that have come in, without waiting: the last ones of a process that has died. Another
        process that has inherited its end may keep that open."""
        messages: list[Message] = []
        with suppress(OSError):
            while data := self._socket.recv(_CHUNK, socket.MSG_DONTWAIT):
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
        """The socket, to hand it to another process."""
        return self._socket

    def hang_up(self) -> None:
        """Send no more; messages from the other end still come in."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self._socket.close()
