"""The server that runs the application, which may be another program's: is it told to stop?

`packhorse web` ends its streams itself. Mounted into another program, nobody tells us: uvicorn sends the end of the
lifespan only when all connections are closed, and a stream never closes by itself. So while a request lasts long, it
asks here. uvicorn tells each open connection not to stay, and whoever handles its signals knows that they came.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from typing import Any

UNSEEN = 20.0
"""Seconds that a stream lasts at a server whose end cannot be seen; browsers come back."""


class Serving:
    """One request, as its server has it. `receive` is what the server gave us."""

    def __init__(self, receive: Any, now: Callable[[], float] = time.monotonic) -> None:
        cycle = getattr(receive, "__self__", None)  # uvicorn's, if nothing is wrapped around it
        self._cycle = cycle if getattr(cycle, "keep_alive", False) else None
        self._now = now
        self._began_at = now()

    def is_ending(self) -> bool:
        """Was the server told to stop, or may it have been for too long without a sign of it?"""
        if self._cycle is not None and not self._cycle.keep_alive:
            return True
        signalled = _signalled()
        if signalled is None and self._cycle is None:
            return self._now() - self._began_at > UNSEEN
        return bool(signalled)


def _signalled() -> bool | None:
    """Did the server that handles this process's signals hear one? None: there is no such server."""
    for number in (signal.SIGTERM, signal.SIGINT):
        told = getattr(getattr(signal.getsignal(number), "__self__", None), "should_exit", None)
        if isinstance(told, bool):
            return told
    return None
