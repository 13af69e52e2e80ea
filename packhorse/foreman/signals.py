"""Signals for a loop that sleeps in a selector: each arrives as a byte on a socket, and other threads may ring it too.

Nothing is done inside a signal handler, so no signal can come at a bad moment.
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
RESTART_ASKED = signal.SIGUSR2
"""What other threads ring for a restart: a SIGHUP may also mean that the terminal was closed. It is not watched for."""
DUMP = frozenset({signal.SIGTTIN, *([signal.SIGINFO] if hasattr(signal, "SIGINFO") else [])})
# SIGCHLD, too: it wakes the loop, and a parent that ignored it would have left us without exit codes.
_WATCHED = STOP | QUIET | DUMP | {signal.SIGHUP, signal.SIGCHLD}


class Signals:
    """Watches for the length of a `with` block; outside the main thread only `ring` is heard.

    A program that takes a while to start enters the block first: what would kill it is kept for the loop. Signals that
    stop do so at once, until the loop is there and says `take_stops`.
    """

    def __init__(self) -> None:
        self._ear, self._mouth = socket.socketpair()
        self._ear.setblocking(False)
        self._mouth.setblocking(False)
        self._before: dict[signal.Signals, Any] = {}
        self._fd_before = -1
        self.had_terminal = False
        """Was there a controlling terminal when the watch began? It may be closed while the program still starts."""

    def __enter__(self) -> Signals:
        if not self._before and threading.current_thread() is threading.main_thread():
            self._fd_before = signal.set_wakeup_fd(self._mouth.fileno(), warn_on_full_buffer=False)
            self._take(_WATCHED - STOP)
            self.had_terminal = has_terminal()
        return self

    def take_stops(self) -> None:
        """From now on, signals that stop are for the loop, too."""
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
        self._ear.close()
        self._mouth.close()

    @property
    def hangup_was_ignored(self) -> bool:
        """As nohup has it."""
        return self._before.get(signal.SIGHUP) is signal.SIG_IGN

    def fileno(self) -> int:
        return self._ear.fileno()

    def ring(self, number: int = 0) -> None:
        """Wake the loop, from any thread, as if this signal had come; 0: none."""
        with suppress(OSError):  # full: it is awake; closed: it has ended
            self._mouth.send(bytes([number]))

    def read(self) -> list[signal.Signals]:
        """The signals that have come in since."""
        with suppress(BlockingIOError):
            return [signal.Signals(number) for number in self._ear.recv(4_096) if number]
        return []


def _do_nothing(number: int, frame: FrameType | None) -> None:
    """The byte on the socket is all that is needed."""


# --- the terminal -------------------------------------------------------------------------------------------------

_TOGETHER = 5.0
"""Seconds that may lie between the end of a terminal and the SIGHUP that tells of it. A process that outlives its
terminal on purpose (`disown`) gets none then; one that comes later is an operator's."""


def has_terminal() -> bool:
    """Does this process have a controlling terminal?"""
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY | os.O_CLOEXEC))
    except OSError:
        return False
    return True


def let_go_of_terminal() -> None:
    """Write to nowhere from now on, instead of a terminal that is closed: that would fail."""
    for number in range(3):
        try:
            termios.tcgetattr(number)
        except termios.error as error:
            if error.args[0] == errno.EIO:
                nowhere = os.open(os.devnull, os.O_RDWR)
                os.dup2(nowhere, number)
                os.close(nowhere)


class Terminal:
    """Says whether a SIGHUP came because the terminal was closed. Times are in seconds, by a steady clock."""

    def __init__(self, *, is_there: bool) -> None:
        self.is_there = is_there
        self._lost_at: float | None = None
        self._told_at: float | None = None

    def told(self, now: float) -> None:
        """A SIGHUP has come."""
        self._told_at = now

    def look(self, now: float, is_there: bool) -> None:
        """The terminal is there, or not."""
        if self.is_there and not is_there:
            self.is_there, self._lost_at = False, now

    @property
    def was_closed(self) -> bool:
        """The terminal is gone, and a SIGHUP has told of it. Either may be seen first."""
        if self._lost_at is None or self._told_at is None:
            return False
        return abs(self._lost_at - self._told_at) <= _TOGETHER
