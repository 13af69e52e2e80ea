"""A line on stderr that shows how far something is: a bar on a terminal, a line for every tenth elsewhere."""

from __future__ import annotations

import sys

from packhorse.cli.output import escape, paint, say, terminal_size
from packhorse.monitor.text import shorten

_WIDTH = 24


class ProgressLine:
    """One bar, drawn over itself. Whoever prints something else calls `clear` first."""

    def __init__(self, title: str, *, quiet: bool = False) -> None:
        self._title = title
        self._quiet = quiet
        self._is_terminal = sys.stderr.isatty()
        self._is_drawn = False
        self._last_tenth = 0

    def update(self, percent: int, text: str = "") -> None:
        """Show that so much is done."""
        if self._quiet:
            return
        if self._is_terminal:
            self._draw(percent, text)
        elif percent // 10 > self._last_tenth:
            self._last_tenth = percent // 10
            say(f"{self._title} {percent} % {escape(text)}".rstrip(), err=True)

    def clear(self) -> None:
        """Take the bar away."""
        if self._is_drawn:
            sys.stderr.write("\r\x1b[2K")
            sys.stderr.flush()
            self._is_drawn = False

    def _draw(self, percent: int, text: str) -> None:
        room = terminal_size().columns - 1  # a line that is longer could not be drawn over
        width = min(_WIDTH, max(room // 4, 1))
        room = max(room - width - len("    100 %"), 0)
        told = escape(text)
        title = _fitting(self._title, room - min(len(told) + 2, room // 2))
        told = _fitting(told, room - len(title) - 2)
        done = round(width * min(percent, 100) / 100)
        bar = paint("━" * done, "cyan", err=True) + paint("─" * (width - done), "dim", err=True)
        sys.stderr.write(f"\r\x1b[2K{title}  {bar}  {percent:>3} %{f'  {told}' if told else ''}")
        sys.stderr.flush()
        self._is_drawn = True


def _fitting(text: str, most: int) -> str:
    """The beginning of a text, of so many signs at most."""
    if len(text) <= most:
        return text
    return shorten(text, most - 1) if most > 0 else ""
