"""Pausing: let no job of some queues begin, and undo it."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence

import click

from packhorse.cli.asking import is_sure
from packhorse.cli.completing import complete_queue, complete_task
from packhorse.cli.failing import CommandError, ExitCode
from packhorse.cli.invocation import Invocation
from packhorse.cli.options import Function, by_option, command, span_option, with_options
from packhorse.cli.output import escape, say
from packhorse.cli.where import check_queue, check_task
from packhorse.core.clock import SECOND
from packhorse.monitor.text import count_text, pause_text, span_text


def on_queues(function: Function) -> Function:
    """The options that name queues; `named_queues` reads them."""
    options: tuple[Callable[[Function], Function], ...] = (
        click.argument("names", nargs=-1, metavar="[QUEUE...]", shell_complete=complete_queue),
        click.option("--all", "everything", is_flag=True, help="Every queue that there is."),
        click.option("--yes", is_flag=True, help="Do not ask."),
    )
    return with_options(function, options)


def named_queues(invocation: Invocation, names: Sequence[str], everything: bool) -> list[str]:
    """The queues that are meant; CommandError if there are none, or one is not there."""
    if everything and names:
        raise CommandError("name queues or say --all, not both", ExitCode.USAGE)
    if everything:
        return [queue.name for queue in invocation.storage.queues()]
    if not names:
        hint = f"packhorse {click.get_current_context().info_name} --help; packhorse queues lists them"
        raise CommandError("name a queue, or say --all", ExitCode.USAGE, hint=hint)
    for name in names:
        check_queue(invocation.storage, name)
    return list(dict.fromkeys(names))


task_option = click.option(
    "--task", metavar="TASK", help="The queue of this task, if no other has it.", shell_complete=complete_task
)


def queues_and_of_task(invocation: Invocation, names: Sequence[str], everything: bool, task: str | None) -> list[str]:
    """The queues that are meant, and that of the task. One that others share is not paused for one of them:
    docs/decisions/0018 says why."""
    if task is None:
        return named_queues(invocation, names, everything)
    check_task(invocation.storage, task)
    known = invocation.storage.tasks()
    queue = next(each.queue for each in known if each.name == task)
    if others := [each.name for each in known if each.queue == queue and each.name != task]:
        aside = shlex.quote(f"{task}.aside")
        raise CommandError(
            f"{task} is in the queue {queue} with {count_text(len(others), 'other task')}: it cannot be paused alone",
            ExitCode.REFUSED,
            hint=f"packhorse pause {shlex.quote(queue)}; or set what waits aside: packhorse pause {aside} after"
            f" packhorse move {aside} --new --where 'task:{task} waiting'",
        )
    return list(dict.fromkeys([*(named_queues(invocation, names, everything) if names or everything else []), queue]))


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
    invocation: Invocation,
    names: tuple[str, ...],
    everything: bool,
    yes: bool,
    task: str | None,
    why: str | None,
    duration: int | None,
    by: str | None,
) -> int:
    """Let no job of these queues begin but forced ones, until they are resumed or for a while. Running ones go on."""
    queues = queues_and_of_task(invocation, names, everything, task)
    if not _are_meant(invocation, queues, "pause", yes):
        return ExitCode.REFUSED
    codes = [_pause_one(invocation, queue, why, duration, by) for queue in queues]
    return max(codes, default=ExitCode.OK)


def _pause_one(invocation: Invocation, queue: str, why: str | None, duration: int | None, by: str | None) -> int:
    span = None if duration is None else duration / SECOND
    changed = invocation.client.pause(queue, by=by, why=why, duration=span)
    if changed:
        until = f" for {span_text(duration)}" if duration is not None else ""
        _tell_queue(invocation, queue, changed, f"paused{until}")
        return ExitCode.OK
    _tell_queue(invocation, queue, changed, f"paused already{_pause_of(invocation, queue)}")
    if duration is None and why is None:
        return ExitCode.OK
    invocation.note(f"that is left as it is; to pause it otherwise: packhorse resume {escape(queue)} comes first")
    return ExitCode.UNSUCCESSFUL


@command("resume", "packhorse resume mail", "packhorse resume --all --by ann")
@on_queues
@task_option
@by_option
def resume(
    invocation: Invocation, names: tuple[str, ...], everything: bool, yes: bool, task: str | None, by: str | None
) -> int:
    """Undo pauses."""
    queues = queues_and_of_task(invocation, names, everything, task)
    if everything:
        queues = [queue.name for queue in invocation.storage.queues() if queue.is_paused]
        if not queues:
            invocation.note("No queue is paused.")
    if not _are_meant(invocation, queues, "resume", yes):
        return ExitCode.REFUSED
    for queue in queues:
        changed = invocation.client.resume(queue, by=by)
        _tell_queue(invocation, queue, changed, "resumed" if changed else "not paused")
    return ExitCode.OK


def _are_meant(invocation: Invocation, queues: Sequence[str], verb: str, yes: bool) -> bool:
    """Are these the ones? More than one is asked about."""
    if len(queues) < 2 or yes:
        return True
    number = count_text(len(queues), "queue")
    if is_sure(f"{verb} {number}: {escape(', '.join(queues))}", f"will not {verb} {number} without being sure"):
        return True
    invocation.note("nothing was done")
    return False


def _pause_of(invocation: Invocation, name: str) -> str:
    """By whom, until when and why it is paused."""
    storage = invocation.storage
    queue = next((each for each in storage.queues() if each.name == name), None)
    return escape(pause_text(queue, storage.now())) if queue else ""


def _tell_queue(invocation: Invocation, queue: str, changed: bool, words: str) -> None:
    if invocation.as_json:
        invocation.print_json({"queue": queue, "changed": changed})
    else:
        say(f"{escape(queue)} is {words}")
