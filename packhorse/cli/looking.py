"""Looking: lists of jobs, queues, workers and events.

Only the storage is asked, never a worker, and no code of the user's is imported.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import click
from msgspec.structs import replace

from packhorse.cli.completing import complete_filter, complete_job, complete_queue, complete_task, complete_worker
from packhorse.cli.failing import CommandError, ExitCode
from packhorse.cli.following import follow_jobs, new_events, newest_event, stored_events
from packhorse.cli.invocation import Invocation
from packhorse.cli.job_text import ran_text
from packhorse.cli.options import command, number_option, refuse_beside
from packhorse.cli.output import (
    STATE_STYLES,
    Shown,
    escape,
    fit_line,
    json_text,
    paint,
    say,
    short_id,
    short_ids,
    short_owner,
    state_style,
    terminal_size,
    unless_nought,
)
from packhorse.cli.search import Found, search
from packhorse.cli.table import Column, print_table
from packhorse.cli.where import find_job
from packhorse.core.clock import SECOND
from packhorse.core.errors import BadValue, did_you_mean
from packhorse.core.event import Event, Kind, Subject, known_kind
from packhorse.core.job import HELD, Job, State
from packhorse.monitor.event_objects import event_queue, with_objects
from packhorse.monitor.filters import expand_names, find_all, find_pages, parse_words_apart, usable_filters
from packhorse.monitor.serializers import event_fields, iso, job_fields, object_fields, queue_fields
from packhorse.monitor.text import (
    attempt_text,
    call_text,
    count_text,
    main_time,
    note_text,
    pause_text,
    shorten,
    span_text,
    state_text,
)
from packhorse.storage.queries import is_tallied
from packhorse.storage.records import EventFilter, Filter, QueueInfo

_ROWS = 50
_LONG_VALUE = 120
_WIDE = 120  # columns of a terminal on which a list of jobs has room for more
_FOLLOWED = 10  # jobs that are there already, as `tail` shows ten lines


# --- jobs -------------------------------------------------------------------------------------------------------------


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
@click.option("--count", "only_count", is_flag=True, help="Print only how many fit, counted exactly; Ctrl-C stops it.")
@click.option(
    "-f", "--follow", is_flag=True, help="Go on with jobs that are new or change, a line each, until Ctrl-C; -n is 10."
)
def jobs(
    invocation: Invocation,
    words: tuple[str, ...],
    number: int | None,
    only_ids: bool,
    only_count: bool,
    follow: bool,
    **words_too: Any,
) -> int | None:
    """List jobs: those in line by rank, then age, finished ones by the latest, others by the newest.

    A STATE is one of scheduled, queued, reserved, running, retrying, completed, dead, aborted, or waiting, held,
    unfinished, finished, failed, halted. WORD is state, queue, task, worker, cause, priority, attempts, took, waited,
    schedule, key, id, error, text, since, until, order, or args.NAME for the value of an argument. TEXT is found in a
    job's id, task, arguments and error. @NAME is a filter below [tool.packhorse.filters] in pyproject.toml. `packhorse
    help filters` says more.

    A table for which very many jobs would have to be looked through ends with what was found, says how far it looked,
    and the exit code is 7; -n 0, --ids and --json look at all.
    """
    if only_count:
        refuse_beside("--count", "follow", "only_ids", "number", hint="--count prints one number, of all that fit")
    invocation.tell_move()
    more = [f"{name}:{value}" for name, value in words_too.items() if value is not None]
    now = invocation.storage.now()
    where = parse_words_apart(expand_names([*words, *more], usable_filters(invocation.settings, now)), now)
    if only_count:
        _print_count(invocation, where)
        return None
    if follow:
        follow_jobs(invocation, where, (_FOLLOWED if number is None else number) or None, only_ids=only_ids)
        return None
    if only_ids or invocation.as_json:
        _print_all(invocation, where, number or None, only_ids=only_ids)
        return None
    return _print_table(invocation, where, (_ROWS if number is None else number) or None)


def _print_all(invocation: Invocation, where: Filter, limit: int | None, *, only_ids: bool) -> None:
    """For programs: a line for each, as they are found."""
    job, now = None, invocation.storage.now()
    for job in find_all(invocation.storage, where, limit):
        if only_ids:
            say(escape(job.id))
        else:
            invocation.print_json(job_fields(invocation.client.effective_job(job), now))
    if job is None and where.queue is not None:
        invocation.note(_none_fit(invocation, where))


def _print_table(invocation: Invocation, where: Filter, limit: int | None) -> int | None:
    """For people: what is found soon, and how far was looked if that was not all."""
    found = search(invocation, where, limit) if limit else Found(list(find_all(invocation.storage, where)))
    if found.jobs:
        is_about_time = where.order == "took" or (where.min_took, where.max_took) != (None, None)
        print_jobs(invocation.shown, list(map(invocation.client.effective_job, found.jobs)), has_ran=is_about_time)
    if found.reach is not None:
        none = "" if found.jobs else "No jobs fit so far. "
        invocation.note(escape(f"{none}Only those {found.reach} were looked at; -n 0 looks at all."))
        return ExitCode.TIMED_OUT
    if not found.jobs:
        invocation.note(_none_fit(invocation, where))
    elif limit is not None and len(found.jobs) >= limit:
        _tell_more(invocation, where, len(found.jobs))
    return None


def _print_count(invocation: Invocation, where: Filter) -> None:
    """How many fit, all of them."""
    storage, where = invocation.storage, replace(where, order=None)
    number = storage.count(where).number if is_tallied(where) else _counted(invocation, where)
    invocation.print_json({"count": number}) if invocation.as_json else say(str(number))


def _counted(invocation: Invocation, where: Filter) -> int:
    number = 0
    try:
        for page in find_pages(invocation.storage, where):
            number += len(page.jobs)
    except KeyboardInterrupt:
        invocation.note(f"at least {number:,} fit")
        raise
    return number


def print_jobs(shown: Shown, listed: Sequence[Job], *, has_ran: bool = False) -> None:
    """A table of jobs; how long they ran is told where it is asked for, or there is room."""
    has_ran = has_ran or (shown.is_terminal and terminal_size().columns >= _WIDE)
    print_table(*job_table(shown, listed, has_ran=has_ran))


def job_table(shown: Shown, listed: Sequence[Job], *, has_ran: bool = False) -> tuple[list[Column], list[list[str]]]:
    """Columns and rows of a table of jobs. On a terminal, columns that would tell nothing are left out."""
    ids = short_ids(job.id for job in listed) if shown.is_terminal else {}
    has_queues = not shown.is_terminal or any(job.queue != job.task for job in listed)
    has_remarks = not shown.is_terminal or any(map(note_text, listed))
    columns = [
        Column("ID"),
        Column("STATE", style=state_style),
        Column("TRY", right=True),
        Column("PRI", right=True, spare=2),
        Column("WHEN", right=shown.is_terminal),
        *([Column("RAN", right=shown.is_terminal)] if has_ran else []),
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
            shown.time(main_time(job)),
            *([_ran(job, shown)] if has_ran else []),
            *([job.queue] if has_queues else []),
            call_text(job, whole=not shown.is_terminal),
            *([note_text(job)] if has_remarks else []),
        ]
        for job in listed
    ]
    return columns, rows


def _ran(job: Job, shown: Shown) -> str:
    """How long its latest attempt ran, or has run by now; in a pipe, in seconds."""
    took = job.took(shown.now)
    if took is None:
        return "-"
    return ran_text(took) if shown.is_terminal else f"{took / SECOND:.6f}"


def _none_fit(invocation: Invocation, where: Filter) -> str:
    if where.queue is not None:
        names = [queue.name for queue in invocation.storage.queues()]
        if where.queue not in names:
            told = f"there is no queue {where.queue!r}{did_you_mean(where.queue, names)}"
            return f"No jobs fit: {escape(told)}"
    if where != Filter():
        return "No jobs fit."
    return "There are no jobs yet. Put one in: packhorse enqueue NAME"


def _tell_more(invocation: Invocation, where: Filter, listed: int) -> None:
    if not is_tallied(where):
        invocation.note(
            paint(
                f"{count_text(listed, 'job is', 'jobs are')} shown; there may be more: -n 0 shows all", "dim", err=True
            )
        )
        return
    total = invocation.storage.count(where).number
    if total > listed:
        invocation.note(
            paint(f"{listed:,} of {total:,} {'is' if listed == 1 else 'are'} shown; -n 0 shows all", "dim", err=True)
        )


# --- queues -----------------------------------------------------------------------------------------------------------


@command("queues", "packhorse queues", "packhorse queues --json | jq -r 'select(.paused_at) | .name'", pages=True)
def queues(invocation: Invocation) -> None:
    """Every queue: its numbers of jobs, how long the oldest waits, and whether it is paused."""
    invocation.tell_move()
    found = invocation.storage.queues()
    if invocation.as_json:
        now = invocation.storage.now()
        for queue in found:
            invocation.print_json(queue_fields(queue, now))
    elif not found:
        invocation.note("There are no queues yet: the first job makes one.")
    else:
        _print_queues(invocation.shown, found)


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


# --- events -----------------------------------------------------------------------------------------------------------


@command(
    "events",
    "packhorse events -f",
    "packhorse events --job 1be2c845",
    "packhorse events --kind broken --queue mail -n 20",
    "packhorse events --job 1be2c845 --object --json",
    pages=True,
)
@click.option("--job", "job_id", metavar="ID", help="Only of this job.", shell_complete=complete_job)
@click.option("--queue", metavar="QUEUE", help="Only of this queue and its jobs.", shell_complete=complete_queue)
@click.option("--kind", metavar="KIND", help="Only of this kind: added, completed, failed, broken, halted, paused …")
@click.option("--worker", metavar="ID", help="Only of this worker.", shell_complete=complete_worker)
@click.option(
    "--subject", type=click.Choice([each.value for each in Subject]), help="Only about jobs, workers, foremen …"
)
@number_option("-n", "number", default=_ROWS, show_default=True, help="How many of the latest; 0 is all, with -f none.")
@click.option("-f", "--follow", is_flag=True, help="Go on with what happens, until Ctrl-C.")
@click.option(
    "--object", "with_object", is_flag=True, help="Print with each the job or the worker as it was after it, as JSON."
)
def events(
    invocation: Invocation, job_id: str | None, number: int, follow: bool, with_object: bool, **rest: Any
) -> None:
    """What happened to jobs, workers, queues and schedules, the latest last."""
    invocation.tell_move()
    where = EventFilter(
        job_id=_job_id(invocation, job_id),
        kind=_kind(rest["kind"]),
        queue=rest["queue"],
        owner=_owner(invocation, rest["worker"]),
        subject=Subject(rest["subject"]) if rest["subject"] else None,
    )
    last = newest_event(invocation.storage) if follow else 0
    if number == 0 and not follow:
        pages = stored_events(invocation.storage, where)
    else:
        pages = iter([invocation.storage.events(where, limit=number, newest_first=True)[::-1]] if number else [])
    found: list[Event] = []
    for found in pages:
        for event in with_objects(invocation.storage, found) if with_object else found:
            _print_event(invocation, event, with_object)
    if not found and not follow:
        invocation.note("No events fit." if where != EventFilter() else "Nothing has happened yet.")
    if follow:
        for event in new_events(invocation.storage, where, found[-1].id if found else last):
            for told in with_objects(invocation.storage, [event]) if with_object else [event]:
                _print_event(invocation, told, with_object)


def _job_id(invocation: Invocation, part: str | None) -> str | None:
    """The id that is meant. Of a job that is gone, the events are still there under its whole id."""
    if part is None:
        return None
    try:
        return find_job(invocation.storage, part, is_shown=True).id
    except CommandError as error:
        if error.exit_code is ExitCode.NOT_FOUND and invocation.storage.events(EventFilter(job_id=part), limit=1):
            return part
        raise


def _owner(invocation: Invocation, part: str | None) -> str | None:
    """The worker that is meant: one that is there by a part of its id, any other by the whole of it."""
    known = [worker.id for worker in invocation.storage.workers()] if part else []
    meant = [owner for owner in known if part and (owner.startswith(part) or owner.endswith(part))]
    return meant[0] if len(meant) == 1 else part


def _kind(word: str | None) -> Kind | None:
    try:
        return None if word is None else known_kind(word.lower())
    except ValueError:
        kinds = [kind.value for kind in Kind]
        hint = f"the kinds are {', '.join(kinds)}"
        raise BadValue(f"there is no kind of event {word!r}{did_you_mean(str(word), kinds)}", hint=hint) from None


def _print_event(invocation: Invocation, event: Event, with_object: bool) -> None:
    if invocation.as_json:
        invocation.print_json(event_fields(event, object=with_object))
        return
    shown = invocation.shown
    kind = paint(f"{event.kind:<16}", state_style(event.state or ""))
    who = f"{_who(event):<8}" if shown.is_terminal else f"{event.job_id or event.owner or event.queue or '':<36}"
    line = f"{paint(shown.clock_time(event.at), 'dim')}  {event.subject:<8}  {kind}  {escape(who)}  "
    data = event_data(event, whole=not shown.is_terminal)
    rest = f"{event_queue(event) or '':<16}  {data}" if event.job_id or event.subject is Subject.WORKER else data
    say(f"{line}{fit_line(line, escape(rest))}".rstrip())
    if with_object:
        say(f"    {escape(json_text(object_fields(event)))}")


def _who(event: Event) -> str:
    """Whom it is about, in short."""
    if event.job_id:
        return short_id(event.job_id)
    return short_owner(event.owner) if event.owner else event.queue or ""


def event_data(event: Event, *, whole: bool) -> str:
    """What an event carries, in a few words, what went wrong first; long values are cut unless it shall be whole."""
    data = sorted((event.data or {}).items(), key=lambda item: item[0] not in ("error", "why"))
    texts = {name: _value(name, value) for name, value in data if value not in (None, []) and name != "object"}
    parts = [f"{name}={text if whole else shorten(text, _LONG_VALUE)}" for name, text in texts.items()]
    if event.job_id and event.owner:
        parts.insert(0, f"on {event.owner if whole else short_owner(event.owner)}")
    return "  ".join(parts)


def _value(name: str, value: Any) -> str:
    if (name in ("slot", "until") or name.endswith("_at")) and isinstance(value, int):
        return str(iso(value))
    if name in ("retry_in", "delay", "ran", "duration") and isinstance(value, int):
        return span_text(value)
    if isinstance(value, dict) and "type" in value:
        return f"{value['type']}: {value.get('message', '')}"
    return value if isinstance(value, str) else json_text(value)
