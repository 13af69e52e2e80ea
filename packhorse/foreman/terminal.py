"""The terminal that a program was started in, and what is left of it when it is closed.

For foremen, who tell a closed terminal from an operator's SIGHUP by it. Their workers never write to it themselves.
"""

from __future__ import annotations

import errno
import os
import termios

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
