"""Silencing a cause of failures that somebody knows of: `packhorse failure silence`, and `unsilence`."""

from __future__ import annotations

import click

from packhorse.cli.failing import CommandError, ExitCode
from packhorse.cli.failures import all_causes, meant, silence_text
from packhorse.cli.invocation import Invocation
from packhorse.cli.options import by_option, command, span_option
from packhorse.cli.output import escape, say
from packhorse.core.clock import DAY
from packhorse.monitor.serializers import iso


@command(
    "failure",
    "packhorse failure silence 2",
    "packhorse failure silence 94e4f82e --for 3d --by ann",
    "packhorse failure silence 2 --until-next-version",
    "packhorse failure unsilence 2",
)
@click.argument("do", type=click.Choice(["silence", "unsilence"]), metavar="DO")
@click.argument("name", metavar="NUMBER|CAUSE")
@span_option("--for", "length", help="With silence: for how long; a day if nothing is said.")
@click.option("--until-next-version", "next_version", is_flag=True, help="Until it fails with another code version.")
@by_option
def failure(invocation: Invocation, do: str, name: str, length: int | None, next_version: bool, by: str | None) -> None:
    """Say that a cause of failures is known. DO is `silence` to list it below the others for a while; its failures are
    counted as ever, and `unsilence` undoes it. NUMBER and CAUSE are as `packhorse failures` shows them."""
    storage = invocation.storage
    chosen = meant(name, all_causes(storage))
    if chosen is None:
        hint = "give the number of the list or more of the cause: packhorse failures"
        raise CommandError(f"no failure has the cause {name!r}", ExitCode.NOT_FOUND, hint=hint)
    group = chosen.group
    was_silenced = group.is_silenced(storage.now())
    duration, version = (None, None)
    if do == "silence":
        version = group.known_version() if next_version else None
        duration = DAY if length is None and version is None else length
    changed = storage.silence_failure(group.cause, duration, version=version, by=by)
    until = None if duration is None else storage.now() + duration
    if invocation.as_json:
        times = {"silenced_until": None if until is None else iso(until), "silenced_version": version}
        invocation.print_json({"cause": group.cause, "changed": changed, **times})
        return
    said = "shown as before" if was_silenced else "was not silenced"
    if do == "silence":
        said = f"silenced {silence_text(invocation.shown, until, version)}"
    say(escape(f"{said}: {group.task}: {group.pattern}"))
