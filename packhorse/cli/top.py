"""A live view of everything: `packhorse top`. Five panes, single keys, drawn again every second.

`Top` is what is shown and what keys do, without a terminal; the command gives it one. Where there is none that could be
drawn on, one frame is printed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from enum import Enum
from typing import NamedTuple

import click

from packhorse.cli.deeds import Deeds
from packhorse.cli.failures import all_causes, cause_lines
from packhorse.cli.invocation import Invocation
from packhorse.cli.job_page import page_lines
from packhorse.cli.options import by_option, command, span_option
from packhorse.cli.output import Shown, escape, paint, say, short_id, terminal_size, unpainted
from packhorse.cli.panes import PANES, Failures, Looked, Pane, Queues, Row, Running, Workers, list_lines
from packhorse.cli.screen import GONE, RESIZED, Screen
from packhorse.cli.snapshot import Snapshot, take_snapshot
from packhorse.cli.status import header_lines, status_fields
from packhorse.cli.table import table_lines
from packhorse.client.app import Packhorse
from packhorse.core.clock import SECOND
from packhorse.core.errors import PackhorseError, StorageError
from packhorse.core.job import HELD, UNFINISHED
from packhorse.storage.records import Filter
from packhorse.storage.transfer import problems

_REVERSE, _PLAIN = "\x1b[7m", "\x1b[0m"
_FASTEST, _SLOWEST = 0.25, 60.0
_LISTED = 200
_HELP = """\
1 … 5, Tab     running, queues, failures, workers, tasks
j k, arrows    down and up; Page Up and Page Down; g first, G last
Enter          open a job, a cause, a queue or a worker; Escape goes back
x              mark a row, or take the mark away; what comes is done to all
l              follow the log of a job
a, c           abort a job
r              retry a job, or all jobs of a cause
m              silence a cause for a day, or undo it
p              pause or resume a queue
/              show only what has this text in it; Escape shows all again
s              sort by something else
+ -            look more often, or less
?              this page
q, Ctrl-C      end\
"""


@command("top", "packhorse top", "packhorse top --every 5s", "packhorse top --once | head -20")
@click.option("--once", is_flag=True, help="Print one frame, and end.")
@span_option("--every", default="1s", show_default=True, help="How often to look.")
@by_option
def top(invocation: Invocation, once: bool, every: int, by: str | None) -> None:
    """Watch jobs, queues, failures, workers and tasks live, and act on them with single keys; ? shows which. On a
    terminal that cannot be drawn on, or in a pipe, it prints one frame."""
    if invocation.as_json:
        snapshot = take_snapshot(invocation.storage, invocation.settings)
        invocation.print_json(status_fields(invocation, snapshot))
        return
    is_live = Screen.is_possible() and not once
    watched = Top(invocation, every / SECOND, by, is_live=is_live)
    if not is_live:
        watched.look()
        for line in watched.frame():
            say(line)
        return
    try:
        with Screen() as screen:
            while not watched.is_over:
                watched.look()
                screen.draw(watched.lines(*screen.size))
                _hear(watched, screen)
    except KeyboardInterrupt:
        return


def _hear(watched: Top, screen: Screen) -> None:
    """Take keys until it is time to look again, or a key has changed something."""
    deadline = time.monotonic() + watched.every
    while not watched.is_over and not watched.is_stale and (left := deadline - time.monotonic()) > 0:
        for key in screen.keys(left):
            watched.press(key)
            screen.draw(watched.lines(*screen.size))


def _head(snapshot: Snapshot, width: int | None) -> list[str]:
    """What is above the panes."""
    lines = [line for text in header_lines(snapshot, width) for line in text.split("\n")]
    return [*lines, *(paint(escape(told), "red") for told in problems(snapshot.move))]


class Question(NamedTuple):
    """What is asked before something is changed, and what a yes does; it answers what was done, in words."""

    text: str
    do: Callable[[], str]


class Kind(Enum):
    """What a row, or a page, is about."""

    JOB = "job"
    CAUSE = "cause"
    OTHER = "other"


class Detail(NamedTuple):
    """One thing, opened. `read` is asked at each look."""

    key: str
    read: Callable[[Shown], list[str]]
    kind: Kind


def _jobs_text(ids: Sequence[str]) -> str:
    return f"job {short_id(ids[0])}" if len(ids) == 1 else f"{len(ids)} jobs"


class Top:
    """What is shown, and what keys do to it."""

    def __init__(self, invocation: Invocation, every: float, by: str | None, *, is_live: bool = True) -> None:
        self.every = min(max(every, _FASTEST), _SLOWEST)
        self.is_over = False
        self.is_stale = False  # something has been changed: look again at once
        self._invocation = invocation
        self._is_live = is_live
        self._client: Packhorse = invocation.client
        self._deeds = Deeds(self._client, by)
        self._panes: list[Pane] = [make() for make in PANES]
        self._pane = self._panes[0]
        self._sorts = {pane.title: 0 for pane in self._panes}
        self._looked: Looked | None = None
        self._rows: list[Row] = []
        self._key: str | None = None  # of the row that is chosen
        self._at = 0  # where that row was seen last
        self._marked: set[str] = set()  # keys of rows
        self._find = ""
        self._typed: str | None = None  # of a search that is being written
        self._question: Question | None = None
        self._detail: Detail | None = None
        self._detail_lines: list[str] = []
        self._scroll = 0
        self._has_help = False
        self._message = ""
        self._trouble = ""

    # --- looking ----------------------------------------------------------------------------------------------------

    def look(self) -> None:
        """Read what is shown. A storage that does not answer is told of, and asked again at the next look."""
        self.is_stale = False
        try:
            snapshot = take_snapshot(self._client.storage, self._invocation.settings)
            shown = Shown(snapshot.now, utc=self._invocation.utc, is_terminal=self._is_live or None)
            self._looked = Looked(self._client, snapshot, shown)
            self._rows = self._fitting(self._pane.rows(self._looked))
            self._keep_place()
            if self._detail is not None:
                self._detail_lines = self._detail.read(shown)
            self._trouble = ""
        except StorageError as error:
            if self._looked is None:
                raise
            self._trouble = f"{error.what}; what you see is what was there before"
        except PackhorseError as error:  # the job that was open is gone
            self._detail, self._message = None, error.what

    def _keep_place(self) -> None:
        """Rows come and go: the chosen one is followed, and where it is gone the one in its place is chosen. So no key
        falls on a row that has just moved in elsewhere."""
        keys = [row.key for row in self._rows]
        self._marked &= set(keys)
        if self._key in keys:
            self._at = keys.index(self._key)
        elif keys:
            self._at = min(self._at, len(keys) - 1)
            self._key = keys[self._at]

    def _fitting(self, rows: list[Row]) -> list[Row]:
        place = self._sorts[self._pane.title]
        fits = [row for row in rows if self._find.lower() in " ".join(row.cells).lower()]
        return sorted(fits, key=lambda row: row.sorts[place])

    # --- showing ----------------------------------------------------------------------------------------------------

    def frame(self) -> list[str]:
        """The pane as it is printed where there is no screen."""
        looked = self._seen()
        width = terminal_size().columns if looked.shown.is_terminal else None
        return [*_head(looked.snapshot, width), "", *(self._table(width) if self._rows else [self._pane.empty])]

    def lines(self, width: int, height: int) -> list[str]:
        """The whole screen."""
        looked = self._seen()
        head = _head(looked.snapshot, width)
        if self._trouble:
            head.append(paint(escape(self._trouble), "red"))
        head.append(self._tabs())
        room = max(1, height - len(head) - 1)
        body = self._body(width, room)
        return [*head, *body, *[""] * (room - len(body)), self._foot()]

    def _tabs(self) -> str:
        tabs = [
            paint(f"{number} {pane.title}", "bold") if pane is self._pane else paint(f"{number} {pane.title}", "dim")
            for number, pane in enumerate(self._panes, 1)
        ]
        sort = self._pane.sorts[self._sorts[self._pane.title]]
        find = f"  /{escape(self._find)}" if self._find else ""
        return "  ".join(tabs) + paint(f"   by {sort}, every {self.every:g}s{find}", "dim")

    def _body(self, width: int, room: int) -> list[str]:
        if self._has_help:
            return _HELP.split("\n")[:room]
        if self._detail is not None:
            self._scroll = max(0, min(self._scroll, len(self._detail_lines) - room))
            return self._detail_lines[self._scroll : self._scroll + room]
        if not self._rows:
            return [self._pane.empty if not self._find else f"Nothing here has {self._find!r} in it."]
        title, *rows = self._marked_table(width) if self._marked else self._table(width)
        place = self._place()
        rows[place] = f"{_REVERSE}{unpainted(rows[place]):<{width}}{_PLAIN}"
        first = max(0, min(place - (room - 1) // 2, len(rows) - (room - 1)))
        return [title, *rows[first : first + room - 1]]

    def _table(self, width: int | None) -> list[str]:
        return table_lines(self._pane.columns, [row.cells for row in self._rows], width)

    def _marked_table(self, width: int) -> list[str]:
        title, *lines = self._table(width - 2)
        marks = ("* " if row.key in self._marked else "  " for row in self._rows)
        return [f"  {title}", *(mark + line for mark, line in zip(marks, lines, strict=True))]

    def _foot(self) -> str:
        if self._typed is not None:
            return f"/{escape(self._typed)}"
        if self._question is not None:
            return paint(f"{self._question.text} [y/N]", "yellow")
        if self._message:
            return escape(self._message)
        hints = [self._pane.hints]
        if self._detail is not None:
            does = {Kind.JOB: "l log  a abort  r retry", Kind.CAUSE: "r retry all of it"}
            hints = ["Escape back", does.get(self._detail.kind, "")]
        elif self._marked:
            hints = [f"{len(self._marked)} marked", *hints]
        return paint("  ".join(filter(None, [*hints, "/ find  s sort  ? help  q end"])), "dim")

    def _seen(self) -> Looked:
        if self._looked is None:
            self.look()
        assert self._looked is not None
        return self._looked

    # --- keys -------------------------------------------------------------------------------------------------------

    def press(self, key: str) -> None:
        """Do what this key means here and now."""
        if key == RESIZED:
            return  # it is drawn anew, and what was asked is still asked
        self._message = ""
        if key == GONE:
            self.is_over = True
        elif self._typed is not None:
            self._type(key)
        elif self._question is not None:
            self._answer(key)
        elif key in ("q", "\x03"):
            self.is_over = True
        elif key == "?":
            self._has_help = not self._has_help
        elif key in ("escape", "left", "backspace"):
            self._go_back()
        elif self._has_help:
            self._has_help = False
        elif key in ("+", "="):
            self.every = max(_FASTEST, self.every / 2)
        elif key == "-":
            self.every = min(_SLOWEST, self.every * 2)
        elif not self._turn(key) and not self._move(key):
            self._act(key)

    def _turn(self, key: str) -> bool:
        """To another pane."""
        here = self._panes.index(self._pane)
        if key in ("tab", "back tab"):
            there = (here + (1 if key == "tab" else -1)) % len(self._panes)
        elif key.isdecimal() and 1 <= int(key) <= len(self._panes):
            there = int(key) - 1
        else:
            return False
        self._pane, self._detail, self._key, self._find = self._panes[there], None, None, ""
        self._at, self._marked = 0, set()
        self._refresh()
        return True

    def _move(self, key: str) -> bool:
        steps = {"j": 1, "down": 1, "k": -1, "up": -1, "page down": 10, " ": 10, "page up": -10}
        ends = {"g": -(10**9), "home": -(10**9), "G": 10**9, "end": 10**9}
        step = {**steps, **ends}.get(key)
        if step is None:
            return False
        if self._detail is not None:
            self._scroll = max(0, min(self._scroll + step, len(self._detail_lines)))
        elif self._rows:
            self._at = max(0, min(self._place() + step, len(self._rows) - 1))
            self._key = self._rows[self._at].key
        return True

    def _place(self) -> int:
        """Where the chosen row is now; rows come and go."""
        return next((place for place, row in enumerate(self._rows) if row.key == self._key), 0)

    def _go_back(self) -> None:
        if self._has_help:
            self._has_help = False
        elif self._detail is not None:
            self._detail = None
        elif self._marked:
            self._marked = set()
        else:
            self._find = ""
            self._refresh()

    def _type(self, key: str) -> None:
        typed = self._typed or ""
        if key == "enter":
            self._typed = None
        elif key == "escape":
            self._typed, self._find = None, ""
            self._refresh()
        elif key == "backspace" or (len(key) == 1 and key.isprintable()):
            self._typed = self._find = typed[:-1] if key == "backspace" else typed + key
            self._refresh()

    def _answer(self, key: str) -> None:
        question, self._question = self._question, None
        if question is None or key not in ("y", "Y"):
            self._message = "nothing was done"
            return
        try:
            self._message = question.do()
        except PackhorseError as error:
            self._message = error.what
        self.is_stale = True

    def _refresh(self) -> None:
        self.look()
        self._scroll = 0

    # --- doing ------------------------------------------------------------------------------------------------------

    def _act(self, key: str) -> None:
        if key == "/":
            self._typed = ""
        elif key == "s" and self._detail is None:
            self._sorts[self._pane.title] = (self._sorts[self._pane.title] + 1) % len(self._pane.sorts)
            self._refresh()
        elif self._detail is not None:
            self._act_on(key, self._detail.kind, [self._detail.key])
        elif self._rows and key == "x":
            self._marked ^= {self._rows[self._place()].key}
            self._move("j")
        elif self._rows:
            chosen = self._rows[self._place()].key
            marked = [row.key for row in self._rows if row.key in self._marked]
            self._act_on_row(key, chosen, marked or [chosen])

    def _act_on_row(self, key: str, chosen: str, keys: Sequence[str]) -> None:
        if key in ("enter", "l"):
            self._open_row(key, chosen)
        elif isinstance(self._pane, Running):
            self._act_on(key, Kind.JOB, keys)
        elif isinstance(self._pane, Failures):
            self._act_on(key, Kind.CAUSE, keys)
        elif isinstance(self._pane, Queues) and key == "p":
            self._ask_to_pause(keys)

    def _open_row(self, key: str, chosen: str) -> None:
        """Show more of the row under the cursor, whatever is marked."""
        if isinstance(self._pane, Running):
            read = self._page if key == "enter" else self._log
            self._open(Detail(chosen, lambda shown: read(chosen, shown), Kind.JOB))
        elif key == "l":
            return
        elif isinstance(self._pane, Failures):
            self._open(Detail(chosen, lambda shown: self._about_cause(chosen, shown), Kind.CAUSE))
        elif isinstance(self._pane, Queues):
            where = Filter(queue=chosen, states=UNFINISHED)
            self._open(Detail(chosen, lambda shown: self._list(where, f"in line in {chosen}", shown), Kind.OTHER))
        elif isinstance(self._pane, Workers):
            held = Filter(owner=chosen, states=HELD)
            self._open(Detail(chosen, lambda shown: self._list(held, f"in the hands of {chosen}", shown), Kind.OTHER))

    def _act_on(self, key: str, kind: Kind, keys: Sequence[str]) -> None:
        if kind is Kind.JOB and key == "l":
            (job_id,) = keys
            self._open(Detail(job_id, lambda shown: self._log(job_id, shown), Kind.JOB))
        elif kind is Kind.JOB and key in ("a", "c"):
            self._ask("abort", _jobs_text(keys), keys, self._deeds.abort)
        elif kind is Kind.JOB and key == "r":
            self._ask("retry", _jobs_text(keys), keys, self._deeds.retry)
        elif kind is Kind.CAUSE and key == "r":
            whom = "all jobs of this cause" if len(keys) == 1 else f"all jobs of {len(keys)} causes"
            self._ask("retry", whom, keys, self._deeds.retry_cause)
        elif kind is Kind.CAUSE and key == "m":
            self._ask_to_silence(keys)

    def _ask_to_silence(self, causes: Sequence[str]) -> None:
        """Silence them for a day, or undo it if all are silenced."""
        storage = self._client.storage
        now, whom = storage.now(), "this cause" if len(causes) == 1 else f"{len(causes)} causes"
        silenced = {each.group.cause for each in all_causes(storage) if each.group.is_silenced(now)}
        if silenced.issuperset(causes):
            self._ask("unsilence", whom, causes, self._deeds.unsilence)
        else:
            self._ask("silence", f"{whom} for a day", causes, self._deeds.silence)

    def _ask_to_pause(self, queues: Sequence[str]) -> None:
        """Pause them, or resume them if all are paused."""
        paused = {each.name for each in self._seen().snapshot.queues if each.is_paused}
        verb, do = ("resume", self._deeds.resume) if paused.issuperset(queues) else ("pause", self._deeds.pause)
        self._ask(verb, escape(", ".join(queues)), queues, do)

    def _ask(self, verb: str, whom: str, keys: Sequence[str], do: Callable[[str], str]) -> None:
        self._question = Question(f"{verb} {whom}?", lambda: self._do_all(keys, do))

    def _do_all(self, keys: Sequence[str], do: Callable[[str], str]) -> str:
        """Do it to each; of many it is told how many went well, and what stood in the way of the last that did not."""
        if len(keys) == 1:
            return do(keys[0])
        wrong = []
        for key in keys:
            try:
                do(key)
            except StorageError:
                raise
            except PackhorseError as error:
                wrong.append(error.what)
        self._marked = set()
        return f"{len(keys) - len(wrong)} of {len(keys)} done{f'; {wrong[-1]}' if wrong else ''}"

    def _open(self, detail: Detail) -> None:
        self._detail = detail
        self._refresh()

    def _page(self, job_id: str, shown: Shown) -> list[str]:
        return list(page_lines(self._client.get(job_id), shown, self._client.tasks()))

    def _log(self, job_id: str, shown: Shown) -> list[str]:
        lines = [f"{shown.clock_time(line.at)}  {escape(line.message)}" for line in self._client.get(job_id).logs()]
        self._scroll = len(lines)  # the end of it, as it grows
        return lines or ["It has written no log."]

    def _list(self, where: Filter, what: str, shown: Shown) -> list[str]:
        """The first jobs that fit, in their order."""
        jobs = self._client.storage.find(where, limit=_LISTED).jobs
        return list_lines(jobs, shown, terminal_size().columns) if jobs else [f"No job is {escape(what)}."]

    def _about_cause(self, cause: str, shown: Shown) -> list[str]:
        groups = [group for group in self._client.storage.failures(limit=500) if group.cause == cause]
        return list(cause_lines(self._client.storage, shown, groups[0])) if groups else ["It is there no more."]
