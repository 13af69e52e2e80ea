"""Lists of jobs: `packhorse jobs`, by filter, and `packhorse next`, in the order in which workers take them."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import click
from msgspec.structs import replace

from packhorse.cli.completion import complete_filter, complete_queue, complete_task
from packhorse.cli.context import CommandContext
from packhorse.cli.errors import ExitCode
from packhorse.cli.follow import follow_jobs
from packhorse.cli.options import command, number_option, refuse_beside
from packhorse.cli.output import (
    Display,
    escape,
    paint,
    ran_text,
    say,
    short_ids,
    state_style,
    terminal_size,
)
from packhorse.cli.table import Column, print_table
from packhorse.core.clock import SECOND
from packhorse.core.errors import did_you_mean
from packhorse.core.job import QUEUED, Job
from packhorse.monitor.filters import (
    SLOWEST_OF,
    expand_names,
    find_all,
    find_pages,
    parse_words_apart,
    slowest,
    usable_filters,
)
from packhorse.monitor.schedules import NextJob, order_next_jobs, queue_weights
from packhorse.monitor.serializers import job_fields
from packhorse.monitor.text import (
    attempt_text,
    call_text,
    count_text,
    main_time,
    note_text,
    state_text,
)
from packhorse.storage.contract import BATCH
from packhorse.storage.queries import BY_DUE_TIME, LATEST_FINISHED, NEWEST, decode_cursor, is_tallied, order_for
from packhorse.storage.records import BY_AGE, Filter

_ROWS = 50
_WIDE = 120  # columns of a terminal that has room for one more column
_FOLLOW_ROWS = 10  # jobs that --follow prints first, as `tail` prints ten lines


@command(
    "jobs",
    "packhorse jobs dead",
    "packhorse jobs queue:mail state:queued,retrying since:2h -n 200",
    "packhorse jobs dead --task resize --ids | packhorse retry -",
    "packhorse jobs args.user_id:42 'attempts:>1' 'took:>30s'",
    "packhorse jobs 'cannot decode'",
    "packhorse jobs failed --follow",
    "packhorse jobs dead since:1d --count",
    pages=True,
)
@click.argument("words", nargs=-1, metavar="[STATE | WORD:VALUE | TEXT]...", shell_complete=complete_filter)
@click.option("--queue", metavar="QUEUE", help="Only of this queue.", shell_complete=complete_queue)
@click.option("--task", metavar="TASK", help="Only of this task.", shell_complete=complete_task)
@click.option("--since", metavar="DURATION|TIME", help="Only those enqueued since then.")
@number_option("-n", "number", help="How many; 0 is all. Without it a table has 50, --ids and --json have all.")
@click.option("--ids", "only_ids", is_flag=True, help="Print only ids, one on a line.")
@click.option(
    "--count", "only_count", is_flag=True, help="Print only the exact number of matching jobs; Ctrl-C stops it."
)
@click.option(
    "-f", "--follow", is_flag=True, help="Then print jobs that are new or change, a line each, until Ctrl-C; -n is 10."
)
def jobs(
    context: CommandContext,
    words: tuple[str, ...],
    number: int | None,
    only_ids: bool,
    only_count: bool,
    follow: bool,
    **filters: Any,
) -> int | None:
    """List jobs: queued ones by rank and age, finished ones by their end, others by their age.

    A STATE is one of scheduled, queued, reserved, running, retrying, completed, dead, aborted, or waiting, held,
    unfinished, finished, failed, halted. WORD is state, queue, task, worker, cause, priority, attempts, took, waited,
    schedule, key, id, error, text, since, until, order, or args.NAME for the value of an argument. TEXT is found in a
    job's id, task, arguments and error. @NAME is a filter below [tool.packhorse.filters] in pyproject.toml. `packhorse
    help filters` says more.

    A table searches for five seconds at most. Then it prints what it found and how far it looked, and the exit code is
    7. -n 0, --ids and --json look at all jobs.
    """
    if only_count:
        refuse_beside("--count", "follow", "only_ids", "number", hint="--count prints one number")
    context.warn_if_moved()
    more = [f"{name}:{value}" for name, value in filters.items() if value is not None]
    now = context.storage.now()
    where = parse_words_apart(expand_names([*words, *more], usable_filters(context.settings, now)), now)
    if only_count:
        _print_count(context, where)
        return None
    if follow:
        follow_jobs(context, where, (_FOLLOW_ROWS if number is None else number) or None, only_ids=only_ids)
        return None
    if only_ids or context.as_json:
        _print_all(context, where, number or None, only_ids=only_ids)
        return None
    return _print_table(context, where, (_ROWS if number is None else number) or None)


def _print_all(context: CommandContext, where: Filter, limit: int | None, *, only_ids: bool) -> None:
    """Print a line for each job, as they are found: for programs."""
    job, now = None, context.storage.now()
    for job in find_all(context.storage, where, limit):
        if only_ids:
            say(escape(job.id))
        else:
            context.print_json(job_fields(context.client.effective_job(job), now))
    if job is None and where.queue is not None:
        context.note(_no_jobs_text(context, where))


def _print_table(context: CommandContext, where: Filter, limit: int | None) -> int | None:
    """Print what is found in time, and how far the search came: for people."""
    found = search(context, where, limit) if limit else SearchResult(list(find_all(context.storage, where)))
    if found.jobs:
        is_about_time = where.order == "took" or (where.min_took, where.max_took) != (None, None)
        print_jobs(context.display, list(map(context.client.effective_job, found.jobs)), has_ran=is_about_time)
    if found.looked_at is not None:
        none = "" if found.jobs else "No jobs match so far. "
        context.note(escape(f"{none}Searched only jobs {found.looked_at}; -n 0 searches all."))
        return ExitCode.TIMED_OUT
    if not found.jobs:
        context.note(_no_jobs_text(context, where))
    elif limit is not None and len(found.jobs) >= limit:
        _note_more(context, where, len(found.jobs))
    return None


def _print_count(context: CommandContext, where: Filter) -> None:
    """Print the number of all matching jobs."""
    storage, where = context.storage, replace(where, order=None)
    number = storage.count(where).number if is_tallied(where) else _counted(context, where)
    context.print_json({"count": number}) if context.as_json else say(str(number))


def _counted(context: CommandContext, where: Filter) -> int:
    number = 0
    try:
        for page in find_pages(context.storage, where):
            number += len(page.jobs)
    except KeyboardInterrupt:
        context.note(f"at least {number:,} match")
        raise
    return number


def print_jobs(display: Display, listed: Sequence[Job], *, has_ran: bool = False) -> None:
    """Print a table of jobs; with their run time if that was asked for, or the terminal is wide."""
    has_ran = has_ran or (display.is_terminal and terminal_size().columns >= _WIDE)
    print_table(*job_table(display, listed, has_ran=has_ran))


def job_table(
    display: Display, listed: Sequence[Job], *, has_ran: bool = False
) -> tuple[list[Column], list[list[str]]]:
    """The columns and rows of a table of jobs. On a terminal, leave out columns that say nothing."""
    ids = short_ids(job.id for job in listed) if display.is_terminal else {}
    has_queues = not display.is_terminal or any(job.queue != job.task for job in listed)
    has_remarks = not display.is_terminal or any(map(note_text, listed))
    columns = [
        Column("ID"),
        Column("STATE", style=state_style),
        Column("TRY", right=True),
        Column("PRI", right=True, spare=2),
        Column("WHEN", right=display.is_terminal),
        *([Column("RAN", right=display.is_terminal)] if has_ran else []),
        *([Column("QUEUE", flexible=True, spare=1)] if has_queues else []),
        Column("CALL", flexible=True, least=30),
        *([Column("REMARK", flexible=True, style="dim")] if has_remarks else []),
    ]
    rows = [
        [
            ids.get(job.id, job.id),
            state_text(job),
            attempt_text(job),
            str(job.priority),
            display.time(main_time(job)),
            *([_ran(job, display)] if has_ran else []),
            *([job.queue] if has_queues else []),
            call_text(job, whole=not display.is_terminal),
            *([note_text(job)] if has_remarks else []),
        ]
        for job in listed
    ]
    return columns, rows


def _ran(job: Job, display: Display) -> str:
    """How long the last attempt ran, or has run so far; in a pipe, in seconds."""
    took = job.took(display.now)
    if took is None:
        return "-"
    return ran_text(took) if display.is_terminal else f"{took / SECOND:.6f}"


def _no_jobs_text(context: CommandContext, where: Filter) -> str:
    if where.queue is not None:
        names = [queue.name for queue in context.storage.queues()]
        if where.queue not in names:
            reason = f"there is no queue {where.queue!r}{did_you_mean(where.queue, names)}"
            return f"No jobs match: {escape(reason)}"
    if where != Filter():
        return "No jobs match."
    return "There are no jobs yet. Put one in: packhorse enqueue NAME"


def _note_more(context: CommandContext, where: Filter, listed: int) -> None:
    if not is_tallied(where):
        context.note(
            paint(
                f"{count_text(listed, 'job is', 'jobs are')} shown; there may be more: -n 0 shows all", "dim", err=True
            )
        )
        return
    total = context.storage.count(where).number
    if total > listed:
        context.note(
            paint(f"{listed:,} of {total:,} {'is' if listed == 1 else 'are'} shown; -n 0 shows all", "dim", err=True)
        )


_TIMEOUT = 5.0  # seconds
_UPDATE_EVERY = 0.3
_PAGE = 200


class SearchResult(NamedTuple):
    """The jobs that were found; `looked_at` says which jobs were searched, if not all."""

    jobs: list[Job]
    looked_at: str | None = None


def search(context: CommandContext, where: Filter, limit: int) -> SearchResult:
    """Find the first matching jobs. The time limit counts only while pages come back less than full."""
    if where.order == "took":
        found = search(context, replace(where, order=None), SLOWEST_OF)
        return found._replace(jobs=slowest(found.jobs, context.storage.now())[:limit])
    line = _SearchLine(context)
    deadline = time.monotonic() + _TIMEOUT
    jobs: list[Job] = []
    cursor = None
    try:
        while True:
            wanted = min(limit - len(jobs), _PAGE)
            page = context.storage.find(where, cursor=cursor, limit=wanted)
            jobs += page.jobs
            cursor = page.next
            if cursor is None or len(jobs) >= limit:
                return SearchResult(jobs)
            if len(page.jobs) < wanted and time.monotonic() > deadline:
                return SearchResult(jobs, _looked_at(context, where, cursor))
            line.update(where, cursor)
    finally:
        line.clear()


def _looked_at(context: CommandContext, where: Filter, cursor: str) -> str:
    """Which jobs come before this place of the list."""
    order, display = order_for(where), context.display
    place = decode_cursor(cursor, order)
    if place is None:
        return "at the beginning of the list"
    if order is LATEST_FINISHED:
        return f"ended since {display.full_time(-place[0])}"
    if order is BY_DUE_TIME:
        return f"due until {display.full_time(place[0])}"
    if order is NEWEST:
        behind = context.storage.find(Filter(), cursor=cursor, limit=1).jobs
        return f"enqueued since {display.full_time(behind[0].created_at)}" if behind else "there"
    return "that are next"


class _SearchLine:
    """A line on the terminal that shows how far the search is. It bypasses the pager, which would hold it back."""

    def __init__(self, context: CommandContext) -> None:
        self._context = context
        self._out = sys.__stderr__
        self._is_seen = self._out is not None and self._out.isatty() and sys.stderr.isatty() and not context.quiet
        self._next_at = time.monotonic() + _UPDATE_EVERY
        self._is_drawn = False

    def update(self, where: Filter, cursor: str) -> None:
        """Show the progress, a few times a second."""
        if self._is_seen and time.monotonic() >= self._next_at:
            self._write(f"\r\x1b[2KSearching … jobs {escape(_looked_at(self._context, where, cursor))}")
            self._next_at = time.monotonic() + _UPDATE_EVERY
            self._is_drawn = True

    def clear(self) -> None:
        """Remove the line."""
        if self._is_drawn:
            self._write("\r\x1b[2K")

    def _write(self, text: str) -> None:
        if self._out is not None:
            self._out.write(text)
            self._out.flush()


_NEXT_ROWS = 20
_NEXT_COLUMNS = [
    Column("PLACE", right=True),
    Column("ID"),
    Column("TIER"),
    Column("RANK", right=True),
    Column("QUEUE", flexible=True),
    Column("IN QUEUE", right=True),
    Column("CALL", flexible=True, least=20),
]


@command("next", "packhorse next", "packhorse next --explain -n 5", pages=True)
@number_option("-n", "number", default=_NEXT_ROWS, show_default=True, help="How many; 0 is all.")
@click.option("--explain", is_flag=True, help="Explain the order.")
def next_up(context: CommandContext, number: int, explain: bool) -> None:
    """The queued jobs in the order in which workers take them, each with its rank and its place in its queue. Jobs of
    paused queues are left out, except forced ones."""
    context.warn_if_moved()
    order = _storage_order(context)
    waiting, paused = _next_jobs(context, order)
    found = waiting[: number or None]
    if context.as_json:
        for one in found:
            context.print_json(_next_fields(one))
        return
    if explain:
        say(_order_rules(order))
    if not found:
        context.note("No job is queued.")
        _note_paused(context, paused)
        return
    ids = short_ids(one.job.id for one in found) if context.display.is_terminal else {}
    print_table(_NEXT_COLUMNS, [_next_row(one, ids.get(one.job.id, one.job.id)) for one in found])
    _note_paused(context, paused)


def _note_paused(context: CommandContext, paused: Counter[str]) -> None:
    for queue, number in sorted(paused.items()):
        waits = count_text(number, "more waits", "more wait")
        context.note(f"{waits} in the paused queue {escape(queue)}: packhorse resume {escape(queue)}")


def _next_jobs(context: CommandContext, order: str) -> tuple[list[NextJob], Counter[str]]:
    """The queued jobs in order, and how many each paused queue holds back."""
    storage = context.storage
    paused = {queue.name for queue in storage.queues() if queue.is_paused}
    queued = storage.find(Filter(states=frozenset({QUEUED})), limit=BATCH).jobs
    jobs = [job for job in queued if job.queue not in paused or job.is_forced]
    held_back = Counter(job.queue for job in queued if job.queue in paused and not job.is_forced)
    return order_next_jobs(jobs, order, queue_weights(storage.tasks())), held_back


def _storage_order(context: CommandContext) -> str:
    return context.storage.poll("", []).order


def _order_rules(order: str) -> str:
    within = (
        "within a rank the oldest goes first, whatever its queue (order = created)"
        if order == BY_AGE
        else "within a rank queues take turns by weight, and in a queue the oldest goes first (order = turns)"
    )
    return f"lowest rank first: recovered 0, forced 1, halted 2, then priority 10 … 1 as 3 … 12; {within}"


def _next_row(one: NextJob, shown_id: str) -> list[str]:
    job = one.job
    return [str(one.place), shown_id, one.tier, str(job.rank), job.queue, str(one.place_in_queue), call_text(job)]


def _next_fields(one: NextJob) -> dict[str, Any]:
    job = one.job
    fields = {name: getattr(job, name) for name in ("rank", "id", "task", "queue", "priority")}
    return {"place": one.place, "place_in_queue": one.place_in_queue, "tier": one.tier, **fields}
