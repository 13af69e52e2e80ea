"""What commands print: times, numbers, lines, JSON and progress. `table.py` has the tables.

On a terminal times are relative, and states have colours. In a pipe nothing is cut, times are ISO 8601, and there is
no colour. Control characters in data never reach the terminal.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC
from pathlib import Path
from typing import Any, TextIO

import click
import msgspec

from packhorse.core.clock import MINUTE, SECOND, to_datetime
from packhorse.core.errors import BadValue, did_you_mean
from packhorse.core.job import Job
from packhorse.monitor.serializers import iso
from packhorse.monitor.text import call_text, shorten, span_text, state_text

# Control characters, and those that change the direction of text: a terminal obeys them.
_UNSAFE = re.compile(r"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_UNSAFE_BUT_LINES = re.compile(_UNSAFE.pattern.replace(r"\x00-\x1f", r"\x00-\x08\x0b-\x1f"))
_UNSAFE_IN_JSON = re.compile(_UNSAFE.pattern.replace(r"\x00-\x1f", ""))
_ESCAPES = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}

_CODES = {"bold": 1, "dim": 2, "red": 31, "green": 32, "yellow": 33, "blue": 34, "magenta": 35, "cyan": 36}
_PAINT = re.compile(r"\x1b\[\d*m")
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_SHORT_ID = 8
_MIN_TEXT = 10  # characters of text that a line keeps

STATE_STYLES = {
    "scheduled": "dim",
    "queued": "yellow",
    "reserved": "cyan",
    "running": "cyan",
    "retrying": "magenta",
    "completed": "green",
    "dead": "red",
    "aborted": "dim",
}


# --- text that is safe to show ----------------------------------------------------------------------------------------


def escape(text: str) -> str:
    """The text on one line, with visible control characters.

    >>> escape("a\\x1b[2J\\nb")
    'a\\\\x1b[2J\\\\nb'
    """
    return _UNSAFE.sub(_visible, text)


def escape_lines(text: str) -> str:
    """The text with visible control characters; line breaks stay."""
    return _UNSAFE_BUT_LINES.sub(_visible, text.replace("\r\n", "\n"))


def _visible(found: re.Match[str]) -> str:
    number = ord(found[0])
    return _ESCAPES.get(found[0]) or (f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}")


def json_text(value: Any) -> str:
    """One line of JSON that is safe to show. `msgspec.Raw` values in it are JSON already."""
    return _UNSAFE_IN_JSON.sub(lambda found: f"\\u{ord(found[0]):04x}", msgspec.json.encode(value).decode())


def picked(value: Any, names: Iterable[str]) -> Any:
    """The named fields of an object, in this order. Raise BadValue if it has no such field."""
    fields = msgspec.structs.asdict(value) if isinstance(value, msgspec.Struct) else value
    if not isinstance(fields, dict):
        return value
    for name in names:
        if name not in fields:
            hint = f"the fields are {', '.join(fields)}"
            raise BadValue(f"there is no field {name!r}{did_you_mean(name, fields)}", hint=hint)
    return {name: fields[name] for name in names}


def short_ids(ids: Iterable[str]) -> dict[str, str]:
    """A short form for each id: its end, since ids of the same time begin alike. An id that is no UUID, or whose end is
    not unique here, stays whole."""
    every = list(ids)
    ends = [job_id[-_SHORT_ID:] for job_id in every]
    return {
        job_id: end if _UUID.fullmatch(job_id) and ends.count(end) == 1 else job_id
        for job_id, end in zip(every, ends, strict=True)
    }


def short_id(job_id: str) -> str:
    """The short form of one id."""
    return short_ids([job_id])[job_id]


def short_owner(owner: str) -> str:
    """The short form of a worker's id: its beginning, which is random."""
    return short_id(owner) if _UUID.fullmatch(owner) else owner[:_SHORT_ID]


# --- colour -----------------------------------------------------------------------------------------------------------


def is_coloured(stream: TextIO, wanted: bool | None = None) -> bool:
    """Should this stream have colours? `wanted` decides, else --color of the running command."""
    if wanted is None:
        ctx = click.get_current_context(silent=True)
        wanted = ctx.color if ctx else None
    if wanted is not None:
        return wanted
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def paint(text: str, style: str | None, *, err: bool = False, wanted: bool | None = None) -> str:
    """The text in this style, if there are colours."""
    if not style or not text or not is_coloured(sys.stderr if err else sys.stdout, wanted):
        return text
    return f"\x1b[{_CODES[style]}m{text}\x1b[0m"


def unpainted(text: str) -> str:
    """The text without its colours."""
    return _PAINT.sub("", text)


def unless_zero(style: str | None) -> Callable[[str], str | None]:
    """A column's style, except for zeros, which are dim."""
    return lambda text: "dim" if text in ("-", "0") else style


def say(text: str, *, err: bool = False, end: str = "\n") -> None:
    """Print a line on stdout or stderr. The text is escaped and painted already."""
    click.echo(text + end, err=err, color=True, nl=False)


# --- times and numbers ------------------------------------------------------------------------------------------------


def relative(at: int, now: int) -> str:
    """A time relative to now: "in 4m", "6m ago"."""
    if abs(now - at) < 1_000_000:
        return "now"
    return f"in {span_text(at - now)}" if at > now else f"{span_text(now - at)} ago"


