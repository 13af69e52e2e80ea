"""A live view: `packhorse top`. Five panes, single keys, drawn again every second.

`Top` is what is shown and what keys do, without a terminal; the command gives it one. Where the terminal cannot be
drawn on, the command prints one frame.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import click

from packhorse.cli.commands.failures import SILENCED, all_causes, cause_lines
from packhorse.cli.commands.job import page_lines
from packhorse.cli.commands.jobs import job_table
from packhorse.cli.commands.stats import TASK_COLUMNS, known_tasks, task_cells
from packhorse.cli.commands.status import (
    QUEUE_COLUMNS,
    Snapshot,
    header_lines,
    queue_cells,
    status_fields,
    take_snapshot,
)
from packhorse.cli.commands.workers import held_jobs
from packhorse.cli.context import CommandContext
from packhorse.cli.options import by_option, command, span_option
from packhorse.cli.output import (
    Display,
    escape,
    paint,
    say,
    short_id,
    short_owner,
    terminal_size,
    unless_zero,
    unpainted,
)
from packhorse.cli.screen import GONE, RESIZED, Screen
from packhorse.cli.table import Column, table_lines
from packhorse.client.app import Packhorse
from packhorse.core.clock import SECOND
from packhorse.core.errors import PackhorseError, StorageError
from packhorse.core.event import Subject
from packhorse.core.job import HELD, UNFINISHED, Operation, State
from packhorse.monitor.actions import JobAction, apply_in_batches, select_matching, silence, unsilence
from packhorse.monitor.liveness import busy_slots, is_alive, presence_of
from packhorse.monitor.text import attempt_text, call_text, count_text, note_text, span_text
from packhorse.storage.records import FailureGroup, Filter, Span
from packhorse.storage.transfer import problems

_REVERSE, _PLAIN = "\x1b[7m", "\x1b[0m"
_FASTEST, _SLOWEST = 0.25, 60.0
_MAX_RUNNING = 500
_MAX_LISTED = 200
_STEPS = {"j": 1, "down": 1, "k": -1, "up": -1, "page down": 10, " ": 10, "page up": -10}
_ENDS = {"g": -(10**9), "home": -(10**9), "G": 10**9, "end": 10**9}
_HELP = """\
1 … 5, Tab     running, queues, failures, workers, tasks
j k, arrows    down and up; Page Up and Page Down; g first, G last
Enter          open a job, a cause, a queue or a worker; Escape goes back
a, c           abort a job
r              retry a job, or all jobs of a cause
m              silence a cause for a day, or undo it
p              pause or resume a queue
/              show only rows with this text; Escape shows all again
?              this page
q, Ctrl-C      quit\
"""


@command("top", "packhorse top", "packhorse top --every 5s", "packhorse top --once | head -20")
@click.option("--once", is_flag=True, help="Print one frame.")
@span_option("--every", default="1s", show_default=True, help="How often to refresh.")
@by_option
def top(context: CommandContext, once: bool, every: int, by: str | None) -> None:
    """Watch jobs, queues, failures, workers and tasks live, and act on them with single keys; ? lists the keys. In a
    pipe, or on a terminal that cannot be drawn on, it prints one frame."""
    if context.as_json:
        context.print_json(status_fields(context, take_snapshot(context.storage, context.settings)))
        return
    is_live = Screen.is_possible() and not once
    view = Top(context, every / SECOND, by, is_live=is_live)
    view.look()
    if not is_live:
        for line in view.frame():
            say(line)
        return
    try:
        with Screen() as screen:
            while not view.is_over:
                screen.draw(view.lines(*screen.size))
                _take_keys(view, screen)
                view.look()
    except KeyboardInterrupt:
        return


def _take_keys(view: Top, screen: Screen) -> None:
    """Take keys until the next refresh is due, or a key has changed something."""
    deadline = time.monotonic() + view.every
    while not view.is_over and not view.is_stale and (left := deadline - time.monotonic()) > 0:
        for key in screen.keys(left):
            view.press(key)
            screen.draw(view.lines(*screen.size))


# --- panes ------------------------------------------------------------------------------------------------------------


class Look(NamedTuple):
    """What was read at one refresh."""

    client: Packhorse
    snapshot: Snapshot
    display: Display

    def age(self, since: int | None) -> str:
        """How long ago that was, also in a pipe."""
        return "-" if since is None else span_text(self.display.now - since)


class Row(NamedTuple):
    """A line of a pane, and the id or name of what it shows."""

    key: str
    cells: Sequence[str]


class Action(NamedTuple):
    """What a key does to a row: the question to ask first, and the change. It returns the result in words."""

    question: Callable[[Look, str], str]
    change: Callable[[Look, str, str | None], str]


class Pane(NamedTuple):
    """A table, what Enter shows of a row, and the keys that change it."""

    title: str
    columns: Sequence[Column]
    rows: Callable[[Look], list[Row]]
    empty: str
    hints: str = ""
    details: Callable[[Look, str], list[str]] | None = None
    actions: Mapping[str, Action] = {}


def _running(look: Look) -> list[Row]:
    jobs = look.client.storage.find(Filter(states=frozenset({State.RUNNING})), limit=_MAX_RUNNING).jobs
    return [
        Row(
            job.id,
            [
                short_id(job.id),
                look.age(job.started_at),
                attempt_text(look.client.effective_job(job)),
                job.queue,
                call_text(job),
                note_text(job),
                short_owner(job.owner or ""),
            ],
        )
        for job in sorted(jobs, key=lambda job: job.started_at or 0)
    ]


def _job_page(look: Look, job_id: str) -> list[str]:
    return list(page_lines(look.client.get(job_id), look.display, look.client.tasks()))


def _abort(look: Look, job_id: str, by: str | None) -> str:
    look.client.get(job_id).abort(by=by)
    return f"job {short_id(job_id)} was asked to stop"


def _retry(look: Look, job_id: str, by: str | None) -> str:
    look.client.get(job_id).retry(by=by)
    return f"job {short_id(job_id)} is queued again"


def _queues(look: Look) -> list[Row]:
    now = look.snapshot.now
    in_order = sorted(look.snapshot.queues, key=lambda queue: queue.oldest_queued_at or now)
    return [Row(queue.name, queue_cells(look.snapshot, queue)) for queue in in_order]


def _jobs_in(look: Look, where: Filter, none: str) -> list[str]:
    jobs = look.client.storage.find(where, limit=_MAX_LISTED).jobs
    return table_lines(*job_table(look.display, jobs), terminal_size().columns) if jobs else [escape(none)]


def _queue_jobs(look: Look, queue: str) -> list[str]:
    return _jobs_in(look, Filter(queue=queue, states=UNFINISHED), f"No job waits or runs in {queue}.")


def _is_paused(look: Look, queue: str) -> bool:
    return any(each.name == queue and each.is_paused for each in look.snapshot.queues)


def _ask_to_pause(look: Look, queue: str) -> str:
    return f"{'resume' if _is_paused(look, queue) else 'pause'} {queue}?"


def _pause_or_resume(look: Look, queue: str, by: str | None) -> str:
    if _is_paused(look, queue):
        look.client.resume(queue, by=by)
        return f"{queue} is resumed"
    look.client.pause(queue, by=by)
    return f"{queue} is paused"


def _failures(look: Look) -> list[Row]:
    rows = []
    for group in (each.group for each in all_causes(look.client.storage)):
        silenced = SILENCED if group.is_silenced(look.display.now) else ""
        place = (group.place or "-").rpartition("/")[2]
        cells = [f"{group.number:,}", f"{group.task}{silenced}", group.pattern, place, look.age(group.last_at)]
        rows.append(Row(group.cause, cells))
    return rows


def _group(look: Look, cause: str) -> FailureGroup | None:
    return next((each.group for each in all_causes(look.client.storage) if each.group.cause == cause), None)


def _cause_page(look: Look, cause: str) -> list[str]:
    group = _group(look, cause)
    return list(cause_lines(look.client.storage, look.display, group)) if group else ["This cause no longer exists."]


def _retry_cause(look: Look, cause: str, by: str | None) -> str:
    storage, action = look.client.storage, JobAction(Operation.RETRY)
    selection = select_matching(storage, Filter(states=frozenset({State.DEAD, State.RETRYING}), cause=cause))
    batches = apply_in_batches(storage, action, selection, by=by)
    changed = sum(result.changed for results in batches for result in results)
    return count_text(changed, "job is queued again", "jobs are queued again")


def _is_silenced(look: Look, cause: str) -> bool:
    group = _group(look, cause)
    return group is not None and group.is_silenced(look.display.now)


def _ask_to_silence(look: Look, cause: str) -> str:
    return "unsilence this cause?" if _is_silenced(look, cause) else "silence this cause for a day?"


def _silence_or_unsilence(look: Look, cause: str, by: str | None) -> str:
    group = _group(look, cause)
    if group is None:
        return "this cause no longer exists"
    if group.is_silenced(look.display.now):
        unsilence(look.client.storage, group, by=by)
        return "it is no longer silenced"
    silence(look.client.storage, group, None, until_next_version=False, by=by)
    return "it is silenced for a day"


def _workers(look: Look) -> list[Row]:
    snapshot, storage = look.snapshot, look.client.storage
    holds, runs = held_jobs(storage), held_jobs(storage, frozenset({State.RUNNING}))
    here = presence_of(snapshot.workers, snapshot.now, snapshot.lease).here
    rows = []
    for worker in sorted(
        here,
        key=lambda each: (
            each.host,
            each.foreman or each.id,
            each.subject is not Subject.FOREMAN,
            each.joined_at,
        ),
    ):
        report, is_foreman = worker.report, worker.subject is Subject.FOREMAN
        busy = busy_slots([worker], running=runs[worker.id], held=holds[worker.id])
        cells = [
            short_owner(worker.id),
            worker.subject,
            worker.host,
            str(worker.pid),
            "-" if is_foreman else f"{busy}/{worker.concurrency}",
            "-" if is_foreman else f"{report.get('done') or 0:,}",
            "-" if is_foreman else f"{report.get('failed') or 0:,}",
            look.age(worker.joined_at),
            look.age(worker.beat_at),
            str(report.get("state") or "") if is_alive(worker, snapshot.now, snapshot.lease) else "silent",
        ]
        rows.append(Row(worker.id, cells))
    return rows


def _worker_jobs(look: Look, worker: str) -> list[str]:
    return _jobs_in(look, Filter(owner=worker, states=HELD), f"{worker} holds no job.")


def _tasks(look: Look) -> list[Row]:
    storage = look.client.storage
    found = known_tasks(storage.tasks(), storage.tallies(), storage.series(Span.TWO_DAYS))
    return [Row(each.task.name, task_cells(each, look.display)) for each in sorted(found, key=lambda x: x.task.name)]


_ABORT = Action(lambda _, job_id: f"abort job {short_id(job_id)}?", _abort)

PANES = (
    Pane(
        "running",
        (
            Column("ID"),
            Column("RAN", right=True),
            Column("TRY", right=True, spare=True),
            Column("QUEUE", flexible=True, spare=True),
            Column("CALL", flexible=True, least=30),
            Column("DOES", flexible=True, style="dim"),
            Column("WORKER", spare=True, style="dim"),
        ),
        _running,
        "No job is running.",
        "Enter open  a abort",
        _job_page,
        {"a": _ABORT, "c": _ABORT, "r": Action(lambda _, job_id: f"retry job {short_id(job_id)}?", _retry)},
    ),
    Pane(
        "queues",
        QUEUE_COLUMNS,
        _queues,
        "There are no queues yet: the first job creates one.",
        "Enter jobs  p pause or resume",
        _queue_jobs,
        {"p": Action(_ask_to_pause, _pause_or_resume)},
    ),
    Pane(
        "failures",
        (
            Column("COUNT", right=True, style="red"),
            Column("TASK", style=lambda text: "dim" if text.endswith(SILENCED) else None),
            Column("ERROR", flexible=True),
            Column("WHERE", spare=True, style="dim"),
            Column("LAST", right=True),
        ),
        _failures,
        "Nothing has failed.",
        "Enter open  r retry all its jobs  m silence or unsilence",
        _cause_page,
        {
            "r": Action(lambda _, cause: "retry all jobs of this cause?", _retry_cause),
            "m": Action(_ask_to_silence, _silence_or_unsilence),
        },
    ),
    Pane(
        "workers",
        (
            Column("WORKER"),
            Column("KIND"),
            Column("HOST", flexible=True),
            Column("PID", right=True),
            Column("BUSY", right=True, style=unless_zero("cyan")),
            Column("DONE", right=True, style=unless_zero(None)),
            Column("FAILED", right=True, style=unless_zero("red"), spare=True),
            Column("UP", right=True, spare=True),
            Column("BEAT", right=True),
            Column("STATE", style=lambda text: "red" if text == "silent" else None),
        ),
        _workers,
        "No worker is running. Start some: packhorse work",
        "Enter jobs",
        _worker_jobs,
    ),
    Pane("tasks", TASK_COLUMNS, _tasks, "No task is known yet: workers announce theirs when they start."),
)


# --- the view ---------------------------------------------------------------------------------------------------------


class Question(NamedTuple):
    """What is asked before a change, and what a yes does."""

    text: str
    change: Callable[[], str]


class Top:
    """What is shown, and what keys do."""

    def __init__(self, context: CommandContext, every: float, by: str | None, *, is_live: bool = True) -> None:
        self.every = min(max(every, _FASTEST), _SLOWEST)
        self.is_over = False
        self.is_stale = False  # something was changed: refresh now
        self._context = context
        self._is_live = is_live
        self._by = by
        self._pane = PANES[0]
        self._look: Look | None = None
        self._rows: list[Row] = []
        self._key: str | None = None  # of the selected row
        self._position = 0  # where that row was last
        self._search = ""
        self._is_typing = False
        self._question: Question | None = None
        self._detail: str | None = None  # the key of the row that is open
        self._detail_lines: list[str] = []
        self._scroll = 0
        self._shows_help = False
        self._message = ""
        self._problem = ""

    def look(self) -> None:
        """Read what is shown. If the storage does not answer, say so and keep what was read before."""
        self.is_stale = False
        try:
            snapshot = take_snapshot(self._context.client.storage, self._context.settings)
            display = Display(snapshot.now, utc=self._context.utc, is_terminal=self._is_live or None)
            look = self._look = Look(self._context.client, snapshot, display)
            rows = self._pane.rows(look)
            self._rows = [row for row in rows if self._search.lower() in " ".join(row.cells).lower()]
            self._keep_position()
            if self._detail is not None and self._pane.details is not None:
                self._detail_lines = self._pane.details(look, self._detail)
            self._problem = ""
        except StorageError as error:
            if self._look is None:
                raise
            self._problem = f"{error.what}; this is what was there before"
        except PackhorseError as error:  # the open job was deleted
            self._detail, self._message = None, error.what

    def _keep_position(self) -> None:
        """Keep the selected row selected; if it is gone, select the row in its place."""
        keys = [row.key for row in self._rows]
        if self._key in keys:
            self._position = keys.index(self._key)
        elif keys:
            self._position = min(self._position, len(keys) - 1)
            self._key = keys[self._position]

    # --- what is shown ----------------------------------------------------------------------------------------------

    def frame(self) -> list[str]:
        """The pane, to print where there is no screen."""
        look = self._current()
        width = terminal_size().columns if look.display.is_terminal else None
        return [*_header(look.snapshot, width), "", *(self._table(width) if self._rows else [self._pane.empty])]

    def lines(self, width: int, height: int) -> list[str]:
        """The whole screen."""
        head = _header(self._current().snapshot, width)
        if self._problem:
            head.append(paint(escape(self._problem), "red"))
        head.append(self._tabs())
        room = max(1, height - len(head) - 1)
        body = self._body(width, room)
        return [*head, *body, *[""] * (room - len(body)), self._footer()]

    def _current(self) -> Look:
        if self._look is None:
            self.look()
        assert self._look is not None
        return self._look

    def _tabs(self) -> str:
        tabs = [
            paint(f"{number} {pane.title}", "bold" if pane is self._pane else "dim")
            for number, pane in enumerate(PANES, 1)
        ]
        search = f"  /{escape(self._search)}" if self._search else ""
        return "  ".join(tabs) + paint(f"   every {self.every:g}s{search}", "dim")

    def _body(self, width: int, room: int) -> list[str]:
        if self._shows_help:
            return _HELP.split("\n")[:room]
        if self._detail is not None:
            self._scroll = max(0, min(self._scroll, len(self._detail_lines) - room))
            return self._detail_lines[self._scroll : self._scroll + room]
        if not self._rows:
            return [escape(f"No row has {self._search!r} in it.") if self._search else self._pane.empty]
        title, *rows = self._table(width)
        rows[self._position] = f"{_REVERSE}{unpainted(rows[self._position]):<{width}}{_PLAIN}"
        first = max(0, min(self._position - (room - 1) // 2, len(rows) - (room - 1)))
        return [title, *rows[first : first + room - 1]]

    def _table(self, width: int | None) -> list[str]:
        return table_lines(self._pane.columns, [row.cells for row in self._rows], width)

    def _footer(self) -> str:
        if self._is_typing:
            return f"/{escape(self._search)}"
        if self._question is not None:
            return paint(f"{escape(self._question.text)} [y/N]", "yellow")
        if self._message:
            return escape(self._message)
        hints = self._pane.hints if self._detail is None else "Escape back"
        return paint("  ".join(filter(None, [hints, "/ search  ? help  q quit"])), "dim")

    # --- keys -------------------------------------------------------------------------------------------------------

    def press(self, key: str) -> None:
        """Do what this key means now."""
        if key == RESIZED:
            return
        self._message = ""
        if key == GONE:
            self.is_over = True
        elif self._is_typing:
            self._type(key)
        elif self._question is not None:
            self._answer(key)
        elif key in ("q", "\x03"):
            self.is_over = True
        elif self._shows_help or key == "?":
            self._shows_help = not self._shows_help
        elif key in ("escape", "left", "backspace"):
            self._go_back()
        elif key in ("tab", "back tab") or (key.isdecimal() and 1 <= int(key) <= len(PANES)):
            self._turn(key)
        elif step := _STEPS.get(key) or _ENDS.get(key):
            self._move(step)
        elif key == "/":
            self._is_typing, self._search = True, ""
        elif self._detail is not None:
            self._ask(key, self._detail)
        elif self._rows and key == "enter" and self._pane.details is not None:
            self._detail, self._scroll = self._rows[self._position].key, 0
            self.look()
        elif self._rows:
            self._ask(key, self._rows[self._position].key)

    def _turn(self, key: str) -> None:
        """Show another pane."""
        here = PANES.index(self._pane)
        step = {"tab": here + 1, "back tab": here - 1}
        self._pane = PANES[step[key] % len(PANES) if key in step else int(key) - 1]
        self._detail, self._key, self._position, self._search = None, None, 0, ""
        self.look()

    def _move(self, step: int) -> None:
        if self._detail is not None:
            self._scroll = max(0, min(self._scroll + step, len(self._detail_lines)))
        elif self._rows:
            self._position = max(0, min(self._position + step, len(self._rows) - 1))
            self._key = self._rows[self._position].key

    def _go_back(self) -> None:
        if self._detail is not None:
            self._detail = None
        else:
            self._search = ""
        self.look()

    def _type(self, key: str) -> None:
        """Take a key of the text to search for."""
        if key in ("enter", "escape"):
            self._is_typing = False
            self._search = "" if key == "escape" else self._search
        elif key == "backspace":
            self._search = self._search[:-1]
        elif len(key) == 1 and key.isprintable():
            self._search += key
        self.look()

    def _ask(self, key: str, target: str) -> None:
        """Ask before the change that this key means for the row."""
        if action := self._pane.actions.get(key):
            look = self._current()
            self._question = Question(action.question(look, target), lambda: action.change(look, target, self._by))

    def _answer(self, key: str) -> None:
        question, self._question = self._question, None
        if question is None or key not in ("y", "Y"):
            self._message = "nothing changed"
            return
        try:
            self._message = question.change()
        except PackhorseError as error:
            self._message = error.what
        self.is_stale = True


def _header(snapshot: Snapshot, width: int | None) -> list[str]:
    """The lines above the panes."""
    lines = [line for text in header_lines(snapshot, width) for line in text.split("\n")]
    return [*lines, *(paint(escape(problem), "red") for problem in problems(snapshot.move))]
