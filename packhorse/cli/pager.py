"""A pager for what is longer than the screen: on a terminal only, and only for commands that print and end.

What is printed is held back until it no longer fits on the screen; then a pager is started, and is handed it and all
that follows. What fits is printed as if nothing had been. Notices on the same terminal stay in their place.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Iterator
from typing import IO, TYPE_CHECKING, TextIO

from packhorse.cli.output import terminal_size, unpainted

if TYPE_CHECKING:
    import subprocess

_USUAL = "less -FRX"  # ends by itself if it all fits, shows colours, leaves the text on the screen
_NO = ("", "0", "cat")


@contextlib.contextmanager
def paged(wanted: bool = True) -> Iterator[None]:
    """Page what is printed in this block, if it is wanted and there is a terminal."""
    command = _command() if wanted and _is_possible() else None
    if command is None:
        yield
        return
    pages = Pages(command, sys.stdout)
    notices = Sheet(pages, sys.stderr) if sys.stderr.isatty() else sys.stderr
    try:
        with contextlib.redirect_stdout(Sheet(pages, sys.stdout)), contextlib.redirect_stderr(notices):
            yield
    except BrokenPipeError:  # the reader has seen enough
        if not pages.is_begun:
            raise
    finally:
        pages.close()


def _is_possible() -> bool:
    is_off = os.environ.get("PACKHORSE_NO_PAGER", "0") not in ("", "0")
    return not is_off and sys.stdout.isatty() and os.environ.get("TERM", "") not in ("", "dumb")


def _command() -> list[str] | None:
    """The pager that the user wants; None: none."""
    words = next((os.environ[name] for name in ("PACKHORSE_PAGER", "PAGER") if name in os.environ), _USUAL)
    if words.strip() in _NO:
        return None
    import shlex

    try:
        return shlex.split(words)
    except ValueError:  # a quotation mark that is not closed
        return shlex.split(_USUAL)


class Sheet(io.TextIOBase):
    """Stands in for stdout or stderr while pages are written."""

    def __init__(self, pages: Pages, stream: TextIO) -> None:
        self._pages = pages
        self._stream = stream

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._stream.encoding

    @property
    def errors(self) -> str | None:  # type: ignore[override]
        return self._stream.errors

    def isatty(self) -> bool:
        return self._stream.isatty()

    def fileno(self) -> int:
        return self._stream.fileno()

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        if not isinstance(text, str):
            raise TypeError(f"text, not {type(text).__name__}")
        self._pages.write(self._stream, text)
        return len(text)


class Pages:
    """What is printed: held back, then in a pager, or where it belongs."""

    def __init__(self, command: list[str], out: TextIO) -> None:
        self._command = command
        self._out = out
        self._held: list[tuple[TextIO, str]] = []
        self._height = 0
        self._pager: subprocess.Popen[bytes] | None = None
        self._is_plain = False  # there is no pager, so all is printed as it comes

    @property
    def is_begun(self) -> bool:
        """Has the pager been started?"""
        return self._pager is not None

    def write(self, stream: TextIO, text: str) -> None:
        """Print this, sooner or later."""
        if self._is_plain:
            stream.write(text)
        elif self._pager is not None and self._pager.stdin is not None:
            self._feed(self._pager.stdin, text)
        else:
            self._held.append((stream, text))
            self._height += _height(text)
            if self._height >= terminal_size().lines:
                self._begin()

    def _begin(self) -> None:
        import subprocess  # slow to load, and seldom needed

        environment = {"LESS": "FRX", "LV": "-c", **os.environ}
        try:
            self._pager = subprocess.Popen(self._command, stdin=subprocess.PIPE, env=environment)
        except (OSError, ValueError):  # it is not installed here
            self._release()
            return
        held, self._held = self._held, []
        for stream, text in held:
            self.write(stream, text)

    def _feed(self, stdin: IO[bytes], text: str) -> None:
        stdin.write(text.encode(self._out.encoding, self._out.errors or "strict"))
        stdin.flush()

    def _release(self) -> None:
        self._is_plain = True
        for stream, text in self._held:
            stream.write(text)
            stream.flush()
        self._held = []

    def close(self) -> None:
        """Print what was held back, or wait until the reader has put the pager away."""
        if self._pager is None:
            self._release()
            return
        import signal

        # The pager hears Ctrl-C too, and may well go on; who ends before it leaves two that read one keyboard.
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            if self._pager.stdin is not None:
                with contextlib.suppress(BrokenPipeError):
                    self._pager.stdin.close()
            self._pager.wait()
        finally:
            signal.signal(signal.SIGINT, before)


def _height(text: str) -> int:
    """How many lines of the screen a text takes; long ones are broken by the terminal."""
    width = max(1, terminal_size().columns)
    ends = text.split("\n")
    return len(ends) - 1 + sum(max(0, len(unpainted(line)) - 1) // width for line in ends)
