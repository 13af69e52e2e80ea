"""The server: the application behind uvicorn. `packhorse web` runs one until it is told to stop."""

from __future__ import annotations

import ctypes
import functools
import signal
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import suppress

import uvicorn

from packhorse.web.application import Application
from packhorse.web.bind import BACKLOG, listening_socket
from packhorse.web.connections import Connection, Connections, allow_files

_AT_ONCE = 100  # connections that are taken in one go, before any of them is looked at
_PATIENCE = 3  # seconds that requests may go on when the server is told to stop
_M_ARENA_MAX = -8  # of malloc.h


class _Server(uvicorn.Server):
    """Streams never end by themselves, so they are ended before anybody waits for them. Nor do connections on which
    nobody asks."""

    def __init__(self, config: uvicorn.Config, application: Application, connections: Connections) -> None:
        super().__init__(config)
        self._application = application
        self._connections = connections

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for listening in sockets or ():
            listening.listen(BACKLOG)  # more may wait in line than are taken in one go

    async def on_tick(self, counter: int) -> bool:
        self._connections.close_overdue()
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._application.close()
        await super().shutdown(sockets)


def _share_memory() -> None:
    """Let threads take memory from two heaps. By itself, glibc gives each of them a heap of its own, up to eight for a
    core, and what one has let go no other can use: a third of what a watched server holds."""
    with suppress(AttributeError, OSError):  # other systems have no such thing, and need none
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 2)


class WebServer:
    """Serves one application at one address. The address is taken at once, so that what is wrong is said at once."""

    def __init__(self, application: Application, host: str, port: int) -> None:
        self._socket = listening_socket(host, port)
        self.host, self.port = host, int(self._socket.getsockname()[1])
        self._connections = Connections()
        application.serve_alone()
        config = uvicorn.Config(
            application,
            http=functools.partial(Connection, self._connections),  # type: ignore[arg-type]
            ws="none",
            log_level="warning",
            access_log=False,
            lifespan="off",
            proxy_headers=False,
            server_header=False,
            timeout_graceful_shutdown=_PATIENCE,
            backlog=_AT_ONCE,
            # No `limit_concurrency`: it counts who is connected, not who asks, and would refuse a heartbeat for the
            # sake of the idle. See the gate for requests, and `connections.py` for the rest.
        )
        self._server = _Server(config, application, self._connections)

    @property
    def url(self) -> str:
        """Where a browser finds it."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(self.host, self.host)  # noqa: S104 - not bound
        return f"http://{f'[{host}]' if ':' in host else host}:{self.port}/"

    def run(self) -> None:
        """Serve until told to stop, by `stop`, by Ctrl-C or by SIGTERM."""
        _share_memory()
        self._connections.set_file_limit(allow_files())
        if threading.current_thread() is threading.main_thread():
            # uvicorn raises the signal once more when it has stopped; by default that would kill the process.
            signal.signal(signal.SIGTERM, lambda *_: self.stop())
        try:
            self._server.run(sockets=[self._socket])
        finally:
            self._socket.close()

    def stop(self) -> None:
        """Stop soon; callable from any thread."""
        self._server.should_exit = True

    def stop_at_end_of(self, read: Callable[[], object] = sys.stdin.read) -> None:
        """Stop when whoever started this process is gone, and with it the other end of stdin."""

        def wait() -> None:
            read()
            self.stop()

        threading.Thread(target=wait, name="packhorse-web-parent", daemon=True).start()
