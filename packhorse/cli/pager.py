"""Page what is longer than the screen, on a terminal only, with click's pager."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Iterator
from typing import TextIO

import click

from packhorse.cli.output import terminal_size, unpainted

_NO_PAGER = ("", "0", "cat")


@contextlib.contextmanager
def paged(wanted: bool = True) -> Iterator[None]:
    """Hold back what this block prints. If it fits on the screen, print it; else hand it to the pager."""
    if not wanted or not _is_possible():
        yield
        return
    printed: list[tuple[TextIO, str]] = []
    notices = _HeldStream(sys.stderr, printed) if sys.stderr.isatty() else sys.stderr
    try:
        with contextlib.redirect_stdout(_HeldStream(sys.stdout, printed)), contextlib.redirect_stderr(notices):
            yield
    finally:
        _release(printed)


def _is_possible() -> bool:
    is_off = os.environ.get("PACKHORSE_NO_PAGER", "0") not in ("", "0") or _pager() in _NO_PAGER
    return not is_off and sys.stdout.isatty() and os.environ.get("TERM", "") not in ("", "dumb")


def _pager() -> str | None:
    """The pager that the user wants; None: click chooses."""
    return os.environ.get("PACKHORSE_PAGER", os.environ.get("PAGER"))


def _release(printed: list[tuple[TextIO, str]]) -> None:
    if sum(_height(text) for _, text in printed) < terminal_size().lines:
        for stream, text in printed:
            stream.write(text)
            stream.flush()
        return
    os.environ.setdefault("LESS", "FRX")  # shows colours and leaves the text on the screen
    if pager := _pager():
        os.environ["PAGER"] = pager
    click.echo_via_pager("".join(text for _, text in printed).removesuffix("\n"), color=True)


def _height(text: str) -> int:
    """How many lines of the screen the text takes; the terminal breaks long ones."""
    width = max(1, terminal_size().columns)
    lines = text.split("\n")
    return len(lines) - 1 + sum(max(0, len(unpainted(line)) - 1) // width for line in lines)


class _HeldStream(io.TextIOBase):
    """Stands in for stdout or stderr, and keeps what is written."""

    def __init__(self, stream: TextIO, printed: list[tuple[TextIO, str]]) -> None:
        self._stream = stream
        self._printed = printed

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
        self._printed.append((self._stream, text))
        return len(text)
