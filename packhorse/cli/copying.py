"""`packhorse copy`: enqueue jobs like those that are there, whatever became of them, perhaps with other arguments.

Which jobs are meant is settled in `choosing.py`; more than one is shown first and asked about.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from packhorse.cli.arguments import Given, read_given
from packhorse.cli.choosing import Chosen, Selection, are_meant, choose, number_of_jobs, on_jobs, show_choice
from packhorse.cli.completing import complete_queue
from packhorse.cli.failing import CommandError, ExitCode
from packhorse.cli.invocation import Invocation
from packhorse.cli.options import command, moment_option, span_option
from packhorse.cli.output import escape, paint, say
from packhorse.cli.progress import ProgressLine
from packhorse.cli.where import warn_unserved
from packhorse.client.job import JobHandle
from packhorse.core.clock import SECOND
from packhorse.core.errors import JobNotFound
from packhorse.core.job import Operation, State
from packhorse.monitor.serializers import plain_fields
from packhorse.monitor.text import call_text, shorten

_MANY = 50  # from here on a line says how far it is


class Copying:
    """What is to be done, for choosing: any job can be copied."""

    operation: Operation | None = None
    verb = "copy"
    states = frozenset(State)


@command(
    "copy",
    "packhorse copy 1be2c845",
    "packhorse copy 1be2c845 --set width=1600 --in 10m",
    "packhorse copy --where 'completed task:report since:1d' --queue slow --dry-run",
)
@click.option(
    "--set",
    "changes",
    multiple=True,
    metavar="NAME=VALUE",
    help="With this argument instead; NAME:=JSON too.",
)
@span_option("--in", "delay", help="Run them after so long.")
@moment_option("--at", help="Run them at this time, ISO 8601; local unless it names a zone.")
@click.option("--priority", type=int, metavar="N", help="From 1, for regular jobs, to 10.")
@click.option("--queue", metavar="QUEUE", help="The queue to wait in.", shell_complete=complete_queue)
@on_jobs
def copy(invocation: Invocation, selection: Selection, changes: tuple[str, ...], **options: Any) -> int:
    """Enqueue jobs like these, whatever became of them, and print the ids of the new ones. What is not changed is as
    it was: the arguments, the queue, the priority, the limits, the retries."""
    given = _changes(changes)
    wanted = _options(options, selection.by)
    chosen = choose(invocation, Copying(), selection)
    if not chosen.ids and not chosen.missing:
        invocation.note("No jobs fit.")
        return ExitCode.OK
    if selection.dry_run:
        return show_choice(invocation, Copying(), chosen)
    if len(chosen.ids) > 1 and not selection.yes and not are_meant(Copying(), chosen):
        invocation.note("nothing was done")
        return ExitCode.REFUSED
    gone = chosen.missing + _copy_all(invocation, chosen, given, wanted)
    if gone:
        invocation.note(f"{len(chosen.ids) + chosen.missing - gone:,} copied, {gone:,} gone")
    if wanted.get("queue"):
        warn_unserved(invocation, invocation.storage, wanted["queue"])
    return ExitCode.UNSUCCESSFUL if gone else ExitCode.OK


def _changes(words: tuple[str, ...]) -> Given:
    given = read_given(words, None, None)
    if given.by_place:
        hint = "write --set width=800, or --set 'sizes:=[1, 2]' for JSON"
        raise CommandError(f"--set {words[0]} names no argument", ExitCode.USAGE, hint=hint)
    return given


def _options(given: dict[str, Any], by: str | None) -> dict[str, Any]:
    if given["delay"] is not None and given["at"] is not None:
        raise CommandError("give --in or --at, not both", ExitCode.USAGE, hint="--in 10m, or --at 2030-12-31T23:00")
    delay = None if given["delay"] is None else given["delay"] / SECOND
    wanted = {**given, "delay": delay, "created_by": by}
    return {name: value for name, value in wanted.items() if value is not None}


def _copy_all(invocation: Invocation, chosen: Chosen, given: Given, options: dict[str, Any]) -> int:
    """How many were gone before their turn came; the others are copied."""
    total, gone = len(chosen.ids), 0
    bar = ProgressLine(f"copy {number_of_jobs(total)}", quiet=invocation.quiet or total < _MANY)
    try:
        for done, job_id in enumerate(chosen.ids, 1):
            try:
                _copy_one(invocation, invocation.client.get(job_id), given, options)
            except JobNotFound:
                if total == 1 and not chosen.missing:
                    raise
                gone += 1
            bar.update(100 * done // total, "Ctrl-C stops after this one")
    finally:
        bar.clear()
    return gone


def _copy_one(invocation: Invocation, handle: JobHandle[Any], given: Given, options: dict[str, Any]) -> None:
    made = handle.copy(_changed(handle.args, given) if given.by_name else None, **options)
    if invocation.as_json:
        invocation.print_json({**plain_fields(invocation.client.effective_job(made.record)), "is_new": made.is_new})
        return
    word = "enqueued" if made.is_new else f"already {made.state}"
    invocation.note(f"{paint(word, 'green', err=True)} {shorten(escape(call_text(made.record)), 100)}")
    say(made.id)


def _changed(args: Mapping[str, Any], given: Given) -> dict[str, Any]:
    """The arguments with what was given; what was text stays text, also if it is written like a number."""
    changed = dict(args)
    for name, new in given.by_name.items():
        is_text = isinstance(args.get(name), str) and new.text is not None
        changed[name] = new.text if is_text else new.value
    return changed
