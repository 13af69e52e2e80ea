"""A live view of everything: `packhorse top`. Five panes, single keys, drawn again every second.

`Top` is what is shown and what keys do, without a terminal; the command gives it one. Where there is none that could be
drawn on, one frame is printed.
"""

from __future__ import annotations

import os
import re
import select
import signal
import sys
import termios
import time
import tty
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from enum import Enum
from types import FrameType, TracebackType
from typing import Any, ClassVar, NamedTuple

import click

from packhorse.cli.commands.failures import SILENCED, all_causes, cause_lines
from packhorse.cli.commands.job import page_lines
from packhorse.cli.commands.jobs import job_table
from packhorse.cli.commands.stats import TASK_COLUMNS, known_tasks, task_cells
from packhorse.cli.commands.status import QUEUE_COLUMNS, header_lines, queue_cells, status_fields
from packhorse.cli.commands.workers import holds_of
from packhorse.cli.context import CommandContext
from packhorse.cli.options import by_option, command, span_option
from packhorse.cli.output import (
    Shown,
    escape,
    paint,
    say,
    short_id,
    short_owner,
    terminal_size,
    unless_nought,
    unpainted,
)
from packhorse.cli.snapshot import Snapshot, number_in, take_snapshot
from packhorse.cli.table import Column, cut_to, table_lines, width_of
from packhorse.client.app import Packhorse
from packhorse.core.clock import DAY, SECOND
from packhorse.core.errors import PackhorseError, StorageError
from packhorse.core.event import Subject
from packhorse.core.job import HELD, UNFINISHED, Job, State
from packhorse.monitor.filters import find_all
from packhorse.monitor.liveness import busy_slots, is_alive, presence_of
from packhorse.monitor.text import attempt_text, call_text, count_text, note_text, span_text
from packhorse.storage import BATCH
from packhorse.storage.records import Filter, JobVersion, Span
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
def top(context: CommandContext, once: bool, every: int, by: str | None) -> None:
    """Watch jobs, queues, failures, workers and tasks live, and act on them with single keys; ? shows which. On a
    terminal that cannot be drawn on, or in a pipe, it prints one frame."""
    if context.as_json:
        snapshot = take_snapshot(context.storage, context.settings)
        context.print_json(status_fields(context, snapshot))
        return
    is_live = Screen.is_possible() and not once
    watched = Top(context, every / SECOND, by, is_live=is_live)
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

    def __init__(self, context: CommandContext, every: float, by: str | None, *, is_live: bool = True) -> None:
        self.every = min(max(every, _FASTEST), _SLOWEST)
        self.is_over = False
        self.is_stale = False  # something has been changed: look again at once
        self._context = context
        self._is_live = is_live
        self._client: Packhorse = context.client
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
            snapshot = take_snapshot(self._client.storage, self._context.settings)
            shown = Shown(snapshot.now, utc=self._context.utc, is_terminal=self._is_live or None)
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


_MOST = 500


class Row(NamedTuple):
    """One line of a pane: whose it is, what is shown, and by what it may be sorted, in the order of `Pane.sorts`."""

    key: str
    cells: Sequence[str]
    sorts: Sequence[Any] = ()


class Looked(NamedTuple):
    """What a pane may read from."""

    client: Packhorse
    snapshot: Snapshot
    shown: Shown


def _span(since: int | None, looked: Looked) -> str:
    """How long ago that was; in a pipe too, where there is one look only."""
    return "-" if since is None else span_text(looked.shown.now - since)


def list_lines(jobs: Sequence[Job], shown: Shown, width: int) -> list[str]:
    """Jobs as the lines of a table, for what belongs to a queue or a worker."""
    return table_lines(*job_table(shown, jobs), width)


class Pane(ABC):
    """One pane."""

    title: ClassVar[str]
    columns: ClassVar[Sequence[Column]]
    sorts: ClassVar[Sequence[str]]  # what it can be sorted by; the first is how it comes
    empty: ClassVar[str]
    hints: ClassVar[str] = ""  # the keys that do something here

    @abstractmethod
    def rows(self, looked: Looked) -> list[Row]:
        """What there is to show now."""


class Running(Pane):
    title = "running"
    columns = (
        Column("ID"),
        Column("RAN", right=True),
        Column("TRY", right=True, spare=True),
        Column("QUEUE", flexible=True, spare=True),
        Column("CALL", flexible=True, least=30),
        Column("DOES", flexible=True, style="dim"),
        Column("WORKER", spare=True, style="dim"),
    )
    sorts = ("longest", "task", "worker")
    empty = "Nothing runs."
    hints = "Enter job  l log  x mark  a abort"

    def rows(self, looked: Looked) -> list[Row]:
        jobs = looked.client.storage.find(Filter(states=frozenset({State.RUNNING})), limit=_MOST).jobs
        return [
            Row(
                job.id,
                [
                    short_id(job.id),
                    _span(job.started_at, looked),
                    attempt_text(looked.client.effective_job(job)),
                    job.queue,
                    call_text(job),
                    note_text(job),
                    short_owner(job.owner or ""),
                ],
                (job.started_at or 0, job.task, job.owner or ""),
            )
            for job in jobs
        ]


class Queues(Pane):
    title = "queues"
    columns = QUEUE_COLUMNS
    sorts = ("oldest", "name", "held")
    empty = "There are no queues yet: the first job makes one."
    hints = "Enter jobs  x mark  p pause or resume"

    def rows(self, looked: Looked) -> list[Row]:
        now = looked.snapshot.now
        return [
            Row(
                queue.name,
                queue_cells(looked.snapshot, queue),
                (queue.oldest_queued_at or now, queue.name, -number_in(queue, HELD)),
            )
            for queue in looked.snapshot.queues
        ]


