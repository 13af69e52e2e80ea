"""Events: `packhorse events`."""

from __future__ import annotations

from typing import Any

import click

from packhorse.cli.completion import complete_job, complete_queue, complete_worker
from packhorse.cli.context import CommandContext
from packhorse.cli.errors import CommandError, ExitCode
from packhorse.cli.follow import new_events, newest_event, stored_events
from packhorse.cli.lookup import find_job
from packhorse.cli.options import command, number_option
from packhorse.cli.output import (
    escape,
    fit_line,
    json_text,
    paint,
    say,
    short_id,
    short_owner,
    state_style,
)
from packhorse.core.errors import BadValue, did_you_mean
from packhorse.core.event import Event, Kind, Subject, known_kind
from packhorse.monitor.event_objects import event_queue, with_objects
from packhorse.monitor.serializers import event_fields, iso, object_fields
from packhorse.monitor.text import (
    shorten,
    span_text,
)
from packhorse.storage.records import EventFilter

_ROWS = 50
_MAX_VALUE = 120


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
@click.option("-f", "--follow", is_flag=True, help="Then print new events, until Ctrl-C.")
@click.option(
    "--object", "with_object", is_flag=True, help="Print with each event the job or the worker after it, as JSON."
)
def events(
    context: CommandContext, job_id: str | None, number: int, follow: bool, with_object: bool, **rest: Any
) -> None:
    """What happened to jobs, workers, queues and schedules, the latest last."""
    context.warn_if_moved()
    where = EventFilter(
        job_id=_job_id(context, job_id),
        kind=_kind(rest["kind"]),
        queue=rest["queue"],
        owner=_owner(context, rest["worker"]),
        subject=Subject(rest["subject"]) if rest["subject"] else None,
    )
    last = newest_event(context.storage) if follow else 0
    if number == 0 and not follow:
        pages = stored_events(context.storage, where)
    else:
        pages = iter([context.storage.events(where, limit=number, newest_first=True)[::-1]] if number else [])
    found: list[Event] = []
    for found in pages:
        for event in with_objects(context.storage, found) if with_object else found:
            _print_event(context, event, with_object)
    if not found and not follow:
        context.note("No events match." if where != EventFilter() else "Nothing has happened yet.")
    if follow:
        for event in new_events(context.storage, where, found[-1].id if found else last):
            for complete in with_objects(context.storage, [event]) if with_object else [event]:
                _print_event(context, complete, with_object)


def _job_id(context: CommandContext, part: str | None) -> str | None:
    """The id of the job. The events of a deleted job are found by its whole id."""
    if part is None:
        return None
    try:
        return find_job(context.storage, part, read_only=True).id
    except CommandError as error:
        if error.exit_code is ExitCode.NOT_FOUND and context.storage.events(EventFilter(job_id=part), limit=1):
            return part
        raise


def _owner(context: CommandContext, part: str | None) -> str | None:
    """The id of the worker: a part is enough for one that is known."""
    known = [worker.id for worker in context.storage.workers()] if part else []
    matching = [owner for owner in known if part and (owner.startswith(part) or owner.endswith(part))]
    return matching[0] if len(matching) == 1 else part


def _kind(word: str | None) -> Kind | None:
    try:
        return None if word is None else known_kind(word.lower())
    except ValueError:
        kinds = [kind.value for kind in Kind]
        hint = f"the kinds are {', '.join(kinds)}"
        raise BadValue(f"there is no kind of event {word!r}{did_you_mean(str(word), kinds)}", hint=hint) from None


def _print_event(context: CommandContext, event: Event, with_object: bool) -> None:
    if context.as_json:
        context.print_json(event_fields(event, object=with_object))
        return
    display = context.display
    kind = paint(f"{event.kind:<16}", state_style(event.state or ""))
    about = f"{_about(event):<8}" if display.is_terminal else f"{event.job_id or event.owner or event.queue or '':<36}"
    line = f"{paint(display.clock_time(event.at), 'dim')}  {event.subject:<8}  {kind}  {escape(about)}  "
    data = event_data(event, whole=not display.is_terminal)
    rest = f"{event_queue(event) or '':<16}  {data}" if event.job_id or event.subject is Subject.WORKER else data
    say(f"{line}{fit_line(line, escape(rest))}".rstrip())
    if with_object:
        say(f"    {escape(json_text(object_fields(event)))}")


def _about(event: Event) -> str:
    """What the event is about, in short."""
    if event.job_id:
        return short_id(event.job_id)
    return short_owner(event.owner) if event.owner else event.queue or ""


def event_data(event: Event, *, whole: bool) -> str:
    """The data of an event in words, errors first; long values are cut unless `whole`."""
    data = sorted((event.data or {}).items(), key=lambda item: item[0] not in ("error", "why"))
    texts = {name: _value(name, value) for name, value in data if value not in (None, []) and name != "object"}
    parts = [f"{name}={text if whole else shorten(text, _MAX_VALUE)}" for name, text in texts.items()]
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
