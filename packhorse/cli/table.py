"""Tables: fitted to the width of a terminal; in a pipe, with nothing cut.

Commands print them with `print_table`; `top` draws their lines. Texts are escaped here. A character may be two columns
wide, or none.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import NamedTuple

from packhorse.cli.output import escape, is_coloured, paint, say, terminal_size

_MIN_WIDTH = 10  # columns that a flexible cell keeps
_GAP = "  "


class Column(NamedTuple):
    """One column. On a narrow screen, flexible columns shrink down to `least`, and spare ones are left out, the most
    spare first. `style` may depend on the text."""

    title: str
    right: bool = False
    flexible: bool = False
    style: str | Callable[[str], str | None] | None = None
    spare: int = False
    least: int = _MIN_WIDTH

    def style_of(self, text: str) -> str | None:
        return self.style(text) if callable(self.style) else self.style


def print_table(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> None:
    """Print a table on stdout."""
    width = terminal_size().columns if sys.stdout.isatty() else None
    for line in table_lines(columns, rows, width):
        say(line)


def table_lines(columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int | None) -> list[str]:
    """The lines of a table for a screen of this width; None: for a pipe. No id is cut: on a very narrow screen the
    terminal breaks the lines."""
    cells = [[column.title for column in columns], *([escape(text) for text in row] for row in rows)]
    if width is None:
        cells[1:] = [[text or "-" for text in row[:-1]] + row[-1:] for row in cells[1:]]
    else:
        columns, cells = _without_spare(columns, cells, width)
    widths = _widths(columns, cells, width)
    colours = is_coloured(sys.stdout)
    return [_line(columns, row, widths, colours, is_title=not number) for number, row in enumerate(cells)]


def _line(columns: Sequence[Column], row: list[str], widths: list[int], colours: bool, *, is_title: bool) -> str:
    line = []
    for column, text, width in zip(columns, row, widths, strict=True):
        style = "dim" if is_title else column.style_of(text)
        line.append(paint(_padded(text, width, column.right), style, wanted=colours))
    return _GAP.join(line).rstrip()


# --- how wide ---------------------------------------------------------------------------------------------------------


def _without_spare(
    columns: Sequence[Column], cells: list[list[str]], width: int
) -> tuple[Sequence[Column], list[list[str]]]:
    """Leave out spare columns until the rest fits: the most spare first, of equal ones the last."""
    while _least_width(columns, cells) > width and any(column.spare for column in columns):
        gone = max(range(len(columns)), key=lambda place: (columns[place].spare, place))
        columns = [column for place, column in enumerate(columns) if place != gone]
        cells = [[text for place, text in enumerate(row) if place != gone] for row in cells]
    return columns, cells


def _least_width(columns: Sequence[Column], cells: list[list[str]]) -> int:
    wanted = _wanted(cells)
    least = [
        min(width, column.least) if column.flexible else width for width, column in zip(wanted, columns, strict=True)
    ]
    return sum(least) + len(_GAP) * (len(columns) - 1)


def _widths(columns: Sequence[Column], cells: list[list[str]], room: int | None) -> list[int]:
    """The widths of the texts; if that is too much, the widest of the flexible columns shrinks first."""
    widths = _wanted(cells)
    flexible = [place for place, column in enumerate(columns) if column.flexible]
    if room is None or not flexible:
        return widths
    for place in flexible:
        widths[place] = min(widths[place], max(room, _MIN_WIDTH))
    for _ in range(sum(widths) + len(_GAP) * (len(columns) - 1) - room):
        # Columns above their minimum shrink first; on a very narrow screen, all do.
        widest = max(flexible, key=lambda place: (widths[place] > columns[place].least, widths[place]))
        if widths[widest] <= _MIN_WIDTH:
            break
        widths[widest] -= 1
    return widths


def _wanted(cells: list[list[str]]) -> list[int]:
    return [max(map(width_of, texts)) for texts in zip(*cells, strict=True)]


def _padded(text: str, width: int, right: bool) -> str:
    text = cut_to(text, width)
    padding = " " * (width - width_of(text))
    return padding + text if right else text + padding


def width_of(text: str) -> int:
    """How many columns the text takes on a terminal.

    >>> width_of("漢字")
    4
    """
    return len(text) if text.isascii() else sum(map(_width_of_one, text))


def _width_of_one(character: str) -> int:
    import unicodedata  # rarely needed

    if unicodedata.category(character) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def wrapped(text: str, width: int) -> list[str]:
    """The text in lines of at most so many columns, broken between words; a longer word is cut.

    >>> wrapped("no worker is running", 12)
    ['no worker is', 'running']
    """
    lines = [""]
    for word in text.split():
        longer = f"{lines[-1]} {word}" if lines[-1] else word
        if lines[-1] and width_of(longer) > width:
            lines.append(word)
        else:
            lines[-1] = longer
    return [cut_to(line, width) for line in lines]


def cut_to(text: str, width: int) -> str:
    """The text, cut with an ellipsis if it is wider than so many columns."""
    if width_of(text) <= width:
        return text
    kept, used = [], 1  # the ellipsis
    for character in text:
        used += _width_of_one(character)
        if used > width:
            break
        kept.append(character)
    return "".join(kept) + "…" if width > 0 else ""