class Display:
    """How one call of the program shows times and numbers. `now` is the storage's time."""

    def __init__(self, now: int, *, utc: bool = False, is_terminal: bool | None = None) -> None:
        self.now = now
        self.utc = utc
        self.is_terminal = sys.stdout.isatty() if is_terminal is None else is_terminal

    def time(self, at: int | None) -> str:
        """A time in a list."""
        if at is None:
            return "-" if self.is_terminal else ""
        return relative(at, self.now) if self.is_terminal else str(iso(at))

    def age(self, since: int | None) -> str:
        """How long ago that was; in a pipe, when it was."""
        if since is None or not self.is_terminal:
            return self.time(since)
        return span_text(self.now - since)

    def clock_time(self, at: int) -> str:
        """A time in a list of events, to the millisecond, with its day if that is not today."""
        if not self.is_terminal:
            return str(iso(at))
        zone = UTC if self.utc else None
        moment, today = to_datetime(at).astimezone(zone), to_datetime(self.now).astimezone(zone)
        day = "" if moment.date() == today.date() else f"{moment:%Y-%m-%d} "
        return f"{day}{moment:%H:%M:%S}.{moment.microsecond // 1000:03}"

    def full_time(self, at: int) -> str:
        """A time in full, and how long ago it was."""
        if not self.is_terminal:
            return str(iso(at))
        moment = to_datetime(at).astimezone(UTC if self.utc else None)
        return f"{moment:%Y-%m-%d %H:%M:%S}{'Z' if self.utc else ''}, {relative(at, self.now)}"

    def number(self, number: int) -> str:
        """A number; on a terminal with separators, and a dash for zero."""
        if not self.is_terminal:
            return str(number)
        return f"{number:,}" if number else "-"


def state_style(text: str) -> str | None:
    """The colour of a state, also with a remark behind it."""
    return STATE_STYLES.get(text.partition(" ")[0])


# --- lines ------------------------------------------------------------------------------------------------------------


def print_pairs(pairs: Iterable[tuple[str, str]], width: int = 10) -> None:
    """Print names and values, one pair below the other; values of several lines are indented."""
    for line in pair_lines(pairs, width):
        say(line)


def pair_lines(pairs: Iterable[tuple[str, str]], width: int = 10) -> Iterator[str]:
    """The lines of names and values."""
    for name, value in pairs:
        first, *rest = escape_lines(value).split("\n")
        yield f"{paint(f'{name:<{width}}', 'dim')} {first}"
        yield from (f"{' ' * (width + 1)}{line}" for line in rest)


def terminal_size() -> os.terminal_size:
    """Columns and lines of the terminal: COLUMNS and LINES, else its own size, else 80 × 24.

    `shutil` has the same, but imports compression, which takes longer than most commands.
    """
    wanted = [int(text) if text.isdigit() else 0 for text in map(_setting, ("COLUMNS", "LINES"))]
    try:
        found = os.get_terminal_size(sys.__stdout__.fileno() if sys.__stdout__ else 1)
    except (OSError, ValueError):
        found = os.terminal_size((80, 24))
    return os.terminal_size(a or b or c for a, b, c in zip(wanted, found, (80, 24), strict=True))


def _setting(name: str) -> str:
    return os.environ.get(name, "")


def fit_line(before: str, text: str) -> str:
    """As much of `text` as fits behind `before` on the terminal's line; in a pipe, all of it."""
    if not sys.stdout.isatty():
        return text
    used = len(unpainted(before))
    return shorten(text, max(terminal_size().columns - used - 1, _MIN_TEXT))


def place_text(place: str | None) -> str:
    """Where a failure happened, relative to the current directory."""
    return (place or "").removeprefix(f"{Path.cwd()}{os.sep}")


def ran_text(ran: int) -> str:
    """How long an attempt ran."""
    return f"{ran / SECOND:.2f} s" if SECOND <= ran < MINUTE else span_text(ran)


def job_line(job: Job, job_id: str) -> str:
    """The job on one line, for questions and notices."""
    return f"{job_id}  {state_text(job):<9}  {shorten(escape(call_text(job)), 80)}"


# --- progress ---------------------------------------------------------------------------------------------------------

_BAR_WIDTH = 24


class ProgressLine:
    """A bar on a terminal, a line for every tenth elsewhere, on stderr. Call `clear` before printing anything else."""

    def __init__(self, title: str, *, quiet: bool = False) -> None:
        self._title = title
        self._quiet = quiet
        self._is_terminal = sys.stderr.isatty()
        self._is_drawn = False
        self._last_tenth = 0

    def update(self, percent: int, text: str = "") -> None:
        """Show this progress."""
        if self._quiet:
            return
        if self._is_terminal:
            self._draw(percent, text)
        elif percent // 10 > self._last_tenth:
            self._last_tenth = percent // 10
            say(f"{self._title} {percent} % {escape(text)}".rstrip(), err=True)

    def clear(self) -> None:
        """Remove the bar."""
        if self._is_drawn:
            sys.stderr.write("\r\x1b[2K")
            sys.stderr.flush()
            self._is_drawn = False

    def _draw(self, percent: int, text: str) -> None:
        room = terminal_size().columns - 1  # a longer line cannot be drawn over
        width = min(_BAR_WIDTH, max(room // 4, 1))
        room = max(room - width - len("    100 %"), 0)
        note = escape(text)
        title = _fitting(self._title, room - min(len(note) + 2, room // 2))
        note = _fitting(note, room - len(title) - 2)
        done = round(width * min(percent, 100) / 100)
        bar = paint("━" * done, "cyan", err=True) + paint("─" * (width - done), "dim", err=True)
        sys.stderr.write(f"\r\x1b[2K{title}  {bar}  {percent:>3} %{f'  {note}' if note else ''}")
        sys.stderr.flush()
        self._is_drawn = True


def _fitting(text: str, most: int) -> str:
    """The text, or as much of it as has so many characters."""
    if len(text) <= most:
        return text
    return shorten(text, most - 1) if most > 0 else ""
