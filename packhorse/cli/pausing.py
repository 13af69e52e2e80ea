"""Pausing: let no job of a queue begin, and undo it."""

from __future__ import annotations

import click

from packhorse.cli.completing import complete_queue
from packhorse.cli.failing import ExitCode
from packhorse.cli.invocation import Invocation
from packhorse.cli.options import by_option, command, span_option
from packhorse.cli.output import escape, say
from packhorse.cli.where import check_queue
from packhorse.clock import SECOND
from packhorse.pause_text import pause_text
from packhorse.why import span_text


@command("pause", "packhorse pause mail", "packhorse pause mail --for 2h --why 'the mail server is down'")
@click.argument("queue", shell_complete=complete_queue)
@click.option("--why", help="For those who wonder.")
@span_option("--for", "duration", help="Resume it by itself after so long, e.g. 2h.")
@by_option
def pause(invocation: Invocation, queue: str, why: str | None, duration: int | None, by: str | None) -> int:
    """Let no job of a queue begin but forced ones, until it is resumed or for a while. Running ones go on."""
    check_queue(invocation.storage, queue)
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


@command("resume", "packhorse resume mail", "packhorse resume mail --by ann")
@click.argument("queue", shell_complete=complete_queue)
@by_option
def resume(invocation: Invocation, queue: str, by: str | None) -> None:
    """Undo a pause."""
    check_queue(invocation.storage, queue)
    changed = invocation.client.resume(queue, by=by)
    _tell_queue(invocation, queue, changed, "resumed" if changed else "not paused")


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
