"""Signals for a loop that sleeps in a selector: each arrives as a byte on a socket, and other threads may send one too.

Signal handlers do nothing, so no signal can interrupt at a bad moment.
"""

from __future__ import annotations

import errno
import os
import signal
import socket
import termios
import threading
from collections.abc import Iterable
from contextlib import suppress
from types import FrameType, TracebackType
from typing import Any

STOP = frozenset({signal.SIGTERM, signal.SIGINT})
QUIET = frozenset({signal.SIGUSR1, signal.SIGTSTP})
RESTART = signal.SIGUSR2
"""Sent by other threads for a restart, because SIGHUP may also mean that the terminal was closed. Not watched."""
DUMP = frozenset({signal.SIGTTIN, *([signal.SIGINFO] if hasattr(signal, "SIGINFO") else [])})
# SIGCHLD wakes the loop; and if our parent ignored it, we would get no exit codes.
_WATCHED = STOP | QUIET | DUMP | {signal.SIGHUP, signal.SIGCHLD}


class Signals:
    """Watches signals inside a `with` block; outside the main thread only `send` works.

    A program that starts slowly enters the block first, so that signals are kept for its loop. Signals that stop still
    end the program immediately, until the loop calls `handle_stops`.
    """

    def __init__(self) -> None:
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)
        self._before: dict[signal.Signals, Any] = {}
        self._fd_before = -1
        self.had_terminal = False
        """Was there a controlling terminal at the beginning? It may be closed while the program still starts."""

    def __enter__(self) -> Signals:
        if not self._before and threading.current_thread() is threading.main_thread():
            self._fd_before = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
            self._take(_WATCHED - STOP)
            self.had_terminal = has_terminal()
        return self

    def handle_stops(self) -> None:
        """From now on, pass stop signals to the loop too."""
        if self._before:
            self._take(STOP)

    def _take(self, numbers: Iterable[signal.Signals]) -> None:
        self._before.update({number: signal.signal(number, _do_nothing) for number in numbers})

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if self._before:
            signal.set_wakeup_fd(self._fd_before)
            self._before = {}
        self._reader.close()
        self._writer.close()

    @property
    def hangup_was_ignored(self) -> bool:
        """Was SIGHUP ignored, as under nohup?"""
        return self._before.get(signal.SIGHUP) is signal.SIG_IGN

    def fileno(self) -> int:
        return self._reader.fileno()

    def send(self, number: int = 0) -> None:
        """Wake the loop, from any thread, as if this signal had arrived; 0 only wakes it."""
        with suppress(OSError):  # full: the loop is awake; closed: it has ended
            self._writer.send(bytes([number]))

    def read(self) -> list[signal.Signals]:
        """The signals that have arrived since the last call."""
        with suppress(BlockingIOError):
            return [signal.Signals(number) for number in self._reader.recv(4_096) if number]
        return []


def _do_nothing(number: int, frame: FrameType | None) -> None:
    """The byte on the socket is enough."""


# --- the terminal -------------------------------------------------------------------------------------------------

_HANGUP_WINDOW = 5.0
"""Seconds that may lie between the end of a terminal and its SIGHUP. A process that outlives its terminal on purpose
(`disown`) gets no SIGHUP then; a later one is from an operator."""


def has_terminal() -> bool:
    """Does this process have a controlling terminal?"""
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY | os.O_CLOEXEC))
    except OSError:
        return False
    return True


def detach_from_terminal() -> None:
    """Redirect a closed terminal to /dev/null, because writing to it would fail."""
    for number in range(3):
        try:
            termios.tcgetattr(number)
        except termios.error as error:
            if error.args[0] == errno.EIO:
                nowhere = os.open(os.devnull, os.O_RDWR)
                os.dup2(nowhere, number)
                os.close(nowhere)


class Terminal:
    """Decides whether a SIGHUP came because the terminal was closed. Times are in seconds, by a monotonic clock."""

    def __init__(self, *, is_there: bool) -> None:
        self.is_there = is_there
        self._lost_at: float | None = None
        self._hung_up_at: float | None = None

    def hung_up(self, now: float) -> None:
        """A SIGHUP has arrived."""
        self._hung_up_at = now

    def update(self, now: float, is_there: bool) -> None:
        """The terminal is there, or not."""
        if self.is_there and not is_there:
            self.is_there, self._lost_at = False, now

    @property
    def was_closed(self) -> bool:
        """The terminal is gone, and a SIGHUP arrived about then. Either may be noticed first."""
        if self._lost_at is None or self._hung_up_at is None:
            return False
        return abs(self._lost_at - self._hung_up_at) <= _HANGUP_WINDOW
