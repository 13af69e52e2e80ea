"""Queues: `packhorse queues`, `pause` and `resume`."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from typing import NamedTuple

import click

from packhorse.cli.completion import complete_queue, complete_task
from packhorse.cli.context import CommandContext, is_sure
from packhorse.cli.errors import CommandError, ExitCode
from packhorse.cli.lookup import check_queue, check_task
from packhorse.cli.options import Function, by_option, command, span_option, with_options
from packhorse.cli.output import (
    STATE_STYLES,
    Shown,
    escape,
    say,
    unless_nought,
)
from packhorse.cli.table import Column, print_table
from packhorse.core.clock import SECOND
from packhorse.core.job import HELD, State
from packhorse.monitor.serializers import queue_fields
from packhorse.monitor.text import (
    count_text,
    pause_text,
    span_text,
)
from packhorse.storage.records import QueueInfo


@command("queues", "packhorse queues", "packhorse queues --json | jq -r 'select(.paused_at) | .name'", pages=True)
def queues(context: CommandContext) -> None:
    """Every queue: its numbers of jobs, how long the oldest waits, and whether it is paused."""
    context.tell_move()
    found = context.storage.queues()
    if context.as_json:
        now = context.storage.now()
        for queue in found:
            context.print_json(queue_fields(queue, now))
    elif not found:
        context.note("There are no queues yet: the first job makes one.")
    else:
        _print_queues(context.shown, found)


class Counted(NamedTuple):
    """A column of the table of queues: the jobs that are in these states."""

    title: str
    states: frozenset[State]
    is_always_there: bool = False

    def shown(self) -> Column:
        style = unless_nought(STATE_STYLES[min(self.states)])
        return Column(self.title, right=True, style=style, spare=not self.is_always_there)

    def number(self, queue: QueueInfo) -> int:
        return sum(queue.counts.get(state, 0) for state in self.states)


_FOR_PEOPLE = (
    Counted("SCHEDULED", frozenset({State.SCHEDULED})),
    Counted("QUEUED", frozenset({State.QUEUED}), True),
    Counted("HELD", HELD, True),
    Counted("RETRYING", frozenset({State.RETRYING})),
    Counted("COMPLETED", frozenset({State.COMPLETED}), True),
    Counted("DEAD", frozenset({State.DEAD}), True),
    Counted("ABORTED", frozenset({State.ABORTED})),
)
_FOR_PROGRAMS = tuple(Counted(state.upper(), frozenset({state}), True) for state in State)


def _print_queues(shown: Shown, found: Sequence[QueueInfo]) -> None:
    """A table of queues. On a terminal, states that no job is in are left out, and pauses are told below it."""
    counted = [
        column
        for column in (_FOR_PEOPLE if shown.is_terminal else _FOR_PROGRAMS)
        if column.is_always_there or any(map(column.number, found))
    ]
    columns = [
        Column("QUEUE", flexible=True, style=lambda text: "yellow" if text.endswith("(paused)") else None),
        *(column.shown() for column in counted),
        Column("OLDEST", right=shown.is_terminal),
        *([] if shown.is_terminal else [Column("NOTE")]),
    ]
    rows = [
        [
            f"{queue.name} (paused)" if shown.is_terminal and queue.is_paused else queue.name,
            *(shown.number(column.number(queue)) for column in counted),
            shown.age(queue.oldest_queued_at),
            *([] if shown.is_terminal else [_pause(queue, shown)]),
        ]
        for queue in found
    ]
    print_table(columns, rows)
    if shown.is_terminal:
        for queue in found:
            if queue.is_paused:
                say(f"{escape(queue.name)} is {escape(_pause(queue, shown))}", err=True)


def _pause(queue: QueueInfo, shown: Shown) -> str:
    if queue.paused_at is None:
        return ""
    return "paused" + pause_text(queue, shown.now, f", {shown.time(queue.paused_at)}")


def on_queues(function: Function) -> Function:
    """The options that name queues; `named_queues` reads them."""
    options: tuple[Callable[[Function], Function], ...] = (
        click.argument("names", nargs=-1, metavar="[QUEUE...]", shell_complete=complete_queue),
        click.option("--all", "everything", is_flag=True, help="Every queue that there is."),
        click.option("--yes", is_flag=True, help="Do not ask."),
    )
    return with_options(function, options)


def named_queues(context: CommandContext, names: Sequence[str], everything: bool) -> list[str]:
    """The queues that are meant; CommandError if there are none, or one is not there."""
    if everything and names:
        raise CommandError("name queues or say --all, not both", ExitCode.USAGE)
    if everything:
        return [queue.name for queue in context.storage.queues()]
    if not names:
        hint = f"packhorse {click.get_current_context().info_name} --help; packhorse queues lists them"
        raise CommandError("name a queue, or say --all", ExitCode.USAGE, hint=hint)
    for name in names:
        check_queue(context.storage, name)
    return list(dict.fromkeys(names))


task_option = click.option(
    "--task", metavar="TASK", help="The queue of this task, if no other has it.", shell_complete=complete_task
)


def queues_and_of_task(context: CommandContext, names: Sequence[str], everything: bool, task: str | None) -> list[str]:
    """The queues that are meant, and that of the task. One that others share is not paused for one of them:
    docs/decisions/0018 says why."""
    if task is None:
        return named_queues(context, names, everything)
    check_task(context.storage, task)
    known = context.storage.tasks()
    queue = next(each.queue for each in known if each.name == task)
    if others := [each.name for each in known if each.queue == queue and each.name != task]:
        aside = shlex.quote(f"{task}.aside")
        raise CommandError(
            f"{task} is in the queue {queue} with {count_text(len(others), 'other task')}: it cannot be paused alone",
            ExitCode.REFUSED,
            hint=f"packhorse pause {shlex.quote(queue)}; or set what waits aside: packhorse pause {aside} after"
            f" packhorse move {aside} --new --where 'task:{task} waiting'",
        )
    return list(dict.fromkeys([*(named_queues(context, names, everything) if names or everything else []), queue]))


@command(
    "pause",
    "packhorse pause mail",
    "packhorse pause mail --for 2h --why 'the mail server is down'",
    "packhorse pause --all --yes",
)
@on_queues
@task_option
@click.option("--why", help="For those who wonder.")
@span_option("--for", "duration", help="Resume them by themselves after so long, e.g. 2h.")
@by_option
def pause(
    context: CommandContext,
    names: tuple[str, ...],
    everything: bool,
    yes: bool,
    task: str | None,
    why: str | None,
    duration: int | None,
    by: str | None,
) -> int:
    """Let no job of these queues begin but forced ones, until they are resumed or for a while. Running ones go on."""
    queues = queues_and_of_task(context, names, everything, task)
    if not _are_meant(context, queues, "pause", yes):
        return ExitCode.REFUSED
    codes = [_pause_one(context, queue, why, duration, by) for queue in queues]
    return max(codes, default=ExitCode.OK)


def _pause_one(context: CommandContext, queue: str, why: str | None, duration: int | None, by: str | None) -> int:
    span = None if duration is None else duration / SECOND
    changed = context.client.pause(queue, by=by, why=why, duration=span)
    if changed:
        until = f" for {span_text(duration)}" if duration is not None else ""
        _tell_queue(context, queue, changed, f"paused{until}")
        return ExitCode.OK
    _tell_queue(context, queue, changed, f"paused already{_pause_of(context, queue)}")
    if duration is None and why is None:
        return ExitCode.OK
    context.note(f"that is left as it is; to pause it otherwise: packhorse resume {escape(queue)} comes first")
    return ExitCode.UNSUCCESSFUL


@command("resume", "packhorse resume mail", "packhorse resume --all --by ann")
@on_queues
@task_option
@by_option
def resume(
    context: CommandContext, names: tuple[str, ...], everything: bool, yes: bool, task: str | None, by: str | None
) -> int:
    """Undo pauses."""
    queues = queues_and_of_task(context, names, everything, task)
    if everything:
        queues = [queue.name for queue in context.storage.queues() if queue.is_paused]
        if not queues:
            context.note("No queue is paused.")
    if not _are_meant(context, queues, "resume", yes):
        return ExitCode.REFUSED
    for queue in queues:
        changed = context.client.resume(queue, by=by)
        _tell_queue(context, queue, changed, "resumed" if changed else "not paused")
    return ExitCode.OK


def _are_meant(context: CommandContext, queues: Sequence[str], verb: str, yes: bool) -> bool:
    """Are these the ones? More than one is asked about."""
    if len(queues) < 2 or yes:
        return True
    number = count_text(len(queues), "queue")
    if is_sure(f"{verb} {number}: {escape(', '.join(queues))}", f"will not {verb} {number} without being sure"):
        return True
    context.note("nothing was done")
    return False


def _pause_of(context: CommandContext, name: str) -> str:
    """By whom, until when and why it is paused."""
    storage = context.storage
    queue = next((each for each in storage.queues() if each.name == name), None)
    return escape(pause_text(queue, storage.now())) if queue else ""


def _tell_queue(context: CommandContext, queue: str, changed: bool, words: str) -> None:
    if context.as_json:
        context.print_json({"queue": queue, "changed": changed})
    else:
        say(f"{escape(queue)} is {words}")
