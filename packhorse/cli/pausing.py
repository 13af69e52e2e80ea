"""Pausing: let no job of a queue begin, and undo it."""

from __future__ import annotations

import click

from packhorse.cli.completing import complete_queue
from packhorse.cli.invocation import Invocation
from packhorse.cli.options import by_option, command
from packhorse.cli.output import escape, say
from packhorse.cli.where import check_queue


@command("pause", "packhorse pause mail", "packhorse pause mail --why 'the mail server is down'")
@click.argument("queue", shell_complete=complete_queue)
@click.option("--why", help="For those who wonder.")
@by_option
def pause(invocation: Invocation, queue: str, why: str | None, by: str | None) -> None:
    """Let no job of a queue begin until it is resumed, but those that are forced. Running ones go on."""
    check_queue(invocation.storage, queue)
    changed = invocation.client.pause(queue, by=by, why=why)
    _tell_queue(invocation, queue, changed, "paused" if changed else "paused already")


@command("resume", "packhorse resume mail", "packhorse resume mail --by ann")
@click.argument("queue", shell_complete=complete_queue)
@by_option
def resume(invocation: Invocation, queue: str, by: str | None) -> None:
    """Undo a pause."""
    check_queue(invocation.storage, queue)
    changed = invocation.client.resume(queue, by=by)
    _tell_queue(invocation, queue, changed, "resumed" if changed else "not paused")


def _tell_queue(invocation: Invocation, queue: str, changed: bool, words: str) -> None:
    if invocation.as_json:
        invocation.print_json({"queue": queue, "changed": changed})
    else:
        say(f"{escape(queue)} is {words}")
