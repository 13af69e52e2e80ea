"""Select the jobs that an action is for: by ids, by ids on stdin, or by a filter. Show them, and ask before many.

The jobs are selected before the question, each with the version that was seen: jobs that come or change meanwhile are
not touched.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import click

from packhorse.cli.completion import complete_job
from packhorse.cli.context import CommandContext
from packhorse.cli.errors import CommandError, ExitCode
from packhorse.cli.lookup import find_job, ids_from
from packhorse.cli.options import by_option, grouped
from packhorse.cli.output import job_line, say, short_ids
from packhorse.core.errors import BadValue
from packhorse.core.job import HELD, Operation, State
from packhorse.monitor.actions import JobSelection, narrow_states, select_ids, select_matching
from packhorse.monitor.filters import chooses_some, expand_names, parse_words_apart, usable_filters
from packhorse.monitor.text import count_text

_LIKELY: dict[Operation | None, str] = {
    Operation.DELETE: "finished",
    Operation.ABORT: "unfinished",
    Operation.RETRY: "dead",
    None: "dead",
}


class Action(Protocol):
    """What selecting needs to know about an action; a `JobAction` has it."""

    @property
    def operation(self) -> Operation | None: ...
    @property
    def verb(self) -> str: ...
    @property
    def states(self) -> frozenset[State]: ...


class SelectionOptions(NamedTuple):
    """Which jobs, whether to ask, and who does it."""

    ids: tuple[str, ...]
    where: str | None
    yes: bool
    dry_run: bool
    by: str | None


_OPTIONS: tuple[Callable[..., Any], ...] = (
    click.argument("ids", nargs=-1, metavar="[ID...|-]", shell_complete=complete_job),
    click.option(
        "--where",
        metavar="FILTER",
        help="All jobs that match, e.g. 'state:dead task:resize since:2h'; the words are those of `packhorse jobs`.",
    ),
    click.option("--yes", is_flag=True, help="Do not ask."),
    click.option("--dry-run", is_flag=True, help="Only show which jobs would change."),
    by_option,
)

selection_options = grouped(SelectionOptions, _OPTIONS)
"""Add the options that select jobs; the function gets them as one `SelectionOptions`."""


def select_jobs(context: CommandContext, action: Action, options: SelectionOptions) -> JobSelection:
    """Select the jobs. Raise CommandError or BadValue if the options do not say which."""
    storage = context.storage
    if options.where is not None:
        if options.ids:
            raise CommandError("give ids or --where, not both", ExitCode.USAGE)
        return _select_by_filter(context, action, options.where)
    if not options.ids:
        hint = f"packhorse {click.get_current_context().info_name} --help"
        raise CommandError("name the jobs: ids, - for ids on stdin, or --where", ExitCode.USAGE, hint=hint)
    ids = ids_from(options.ids)
    if "-" not in options.ids:
        return JobSelection.of({job.id: job for job in (find_job(storage, part) for part in ids)}.values())
    selection = select_ids(storage, ids)
    if not selection.seen:
        hint = "whole ids are needed on stdin: packhorse jobs … --ids prints them"
        what = "the job on stdin does not exist" if len(ids) == 1 else f"none of the {len(ids):,} jobs on stdin exists"
        raise CommandError(what, ExitCode.NOT_FOUND, hint=hint)
    return selection


def _select_by_filter(context: CommandContext, action: Action, words: str) -> JobSelection:
    storage = context.storage
    now = storage.now()
    parts = expand_names([words.strip()], usable_filters(context.settings, now))
    where = parse_words_apart(parts, now)
    if not chooses_some(parts, now):
        hint = f"say which, e.g. --where {_LIKELY.get(action.operation, 'waiting')}"
        raise CommandError("--where has no condition, and would mean every job", ExitCode.USAGE, hint=hint)
    try:
        return select_matching(storage, narrow_states(where, action.states, action.verb))
    except BadValue as error:
        if action.operation is Operation.DELETE and where.states & HELD:
            error.hint = f"{error.hint}; --force aborts running jobs first"
        raise


def show_selection(context: CommandContext, action: Action, selection: JobSelection) -> int:
    """Print what would change, for --dry-run."""
    if context.as_json:
        for job_id in selection.seen:
            context.print_json({"id": job_id})
    else:
        say(f"would {_selection_text(action, selection)}")
    return ExitCode.OK


def confirm_selection(context: CommandContext, action: Action, selection: JobSelection) -> bool:
    """Ask whether to change these jobs."""
    refusal = f"will not {action.verb} {count_text(len(selection.seen), 'job')} without confirmation"
    return context.confirm(_selection_text(action, selection), refusal, "look with --dry-run, then say --yes")


def _selection_text(action: Action, selection: JobSelection) -> str:
    number = len(selection.seen)
    ids = short_ids(job.id for job in selection.examples)
    lines = [f"{action.verb} {count_text(number, 'job')}:"]
    lines += [f"  {job_line(job, ids[job.id])}" for job in selection.examples]
    if number > len(selection.examples):
        lines.append(f"  … and {number - len(selection.examples):,} more")
    return "\n".join(lines)
