"""The whole terminal as a screen, with single keys, for `top`.

When the `with` block ends, in whatever way, the terminal is as before; also while Ctrl-Z suspends the program.
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
_SEQUENCE_TIMEOUT = 0.05  # seconds in which the rest of a key's sequence comes, also over a slow line
RESIZED = "resized"  # reported like a key: the terminal has another size
GONE = "gone"  # reported like a key: the terminal is closed


class Screen:
    """The terminal of stdin and stdout, for the length of a `with` block."""

    def __init__(self) -> None:
        self._stdin = sys.stdin.fileno()
        self._signal_pipe, self._signal_fd = os.pipe()  # wakes select when a signal comes
        os.set_blocking(self._signal_fd, False)
        self._before: list[object] = []

    @staticmethod
    def is_possible() -> bool:
        """Is there a terminal that can be drawn on?"""
        return sys.stdin.isatty() and sys.stdout.isatty() and os.environ.get("TERM", "") not in ("", "dumb")

    def __enter__(self) -> Screen:
        self._begin()
        self._handlers = {
            number: signal.signal(number, handler)
            for number, handler in (
                (signal.SIGTSTP, self._suspend),
                (signal.SIGTERM, _exit),
                (signal.SIGHUP, _exit),
                (signal.SIGQUIT, _exit),
                (signal.SIGWINCH, _ignore),  # without a handler, the signal would not wake us
            )
        }
        # Python writes to this pipe as the signal comes. A handler could come too late, after a wait has begun.
        self._fd_before = signal.set_wakeup_fd(self._signal_fd, warn_on_full_buffer=False)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        signal.set_wakeup_fd(self._fd_before)
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._finish()
        os.close(self._signal_fd)
        os.close(self._signal_pipe)

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
        self._begin()  # the program continues here, after `fg`

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
        """Wait up to so many seconds for keys, and return them, `RESIZED` and `GONE` among them."""
        ready = select.select([self._stdin, self._signal_pipe], [], [], max(seconds, 0))[0]
        resized = [RESIZED] if self._signal_pipe in ready and os.read(self._signal_pipe, 1_024) else []
        return resized + (self._pressed() if self._stdin in ready else [])

    def _pressed(self) -> list[str]:
        text = self._read()
        if text.endswith(("\x1b", "\x1b[", "\x1bO")) and select.select([self._stdin], [], [], _SEQUENCE_TIMEOUT)[0]:
            text += self._read()
        return keys_in(text) if text else [GONE]

    def _read(self) -> str:
        try:
            return os.read(self._stdin, 1_024).decode(errors="ignore")
        except OSError:  # the terminal is closed
            return ""

    def _write(self, text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()


def keys_in(text: str) -> list[str]:
    """The keys in what a terminal sends: names for special keys, else the character.

    >>> keys_in("j\\x1b[A/")
    ['j', 'up', '/']
    """
    return [_KEYS.get(found[0], found[0]) for found in _SEQUENCE.finditer(text)]


def fitted(line: str, width: int) -> str:
    """A painted line, cut to so many columns; colours take no columns."""
    parts, left = [], width
    for part in _PAINT.split(line):
        if _PAINT.fullmatch(part):
            parts.append(part)
        elif left > 0:
            shown = cut_to(part, left)
            parts.append(shown)
            left -= width_of(part)
    return "".join(parts)


def _ignore(number: int, frame: FrameType | None) -> None:
    pass


def _exit(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)
