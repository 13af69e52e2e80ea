"""Silencing a cause of failures that somebody knows of: `packhorse failure silence`, and `unsilence`."""

from __future__ import annotations

import click

from packhorse.cli.failing import CommandError, ExitCode
from packhorse.cli.failures import all_causes, meant
from packhorse.cli.invocation import Invocation
from packhorse.cli.options import by_option, command, span_option
from packhorse.cli.output import escape, say
from packhorse.fields import iso


@command(
    "failure",
    "packhorse failure silence 2",
    "packhorse failure silence 94e4f82e --for 3d --by ann",
    "packhorse failure unsilence 2",
)
@click.argument("do", type=click.Choice(["silence", "unsilence"]), metavar="DO")
@click.argument("name", metavar="NUMBER|CAUSE")
@span_option("--for", "length", default="1d", show_default=True, help="With silence: for how long.")
@by_option
def failure(invocation: Invocation, do: str, name: str, length: int, by: str | None) -> None:
    """Say that a cause of failures is known. DO is `silence` to list it below the others for a while; its failures are
    counted as ever, and `unsilence` undoes it. NUMBER and CAUSE are as `packhorse failures` shows them."""
    storage = invocation.storage
    chosen = meant(name, all_causes(storage))
    if chosen is None:
        hint = "give the number of the list or more of the cause: packhorse failures"
        raise CommandError(f"no failure has the cause {name!r}", ExitCode.NOT_FOUND, hint=hint)
    group = chosen.group
    was_silenced = group.is_silenced(storage.now())
    changed = storage.silence_failure(group.cause, length if do == "silence" else None, by=by)
    until = storage.now() + length if do == "silence" else None
    if invocation.as_json:
        told = {"cause": group.cause, "changed": changed, "silenced_until": None if until is None else iso(until)}
        invocation.print_json(told)
        return
    text = f"{group.task}: {group.pattern}"
    if until is not None:
        say(f"silenced until {invocation.shown.full_time(until)}: {escape(text)}")
    else:
        say(f"{'shown as before' if was_silenced else 'was not silenced'}: {escape(text)}")