class Failures(Pane):
    title = "failures"
    columns = (
        Column("COUNT", right=True, style="red"),
        Column("TASK", style=lambda text: "dim" if text.endswith(SILENCED) else None),
        Column("ERROR", flexible=True),
        Column("WHERE", spare=True, style="dim"),
        Column("LAST", right=True),
    )
    sorts = ("latest", "count", "task")
    empty = "Nothing has failed."
    hints = "Enter cause  x mark  r retry all of it  m silence or unsilence"

    def rows(self, looked: Looked) -> list[Row]:
        now, rows = looked.snapshot.now, []
        for group in (each.group for each in all_causes(looked.client.storage)):
            is_silenced = group.is_silenced(now)  # below the others, whatever they are sorted by
            cells = [
                f"{group.number:,}",
                f"{group.task}{SILENCED if is_silenced else ''}",
                group.pattern,
                (group.place or "-").rpartition("/")[2],
                _span(group.last_at, looked),
            ]
            sorts = (-group.last_at, -group.number, group.task)
            rows.append(Row(group.cause, cells, [(is_silenced, each) for each in sorts]))
        return rows


class Workers(Pane):
    title = "workers"
    columns = (
        Column("WORKER"),
        Column("KIND"),
        Column("HOST", flexible=True),
        Column("PID", right=True),
        Column("BUSY", right=True, style=unless_nought("cyan")),
        Column("DONE", right=True, style=unless_nought(None)),
        Column("FAILED", right=True, style=unless_nought("red"), spare=True),
        Column("UP", right=True, spare=True),
        Column("BEAT", right=True),
        Column("STATE", style=lambda text: "red" if text == "silent" else None),
    )
    sorts = ("host", "busy", "youngest")
    empty = "No worker is running. Start some: packhorse work"
    hints = "Enter jobs"

    def rows(self, looked: Looked) -> list[Row]:
        snapshot, storage = looked.snapshot, looked.client.storage
        holds, runs = holds_of(storage), holds_of(storage, frozenset({State.RUNNING}))
        rows = []
        for worker in presence_of(snapshot.workers, snapshot.now, snapshot.lease).here:
            report, is_foreman = worker.report, worker.subject is Subject.FOREMAN
            is_silent = not is_alive(worker, snapshot.now, snapshot.lease)
            busy = busy_slots([worker], running=runs[worker.id], held=holds[worker.id])
            cells = [
                short_owner(worker.id),
                worker.subject,
                worker.host,
                str(worker.pid),
                f"{busy}/{worker.concurrency}" if not is_foreman else "-",
                f"{report.get('done') or 0:,}" if not is_foreman else "-",
                f"{report.get('failed') or 0:,}" if not is_foreman else "-",
                _span(worker.joined_at, looked),
                _span(worker.beat_at, looked),
                "silent" if is_silent else str(report.get("state") or ""),
            ]
            place = (worker.host, worker.foreman or worker.id, not is_foreman, worker.joined_at)
            rows.append(Row(worker.id, cells, (place, -busy, -worker.joined_at)))
        return rows


class Tasks(Pane):
    title = "tasks"
    columns = TASK_COLUMNS
    sorts = ("name", "runs", "failed")
    empty = "No task is known yet: workers announce theirs when they start."

    def rows(self, looked: Looked) -> list[Row]:
        storage = looked.client.storage
        found = known_tasks(storage.tasks(), storage.tallies(), storage.series(Span.TWO_DAYS))
        return [
            Row(
                each.task.name,
                task_cells(each, looked.shown),
                (each.task.name, -each.measured.runs, -each.measured.failed),
            )
            for each in found
        ]


PANES: tuple[Callable[[], Pane], ...] = (Running, Queues, Failures, Workers, Tasks)


class Deeds:
    """On one storage, in the name of one operator."""

    def __init__(self, client: Packhorse, by: str | None) -> None:
        self._client = client
        self._by = by

    def abort(self, job_id: str) -> str:
        self._client.get(job_id).abort(by=self._by)
        return f"job {short_id(job_id)} was asked to stop"

    def retry(self, job_id: str) -> str:
        self._client.get(job_id).retry(by=self._by)
        return f"job {short_id(job_id)} is queued again"

    def retry_cause(self, cause: str) -> str:
        """All that have failed so, and are dead or wait for their next attempt."""
        storage = self._client.storage
        where = Filter(states=frozenset({State.DEAD, State.RETRYING}), cause=cause)
        chosen = [(job.id, JobVersion.of(job)) for job in find_all(storage, where)]
        changed = 0
        for start in range(0, len(chosen), BATCH):
            ids, seen = zip(*chosen[start : start + BATCH], strict=True)
            changed += sum(answer.changed for answer in storage.retry(ids, by=self._by, seen=seen))
        return count_text(changed, "job is queued again", "jobs are queued again")

    def silence(self, cause: str) -> str:
        self._client.storage.silence_failure(cause, DAY, version=None, by=self._by)
        return "it is silenced for a day"

    def unsilence(self, cause: str) -> str:
        self._client.storage.silence_failure(cause, None, version=None, by=self._by)
        return "it is shown as before"

    def pause(self, queue: str) -> str:
        self._client.pause(queue, by=self._by)
        return f"{queue} is paused"

    def resume(self, queue: str) -> str:
        self._client.resume(queue, by=self._by)
        return f"{queue} is resumed"


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
