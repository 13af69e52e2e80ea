"""Choosing jobs to do something to: by ids, by ids on stdin, or by a filter; and asking whether these are meant.

The jobs are chosen before the question, and with each goes what was seen of it: those that come or change while one
thinks about it, or while the others are done, are not touched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Protocol

import click
from msgspec.structs import replace

from packhorse.cli.completion import complete_job
from packhorse.cli.context import CommandContext, is_sure
from packhorse.cli.errors import CommandError, ExitCode
from packhorse.cli.lookup import find_job, ids_from
from packhorse.cli.options import by_option, gathered
from packhorse.cli.output import one_line, say, short_ids
from packhorse.core.errors import BadValue
from packhorse.core.job import HELD, Job, Operation, State
from packhorse.monitor.filters import chooses_some, expand_names, find_all, parse_words_apart, usable_filters
from packhorse.monitor.text import count_text
from packhorse.storage import BATCH, Storage
from packhorse.storage.records import JobVersion

_EXAMPLES = 3
_LIKELY: dict[Operation | None, str] = {
    Operation.DELETE: "finished",
    Operation.ABORT: "unfinished",
    Operation.RETRY: "dead",
    None: "dead",
}


class Intent(Protocol):
    """What is to be done, as far as choosing needs to know: in words, and to jobs in which states."""

    @property
    def operation(self) -> Operation | None: ...
    @property
    def verb(self) -> str: ...
    @property
    def states(self) -> frozenset[State]: ...


class Selection(NamedTuple):
    """How the jobs are named, and how sure the user is."""

    ids: tuple[str, ...]
    where: str | None
    yes: bool
    dry_run: bool
    by: str | None


class Chosen(NamedTuple):
    """The jobs that are meant, and how each was seen; `examples` are the first of them. `missing` ids came on stdin and
    are not there."""

    seen: dict[str, JobVersion]
    examples: list[Job]
    missing: int = 0

    @property
    def ids(self) -> list[str]:
        return list(self.seen)

    @classmethod
    def of(cls, jobs: Iterable[Job], missing: int = 0) -> Chosen:
        seen: dict[str, JobVersion] = {}
        examples: list[Job] = []
        for job in jobs:
            seen[job.id] = JobVersion.of(job)
            if len(examples) < _EXAMPLES:
                examples.append(job)
        return cls(seen, examples, missing)


_OPTIONS: tuple[Callable[..., Any], ...] = (
    click.argument("ids", nargs=-1, metavar="[ID...|-]", shell_complete=complete_job),
    click.option(
        "--where",
        metavar="FILTER",
        help="All jobs that fit, e.g. 'state:dead task:resize since:2h'; the words are those of `packhorse jobs`.",
    ),
    click.option("--yes", is_flag=True, help="Do not ask."),
    click.option("--dry-run", is_flag=True, help="Only show which jobs it would be."),
    by_option,
)

on_jobs = gathered(Selection, _OPTIONS)
"""The options that name jobs; the function is handed them as one `Selection`."""


def choose(context: CommandContext, intent: Intent, selection: Selection) -> Chosen:
    """The jobs that are meant. CommandError and BadValue say what is the matter with how they are named."""
    storage = context.storage
    if selection.where is not None:
        if selection.ids:
            raise CommandError("give ids or --where, not both", ExitCode.USAGE)
        parts = expand_names([selection.where.strip()], usable_filters(context.settings, storage.now()))
        return _chosen_by_filter(storage, intent, parts)
    if not selection.ids:
        hint = f"packhorse {click.get_current_context().info_name} --help"
        raise CommandError("name the jobs: ids, - for ids on stdin, or --where", ExitCode.USAGE, hint=hint)
    ids = ids_from(selection.ids)
    if "-" in selection.ids:
        return _chosen_on_stdin(storage, ids)
    jobs = {job.id: job for job in (find_job(storage, part) for part in ids)}
    return Chosen.of(jobs.values())


def _chosen_by_filter(storage: Storage, intent: Intent, parts: list[str]) -> Chosen:
    now = storage.now()
    where = parse_words_apart(parts, now)
    if not chooses_some(parts, now):
        hint = f"say which, e.g. --where {_LIKELY.get(intent.operation, 'waiting')}"
        raise CommandError("--where chooses no jobs, and would mean every job", ExitCode.USAGE, hint=hint)
    where = replace(where, states=_possible(intent, where.states), order=None)
    return Chosen.of(find_all(storage, where))


def _possible(intent: Intent, asked: frozenset[State]) -> frozenset[State]:
    """Of the states that were asked for, those in which it can be done."""
    possible = asked & intent.states if asked else intent.states
    if not possible:
        hint = f"only those that are {', '.join(sorted(intent.states))}"
        if intent.operation is Operation.DELETE and asked & HELD:
            hint += "; with --force, those that run are aborted first"
        raise BadValue(f"cannot {intent.verb} jobs that are {', '.join(sorted(asked))}", hint=hint)
    return possible


def _chosen_on_stdin(storage: Storage, ids: list[str]) -> Chosen:
    jobs = [job for start in range(0, len(ids), BATCH) for job in storage.get_many(ids[start : start + BATCH])]
    if not jobs:
        hint = "whole ids are needed on stdin: packhorse jobs … --ids prints them"
        what = "the job on stdin is not there" if len(ids) == 1 else f"none of the {len(ids):,} jobs on stdin is there"
        raise CommandError(what, ExitCode.NOT_FOUND, hint=hint)
    return Chosen.of(jobs, len(ids) - len(jobs))


def together(parts: Iterable[Chosen]) -> Chosen:
    """The jobs of several choices as one."""
    every = list(parts)
    examples = [job for part in every for job in part.examples]
    seen = {job_id: each for part in every for job_id, each in part.seen.items()}
    return Chosen(seen, examples[:_EXAMPLES], sum(part.missing for part in every))


# --- asking -----------------------------------------------------------------------------------------------------------


def show_choice(context: CommandContext, intent: Intent, chosen: Chosen) -> int:
    """What would be done, for --dry-run."""
    if context.as_json:
        for job_id in chosen.seen:
            context.print_json({"id": job_id})
    else:
        say(f"would {_what(intent, chosen)}")
    return ExitCode.OK


def _what(intent: Intent, chosen: Chosen) -> str:
    number = len(chosen.seen)
    shown = short_ids(job.id for job in chosen.examples)
    lines = [f"{intent.verb} {number_of_jobs(number)}:"]
    lines += [f"  {one_line(job, shown[job.id])}" for job in chosen.examples]
    if number > len(chosen.examples):
        lines.append(f"  … and {number - len(chosen.examples):,} more")
    return "\n".join(lines)


def number_of_jobs(number: int) -> str:
    """In words."""
    return count_text(number, "job")


def are_meant(intent: Intent, chosen: Chosen) -> bool:
    """Ask whether it shall be done to these."""
    refusal = f"will not {intent.verb} {number_of_jobs(len(chosen.seen))} without being sure"
    return is_sure(_what(intent, chosen), refusal, "look with --dry-run, then say --yes")
