"""Queues: `packhorse queues`, `pause` and `resume`."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from typing import NamedTuple

import click

from packhorse.cli.completion import complete_queue, complete_task
from packhorse.cli.context import CommandContext
from packhorse.cli.errors import CommandError, ExitCode
from packhorse.cli.lookup import check_queue, check_task
from packhorse.cli.options import Function, by_option, command, span_option, with_options
from packhorse.cli.output import STATE_STYLES, Display, escape, say, unless_zero
from packhorse.cli.table import Column, print_table
from packhorse.core.clock import SECOND
from packhorse.core.job import HELD, State
from packhorse.monitor.serializers import queue_fields
from packhorse.monitor.text import count_text, pause_text, span_text
from packhorse.storage.records import QueueInfo


@command("queues", "packhorse queues", "packhorse queues --json | jq -r 'select(.paused_at) | .name'", pages=True)
def queues(context: CommandContext) -> None:
    """Every queue: its jobs by state, how long the oldest has waited, and whether it is paused."""
    context.warn_if_moved()
    found = context.storage.queues()
    if context.as_json:
        now = context.storage.now()
        for queue in found:
            context.print_json(queue_fields(queue, now))
    elif not found:
        context.note("There are no queues yet: the first job creates one.")
    else:
        _print_queues(context.display, found)


class StateColumn(NamedTuple):
    """A column of the table: the number of jobs in these states."""

    title: str
    states: frozenset[State]
    always_shown: bool = False

    def column(self) -> Column:
        style = unless_zero(STATE_STYLES[min(self.states)])
        return Column(self.title, right=True, style=style, spare=not self.always_shown)

    def number(self, queue: QueueInfo) -> int:
        return sum(queue.counts.get(state, 0) for state in self.states)


_TERMINAL_COLUMNS = (
    StateColumn("SCHEDULED", frozenset({State.SCHEDULED})),
    StateColumn("QUEUED", frozenset({State.QUEUED}), True),
    StateColumn("HELD", HELD, True),
    StateColumn("RETRYING", frozenset({State.RETRYING})),
    StateColumn("COMPLETED", frozenset({State.COMPLETED}), True),
    StateColumn("DEAD", frozenset({State.DEAD}), True),
    StateColumn("ABORTED", frozenset({State.ABORTED})),
)
_PIPE_COLUMNS = tuple(StateColumn(state.upper(), frozenset({state}), True) for state in State)


def _print_queues(display: Display, found: Sequence[QueueInfo]) -> None:
    """Print a table. On a terminal, leave out empty states, and explain pauses below the table."""
    is_terminal = display.is_terminal
    counted = [
        column
        for column in (_TERMINAL_COLUMNS if is_terminal else _PIPE_COLUMNS)
        if column.always_shown or any(map(column.number, found))
    ]
    columns = [
        Column("QUEUE", flexible=True, style=lambda text: "yellow" if text.endswith("(paused)") else None),
        *(column.column() for column in counted),
        Column("OLDEST", right=is_terminal),
        *([] if is_terminal else [Column("NOTE")]),
    ]
    rows = [
        [
            f"{queue.name} (paused)" if is_terminal and queue.is_paused else queue.name,
            *(display.number(column.number(queue)) for column in counted),
            display.age(queue.oldest_queued_at),
            *([] if is_terminal else [_pause_note(queue, display)]),
        ]
        for queue in found
    ]
    print_table(columns, rows)
    if is_terminal:
        for queue in found:
            if queue.is_paused:
                say(f"{escape(queue.name)} is {escape(_pause_note(queue, display))}", err=True)


def _pause_note(queue: QueueInfo, display: Display) -> str:
    if queue.paused_at is None:
        return ""
    return "paused" + pause_text(queue, display.now, f", {display.time(queue.paused_at)}")


# --- pause and resume -------------------------------------------------------------------------------------------------


def queue_options(function: Function) -> Function:
    """Add the options that name queues; `queues_named` reads them."""
    options: tuple[Callable[[Function], Function], ...] = (
        click.argument("names", nargs=-1, metavar="[QUEUE...]", shell_complete=complete_queue),
        click.option("--all", "every_queue", is_flag=True, help="Every queue."),
        click.option("--yes", is_flag=True, help="Do not ask."),
    )
    return with_options(function, options)


def queues_named(context: CommandContext, names: Sequence[str], every_queue: bool) -> list[str]:
    """The queues that the options name. Raise CommandError if there is none, or one does not exist."""
    if every_queue and names:
        raise CommandError("name queues or say --all, not both", ExitCode.USAGE)
    if every_queue:
        return [queue.name for queue in context.storage.queues()]
    if not names:
        hint = f"packhorse {click.get_current_context().info_name} --help; packhorse queues lists them"
        raise CommandError("name a queue, or say --all", ExitCode.USAGE, hint=hint)
    for name in names:
        check_queue(context.storage, name)
    return list(dict.fromkeys(names))


task_option = click.option(
    "--task", metavar="TASK", help="The queue of this task, if no other task shares it.", shell_complete=complete_task
)


def _queues_of(context: CommandContext, names: Sequence[str], every_queue: bool, task: str | None) -> list[str]:
    """The named queues, and that of the task. A shared queue is not paused for one task: see docs/decisions/0018."""
    if task is None:
        return queues_named(context, names, every_queue)
    check_task(context.storage, task)
    tasks = context.storage.tasks()
    queue = next(each.queue for each in tasks if each.name == task)
    if others := [each.name for each in tasks if each.queue == queue and each.name != task]:
        aside = shlex.quote(f"{task}.aside")
        raise CommandError(
            f"{task} shares the queue {queue} with {count_text(len(others), 'other task')} and cannot be paused alone",
            ExitCode.REFUSED,
            hint=f"packhorse pause {shlex.quote(queue)}; or move its jobs away: packhorse pause {aside} after"
            f" packhorse move {aside} --new --where 'task:{task} waiting'",
        )
    return list(dict.fromkeys([*(queues_named(context, names, every_queue) if names or every_queue else []), queue]))


@command(
    "pause",
    "packhorse pause mail",
    "packhorse pause mail --for 2h --why 'the mail server is down'",
    "packhorse pause --all --yes",
)
@queue_options
@task_option
@click.option("--why", help="The reason, for others.")
@span_option("--for", "duration", help="Resume automatically after this time, e.g. 2h.")
@by_option
def pause(
    context: CommandContext,
    names: tuple[str, ...],
    every_queue: bool,
    yes: bool,
    task: str | None,
    why: str | None,
    duration: int | None,
    by: str | None,
) -> int:
    """Start no jobs of these queues except forced ones, for a while or until `resume`. Running jobs continue."""
    found = _queues_of(context, names, every_queue, task)
    if not _confirm(context, found, "pause", yes):
        return ExitCode.REFUSED
    return max((_pause(context, queue, why, duration, by) for queue in found), default=ExitCode.OK)


def _pause(context: CommandContext, queue: str, why: str | None, duration: int | None, by: str | None) -> int:
    changed = context.client.pause(queue, by=by, why=why, duration=None if duration is None else duration / SECOND)
    if changed:
        until = f" for {span_text(duration)}" if duration is not None else ""
        _print_result(context, queue, changed, f"paused{until}")
        return ExitCode.OK
    _print_result(context, queue, changed, f"paused already{_current_pause(context, queue)}")
    if duration is None and why is None:
        return ExitCode.OK
    context.note(f"that pause stays as it is; to change it, first packhorse resume {escape(queue)}")
    return ExitCode.UNSUCCESSFUL


def _current_pause(context: CommandContext, name: str) -> str:
    """Who paused the queue, until when and why."""
    storage = context.storage
    queue = next((each for each in storage.queues() if each.name == name), None)
    return escape(pause_text(queue, storage.now())) if queue else ""


@command("resume", "packhorse resume mail", "packhorse resume --all --by ann")
@queue_options
@task_option
@by_option
def resume(
    context: CommandContext, names: tuple[str, ...], every_queue: bool, yes: bool, task: str | None, by: str | None
) -> int:
    """End pauses."""
    found = _queues_of(context, names, every_queue, task)
    if every_queue:
        found = [queue.name for queue in context.storage.queues() if queue.is_paused]
        if not found:
            context.note("No queue is paused.")
    if not _confirm(context, found, "resume", yes):
        return ExitCode.REFUSED
    for queue in found:
        changed = context.client.resume(queue, by=by)
        _print_result(context, queue, changed, "resumed" if changed else "not paused")
    return ExitCode.OK


def _confirm(context: CommandContext, names: Sequence[str], verb: str, yes: bool) -> bool:
    """Ask, if there is more than one queue."""
    if len(names) < 2 or yes:
        return True
    number = count_text(len(names), "queue")
    return context.confirm(
        f"{verb} {number}: {escape(', '.join(names))}", f"will not {verb} {number} without confirmation"
    )


def _print_result(context: CommandContext, queue: str, changed: bool, words: str) -> None:
    if context.as_json:
        context.print_json({"queue": queue, "changed": changed})
    else:
        say(f"{escape(queue)} is {words}")
