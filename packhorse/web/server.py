"""The server: the application behind uvicorn. `packhorse web` runs one until it receives a stop signal."""

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

_ACCEPT_BATCH = 100  # connections that the event loop accepts in a row, before it serves any of them
_SHUTDOWN_TIMEOUT = 3  # seconds that running requests have left when the server stops
_M_ARENA_MAX = -8  # from malloc.h


class _Server(uvicorn.Server):
    """A uvicorn server that closes streams before it waits for them, because they never end by themselves. It also
    closes connections that send no request in time."""

    def __init__(self, config: uvicorn.Config, application: Application, connections: Connections) -> None:
        super().__init__(config)
        self._application = application
        self._connections = connections

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for listening in sockets or ():
            listening.listen(BACKLOG)  # more may wait than are accepted in a row

    async def on_tick(self, counter: int) -> bool:
        self._connections.close_overdue()
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._application.close()
        await super().shutdown(sockets)


def _share_memory() -> None:
    """Limit malloc to two heaps. By default, glibc gives each thread its own heap, up to eight per core, and no heap
    can use what another has freed: a third of the memory of a server that people watch."""
    with suppress(AttributeError, OSError):  # other systems have no such setting, and need none
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 2)


class WebServer:
    """Serves one application at one address. It binds the address immediately, so that errors are raised early."""

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
            timeout_graceful_shutdown=_SHUTDOWN_TIMEOUT,
            backlog=_ACCEPT_BATCH,
            # No `limit_concurrency`: it counts connections, not requests, and would refuse a heartbeat because of idle
            # connections. `security/middleware.py` limits requests, `connections.py` limits connections.
        )
        self._server = _Server(config, application, self._connections)

    @property
    def url(self) -> str:
        """The address for a browser."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(self.host, self.host)  # noqa: S104 - not bound
        return f"http://{f'[{host}]' if ':' in host else host}:{self.port}/"

    def run(self) -> None:
        """Serve until `stop`, Ctrl-C or SIGTERM."""
        _share_memory()
        self._connections.set_file_limit(allow_files())
        if threading.current_thread() is threading.main_thread():
            # uvicorn raises the signal again after it has stopped; by default that would kill the process.
            signal.signal(signal.SIGTERM, lambda *_: self.stop())
        try:
            self._server.run(sockets=[self._socket])
        finally:
            self._socket.close()

    def stop(self) -> None:
        """Stop soon; callable from any thread."""
        self._server.should_exit = True

    def stop_at_end_of(self, read: Callable[[], object] = sys.stdin.read) -> None:
        """Stop when the parent process is gone, which closes the other end of stdin."""

        def wait() -> None:
            read()
            self.stop()

        threading.Thread(target=wait, name="packhorse-web-parent", daemon=True).start()
