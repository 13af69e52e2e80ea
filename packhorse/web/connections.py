"""The connections of a server: which of them are idle, for how long they may be, and which the server closes first when
there are too many. It never closes a connection whose whole request it has received.

uvicorn closes a connection that is idle after a response. It has no limit for one that never sends a request, or sends
only part of one: a few hundred of these would use up all the files that a process may open.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import chain
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio

    from uvicorn.protocols.http.h11_impl import H11Protocol as HTTPProtocol
else:  # the fastest that is installed
    from uvicorn.protocols.http.auto import AutoHTTPProtocol as HTTPProtocol

log = logging.getLogger("packhorse.web")

HEAD = 10.0
"""Seconds for the whole head of a request, from the start of the connection or from the response before."""
FAREWELL = 30.0
"""Seconds in which a client may read the end of a response after the server has closed the connection."""
MOST = 4_000
"""Connections at once. Each holds some ten kilobytes."""
_FILES = 8_192
"""Open files that a server asks for; the default limit of a process is often only a thousand."""
_SPARE = 1_024
"""Files left for the storage (a waiting call may need three) and for bursts of new connections."""
_WARN_EVERY = 60.0


def allow_files() -> int:
    """Raise the limit of open files if the system allows it, and return the limit."""
    try:
        import resource
    except ImportError:  # other systems have no such limit
        return _FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _FILES if hard == resource.RLIM_INFINITY else min(hard, _FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return _FILES if soft == resource.RLIM_INFINITY else soft


class Connections:
    """The open connections of one server. Used only in its event loop."""

    def __init__(self, most: int = MOST, now: Callable[[], float] = time.monotonic) -> None:
        self._most = most
        self._now = now
        self._highest = _FILES - _SPARE
        self._open: set[Connection] = set()
        # Idle connections and since when, the oldest first. Anonymous: without a valid token in the last request.
        self._idle_anonymous: dict[Connection, float] = {}
        self._idle_signed_in: dict[Connection, float] = {}
        self._sending: dict[Connection, float] = {}  # the body of the request is incomplete; since when
        self._closing: dict[Connection, float] = {}  # closed here, not yet by the client; since when
        self._warned_at = float("-inf")

    def set_file_limit(self, files: int) -> None:
        """Set how many files this process may open."""
        self._highest = files - min(_SPARE, files // 4)

    def opened(self, connection: Connection, number: int) -> None:
        """A connection was opened; `number` is its file descriptor, the lowest that was free."""
        self._open.add(connection)
        self.idle(connection)
        if len(self._open) > self._most or number >= self._highest:
            self._abort_idle(connection)

    def received(self, connection: Connection) -> None:
        """Its whole request was received."""
        self._idle_anonymous.pop(connection, None)
        self._idle_signed_in.pop(connection, None)
        self._sending.pop(connection, None)

    def receiving(self, connection: Connection) -> None:
        """It sends the body of a request, for which the middleware waits a limited time."""
        since = self._sending.get(connection, self._now())
        self.received(connection)
        self._sending[connection] = since

    def idle(self, connection: Connection) -> None:
        """It has no request: it is idle from now on."""
        self.received(connection)
        (self._idle_signed_in if connection.is_known else self._idle_anonymous)[connection] = self._now()

    def closed(self, connection: Connection) -> None:
        """It was closed."""
        self._open.discard(connection)
        self._closing.pop(connection, None)
        self.received(connection)

    def close_overdue(self) -> None:
        """Close the connections that sent no request in time, and abort those that stay open after that."""
        now = self._now()
        for waiting in (self._idle_anonymous, self._idle_signed_in):
            for connection in _since(waiting, now - HEAD):
                self.received(connection)
                self._closing[connection] = now
                connection.transport.close()
        for connection in _since(self._closing, now - FAREWELL):
            self._abort(connection)

    def _abort_idle(self, newest: Connection) -> None:
        """Abort two for each new connection, so that the number falls; the newest itself if all others are busy."""
        slow = (one for one in self._sending if not one.is_known)
        idle = (
            one for one in chain(self._closing, self._idle_anonymous, slow, self._idle_signed_in) if one is not newest
        )
        aborted = [one for one, _ in zip(idle, range(2), strict=False)] or [newest]
        for connection in aborted:
            self._abort(connection)
        if self._now() - self._warned_at > _WARN_EVERY:
            self._warned_at = self._now()
            log.warning("%d connections are open; idle ones are closed", len(self._open))

    def _abort(self, connection: Connection) -> None:
        self.closed(connection)
        connection.transport.abort()


def _since(waiting: dict[Connection, float], moment: float) -> list[Connection]:
    """The connections that have been idle since before this moment, the oldest first."""

    def found() -> Iterator[Connection]:
        for connection, since in waiting.items():
            if since > moment:
                return
            yield connection

    return list(found())


class Connection(HTTPProtocol):
    """A connection of uvicorn that reports its changes to `Connections`."""

    def __init__(self, connections: Connections, **options: Any) -> None:
        super().__init__(**options)
        self._all = connections

    @property
    def is_busy(self) -> bool:
        """Does it have a request without a complete response?"""
        return self.cycle is not None and not self.cycle.response_complete

    @property
    def is_known(self) -> bool:
        """Did its last request come from an operator who is signed in?"""
        return self.scope is not None and self.scope.get("state", {}).get("operator") is not None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._all.opened(self, transport.get_extra_info("socket").fileno())

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._all.closed(self)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.is_busy:
            (self._all.receiving if self.cycle.more_body else self._all.received)(self)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self.is_busy:  # else the next request is there already
            self._all.idle(self)
