"""A proxy between a client and a server that can drop answers: for tests of lost answers."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator


class Proxy:
    """Forwards bytes in both directions until it is told to lose answers. `url` names its own port."""

    def __init__(self, port: int) -> None:
        self._target = ("127.0.0.1", port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._sockets: list[socket.socket] = []
        self._lock = threading.Lock()
        self._to = b""  # commands that hold these bytes are counted
        self._losing = range(0)  # the answers to these of them are lost, and the line is cut
        self.seen = self.lost = 0
        threading.Thread(target=self._open, daemon=True).start()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    def instead_of(self, url: str) -> str:
        """The same address through this proxy."""
        return url.replace(f"127.0.0.1:{self._target[1]}", f"127.0.0.1:{self.port}")

    def lose_answers(self, to: bytes, first: int = 1, times: int = 1) -> None:
        """Of the commands that hold these bytes, beginning with the `first` from now on: the server does what it is
        told, and the client never hears of it."""
        self.seen = self.lost = 0
        self._to, self._losing = to, range(first, first + times)

    def _loses(self, data: bytes) -> bool:
        if not self._to or self._to not in data:
            return False
        self.seen += 1
        self.lost += self.seen in self._losing
        return self.seen in self._losing

    def _open(self) -> None:
        with contextlib.suppress(OSError):  # the listener was closed
            while True:
                client, _ = self._listener.accept()
                with self._lock:
                    self._sockets.append(client)
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        try:
            server = socket.create_connection(self._target)
        except OSError:
            client.close()
            return
        with self._lock:
            self._sockets.append(server)
        is_doomed = threading.Event()
        there = threading.Thread(target=self._hand_on, args=(client, server, is_doomed, True), daemon=True)
        there.start()
        self._hand_on(server, client, is_doomed, False)
        there.join()
        # Not before: the other thread may be about to use their numbers, which would mean somebody else's sockets.
        client.close()
        server.close()

    def _hand_on(self, source: socket.socket, target: socket.socket, is_doomed: threading.Event, asks: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65_536):
                if asks and self._loses(data):
                    is_doomed.set()
                elif not asks and is_doomed.is_set():
                    break
                target.sendall(data)
        for one in (source, target):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def cut(self) -> None:
        """End every connection."""
        with self._lock:
            sockets, self._sockets = self._sockets, []
        for one in sockets:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()


@contextlib.contextmanager
def proxy_to(port: int) -> Iterator[Proxy]:
    """A proxy for the length of the block."""
    proxy = Proxy(port)
    try:
        yield proxy
    finally:
        proxy.close()
