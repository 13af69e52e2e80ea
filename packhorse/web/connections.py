"""The connections of a server: which of them ask for nothing, how long they may, and who goes first when there are too
many. A connection with a whole request in hand is never closed from here.

uvicorn hangs up on whoever is silent after an answer. It would wait for ever for one that never asks, or that begins to
ask and goes no further; a few hundred of these would be all that a process may have open.
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
"""Seconds in which the whole head of a request must be there, from the first moment or from the answer before it."""
FAREWELL = 30.0
"""Seconds for which somebody may read the end of an answer after we have hung up."""
MOST = 4_000
"""Connections at once. Each holds some ten kilobytes."""
_FILES = 8_192
"""Files that a server wants to have open; a process may often have but a thousand, unless it asks for more."""
_SPARE = 1_024
"""Of these, for the storage: who sleeps may need three. Also for those who come in one go, before any is looked at."""
_WARN_EVERY = 60.0


def allow_files() -> int:
    """How many files this process may have open, after it has asked for as many as it wants."""
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
    """All that are open at one server. Used in its loop only."""

    def __init__(self, most: int = MOST, now: Callable[[], float] = time.monotonic) -> None:
        self._most = most
        self._now = now
        self._highest = _FILES - _SPARE
        self._open: set[Connection] = set()
        # Those without a request in hand, since when; the longest first. Strangers showed no token, the last time.
        self._strangers: dict[Connection, float] = {}
        self._known: dict[Connection, float] = {}
        self._sending: dict[Connection, float] = {}  # a request whose body has not come yet; since when
        self._leaving: dict[Connection, float] = {}  # we have hung up on them; since when
        self._warned_at = float("-inf")

    def bear(self, files: int) -> None:
        """So many files may be open in this process."""
        self._highest = files - min(_SPARE, files // 4)

    def came(self, connection: Connection, number: int) -> None:
        """A connection is there; its number is that of its file, the lowest that was free."""
        self._open.add(connection)
        self.waits(connection)
        if len(self._open) > self._most or number >= self._highest:
            self._make_room(connection)

    def asks(self, connection: Connection) -> None:
        """It has a request in hand, whole."""
        self._strangers.pop(connection, None)
        self._known.pop(connection, None)
        self._sending.pop(connection, None)

    def sends(self, connection: Connection) -> None:
        """It has begun a request, whose body comes. The gate waits for that only so long."""
        since = self._sending.get(connection, self._now())
        self.asks(connection)
        self._sending[connection] = since

    def waits(self, connection: Connection) -> None:
        """It has none, from now on."""
        self.asks(connection)
        (self._known if connection.is_known else self._strangers)[connection] = self._now()

    def went(self, connection: Connection) -> None:
        """It is closed."""
        self._open.discard(connection)
        self._leaving.pop(connection, None)
        self.asks(connection)

    def close_overdue(self) -> None:
        """Hang up on those that did not ask in time, and be rid of those that do not let us."""
        now = self._now()
        for waiting in (self._strangers, self._known):
            for connection in _since(waiting, now - HEAD):
                self.asks(connection)
                self._leaving[connection] = now
                connection.transport.close()
        for connection in _since(self._leaving, now - FAREWELL):
            self._cut(connection)

    def _make_room(self, newest: Connection) -> None:
        """Two go for one that comes, so that there are fewer again. The newest goes itself where all others ask."""
        slow = (one for one in self._sending if not one.is_known)
        idle = (one for one in chain(self._leaving, self._strangers, slow, self._known) if one is not newest)
        going = [one for one, _ in zip(idle, range(2), strict=False)] or [newest]
        for connection in going:
            self._cut(connection)
        if self._now() - self._warned_at > _WARN_EVERY:
            self._warned_at = self._now()
            log.warning("%d connections are open; those that ask for nothing are closed", len(self._open))

    def _cut(self, connection: Connection) -> None:
        self.went(connection)
        connection.transport.abort()


def _since(waiting: dict[Connection, float], moment: float) -> list[Connection]:
    """Those that wait for so long already. Who came first is first."""

    def found() -> Iterator[Connection]:
        for connection, since in waiting.items():
            if since > moment:
                return
            yield connection

    return list(found())


class Connection(HTTPProtocol):
    """One of them, as uvicorn has it, which tells the others what it does."""

    def __init__(self, connections: Connections, **given: Any) -> None:
        super().__init__(**given)
        self._all = connections

    @property
    def is_asking(self) -> bool:
        """Has it a request in hand?"""
        return self.cycle is not None and not self.cycle.response_complete

    @property
    def is_known(self) -> bool:
        """Was somebody signed in who asked last?"""
        return self.scope is not None and self.scope.get("state", {}).get("operator") is not None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._all.came(self, transport.get_extra_info("socket").fileno())

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._all.went(self)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.is_asking:
            (self._all.sends if self.cycle.more_body else self._all.asks)(self)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self.is_asking:  # else the next request was there already
            self._all.waits(self)
