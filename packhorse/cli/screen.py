"""The whole terminal as a screen to draw on, with single keys; `top` uses it.

The terminal is as it was before when the block ends, however it ends, and while the program is suspended by Ctrl-Z.
"""

from __future__ import annotations

import os
import re
import select
import signal
import sys
import termios
import tty
from collections.abc import Sequence
from types import FrameType, TracebackType

from packhorse.cli.output import terminal_size
from packhorse.cli.table import cut_to, width_of

_ENTER = "\x1b[?1049h\x1b[?25l"  # another screen, no cursor
_LEAVE = "\x1b[?25h\x1b[?1049l"
_KEYS = {
    "\x1b[A": "up",
    "\x1b[B": "down",
    "\x1bOA": "up",
    "\x1bOB": "down",
    "\x1b[C": "right",
    "\x1b[D": "left",
    "\x1b[5~": "page up",
    "\x1b[6~": "page down",
    "\x1b[H": "home",
    "\x1b[F": "end",
    "\x1b[Z": "back tab",
    "\r": "enter",
    "\n": "enter",
    "\t": "tab",
    "\x7f": "backspace",
    "\x08": "backspace",
    "\x1b": "escape",
}
_SEQUENCE = re.compile(r"\x1b(?:\[[0-9;]*[A-Za-z~]|O[A-Z])|.", re.DOTALL)
_PAINT = re.compile(r"(\x1b\[[0-9;]*m)")
_REST = 0.05  # seconds in which the rest of a key's sequence comes, also over a slow line
RESIZED = "resized"  # a key that nobody has: the terminal has another size
GONE = "gone"  # another: there is no terminal any more


class Screen:
    """The terminal that stdin and stdout are, for the length of a `with` block."""

    def __init__(self) -> None:
        self._stdin = sys.stdin.fileno()
        self._woken, self._wake = os.pipe()  # select waits on for keys when a signal has come, unless it is told
        os.set_blocking(self._wake, False)
        self._before: list[object] = []

    @staticmethod
    def is_possible() -> bool:
        """Is there a terminal that understands more than lines?"""
        return sys.stdin.isatty() and sys.stdout.isatty() and os.environ.get("TERM", "") not in ("", "dumb")

    def __enter__(self) -> Screen:
        self._begin()
        self._handlers = {
            number: signal.signal(number, handler)
            for number, handler in (
                (signal.SIGTSTP, self._suspend),
                (signal.SIGTERM, _end),
                (signal.SIGHUP, _end),
                (signal.SIGQUIT, _end),
                (signal.SIGWINCH, _resize),
            )
        }
        # The pipe is written to as the signal comes. A handler in Python has to wait for its turn, and would come after
        # the whole of a wait that was just about to begin.
        self._woke_before = signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        signal.set_wakeup_fd(self._woke_before)
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._finish()
        os.close(self._wake)
        os.close(self._woken)

    def _begin(self) -> None:
        self._before = termios.tcgetattr(self._stdin)
        tty.setcbreak(self._stdin)
        self._write(_ENTER)

    def _finish(self) -> None:
        self._write(_LEAVE)
        termios.tcsetattr(self._stdin, termios.TCSADRAIN, self._before)  # type: ignore[arg-type]

    def _suspend(self, number: int, frame: FrameType | None) -> None:
        self._finish()
        os.kill(os.getpid(), signal.SIGSTOP)
        self._begin()  # here the program goes on, with `fg`

    # --- drawing and hearing ----------------------------------------------------------------------------------------

    @property
    def size(self) -> tuple[int, int]:
        """Columns and lines."""
        return terminal_size()

    def draw(self, lines: Sequence[str]) -> None:
        """Show these lines, and nothing else."""
        width, height = self.size
        shown = [f"{fitted(line, width)}\x1b[0m\x1b[K" for line in lines[:height]]
        self._write("\x1b[H" + "\r\n".join(shown) + "\x1b[J")

    def keys(self, seconds: float) -> list[str]:
        """The keys that are pressed within so many seconds; answers with the first. `RESIZED` and `GONE` are among
        them."""
        ready = select.select([self._stdin, self._woken], [], [], max(seconds, 0))[0]
        resized = [RESIZED] if self._woken in ready and os.read(self._woken, 1_024) else []
        return resized + (self._pressed() if self._stdin in ready else [])

    def _pressed(self) -> list[str]:
        text = self._read()
        if text.endswith(("\x1b", "\x1b[", "\x1bO")) and select.select([self._stdin], [], [], _REST)[0]:
            text += self._read()
        return keys_in(text) if text else [GONE]

    def _read(self) -> str:
        try:
            return os.read(self._stdin, 1_024).decode(errors="ignore")
        except OSError:  # the line was cut
            return ""

    def _write(self, text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()


def keys_in(text: str) -> list[str]:
    """The keys that a terminal has told of: names for special ones, else the character.

    >>> keys_in("j\\x1b[A/")
    ['j', 'up', '/']
    """
    return [_KEYS.get(found[0], found[0]) for found in _SEQUENCE.finditer(text)]


def fitted(line: str, width: int) -> str:
    """A painted line, cut to the columns of the screen; its colours take no room."""
    parts, left = [], width
    for part in _PAINT.split(line):
        if _PAINT.fullmatch(part):
            parts.append(part)
        elif left > 0:
            shown = cut_to(part, left)
            parts.append(shown)
            left -= width_of(part)
    return "".join(parts)


def _resize(number: int, frame: FrameType | None) -> None:
    """The screen is woken already; without a handler, the signal would wake nobody."""


def _end(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)
