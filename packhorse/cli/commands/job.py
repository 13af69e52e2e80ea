"""One job: `packhorse job ID`."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import click

from packhorse.cli.commands.events import event_data
from packhorse.cli.completion import complete_job
from packhorse.cli.context import CommandContext
from packhorse.cli.errors import ExitCode
from packhorse.cli.lookup import find_job
from packhorse.cli.options import command
from packhorse.cli.output import (
    Display,
    escape,
    escape_lines,
    fit_line,
    json_text,
    paint,
    pair_lines,
    place_text,
    ran_text,
    say,
    short_id,
    state_style,
)
from packhorse.client.job import JobHandle
from packhorse.core.event import Event
from packhorse.core.job import COMPLETED, FINAL, HELD, EffectiveJob, Job, Operation, State, is_legal
from packhorse.core.outcome import Failure
from packhorse.monitor.serializers import event_fields, holder_fields, log_fields, plain_fields, stored_json
from packhorse.monitor.text import attempt_text, call_text, count_text, shorten, size_text, span_text, state_text
from packhorse.storage.records import LogKind, LogLine, TaskInfo

_FEW_LINES = 10
_FEW_EVENTS = 12
_MAX_TEXT = 2_000
_SECTIONS = ("args", "log", "events", "trace")


@command(
    "job",
    "packhorse job 1be2c845",
    "packhorse job 1be2c845 --follow",
    "packhorse job 1be2c845 --args | jq .user_id",
    "packhorse job 1be2c845 --trace",
    pages=True,
)
@click.argument("part", metavar="ID", shell_complete=complete_job)
@click.option("--args", is_flag=True, help="Only its arguments, whole, as JSON.")
@click.option("--log", is_flag=True, help="Only its log, all of it.")
@click.option("--events", is_flag=True, help="Only its events, all of them.")
@click.option("--trace", is_flag=True, help="Only the traceback of its last failure.")
@click.option("-f", "--follow", is_flag=True, help="Print its log until it ends; the exit code is that of wait.")
def job(context: CommandContext, part: str, follow: bool, **sections: bool) -> int | None:
    """Everything about one job: what it is, why it is in its state, its failure, its log, its history.

    ID is the job's id, or a part from its beginning or its end that no other job has.
    """
    context.warn_if_moved()
    handle = context.client.get(find_job(context.storage, part, read_only=True).id)
    chosen = [name for name in _SECTIONS if sections[name]]
    if follow:
        return _follow(context, handle)
    if context.as_json:
        context.print_json(_fields(context, handle, chosen))
    elif chosen:
        for name in chosen:
            _print_section(context, handle, name, is_alone=len(chosen) == 1)
    else:
        _print_page(context, handle)
    return None


def _follow(context: CommandContext, handle: JobHandle[Any]) -> int:
    from packhorse.cli.follow import JobFollower  # slow to load, and rarely needed

    if not context.as_json:
        context.note(
            f"{paint(state_text(handle.record), state_style(handle.state), err=True)}  {_title(handle.record)}"
        )
    ended = JobFollower(context, context.client, handle.id, as_data=True).follow()
    if not context.as_json:
        why = escape(handle.why())
        context.note(f"{paint(ended.state, state_style(ended.state), err=True)}: {why}")
    return ExitCode.OK if ended.state is COMPLETED else ExitCode.UNSUCCESSFUL


def _fields(context: CommandContext, handle: JobHandle[Any], chosen: list[str]) -> dict[str, Any]:
    runner = holder_fields(handle.record, context.storage.workers() if handle.record.owner else [])
    fields = {**plain_fields(handle.effective, context.storage.now()), **runner, "why": handle.why()}
    fields["subscribers"] = context.storage.subscribers(handle.id)
    if "log" in chosen:
        fields["log"] = [log_fields(line) for line in handle.logs()]
    if "events" in chosen:
        fields["events"] = [event_fields(event) for event in handle.events()]
    return fields


# --- the page ---------------------------------------------------------------------------------------------------------


def _print_page(context: CommandContext, handle: JobHandle[Any]) -> None:
    subscribers = context.storage.subscribers(handle.id)
    for line in page_lines(handle, context.display, context.storage.tasks(), subscribers):
        say(line)
    if context.display.is_terminal:
        _print_next(context, handle.record)


def page_lines(
    handle: JobHandle[Any], display: Display, tasks: Iterable[TaskInfo], subscribers: Sequence[str] = ()
) -> Iterator[str]:
    """The page of a job; `tasks` are the known tasks."""
    record, events = handle.effective, handle.events()
    yield f"{paint(state_text(record), state_style(record.state))}  {paint(_title(record), 'bold')}"
    yield escape(handle.why())
    yield ""
    task = next((task for task in tasks if task.name == record.task), None)
    note = _task_note(task)
    yield from pair_lines(_facts(record, display, _counts(record, note), _took(record), _limits(record, task, note)))
    if subscribers:
        yield from pair_lines([("subscribers", escape(", ".join(subscribers)))])
    yield from _failure_lines(record)
    if record.state is COMPLETED:
        yield from pair_lines([("result", shorten(json_text(stored_json(record.result or "null")), _MAX_TEXT))])
    yield from _log_lines(handle.logs(), display)
    yield from _latest("history", [_event_line(event, display) for event in events], _FEW_EVENTS, "--events")


def _title(record: Job) -> str:
    return shorten(escape(call_text(record)), 200)


def _facts(record: Job, display: Display, counts: str, took: str, limits: str) -> Iterator[tuple[str, str]]:
    yield "id", record.id
    yield "queue", f"{record.queue}, priority {record.priority}"
    yield "attempt", counts
    by = f" by {record.created_by}" if record.created_by else ""
    yield "enqueued", f"{display.full_time(record.created_at)}{by}"
    for name, at in (("due", record.due_at), ("started", record.started_at), ("finished", record.finished_at)):
        if at is not None:
            yield name, display.full_time(at) + (took if name == "finished" else "")
    if worker := record.owner or record.last_owner:
        yield "worker", worker
    if record.progress is not None and record.state not in FINAL:
        yield "progress", f"{record.progress} %{f', {record.progress_text}' if record.progress_text else ''}"
    if record.checkin_at is not None and record.state is State.RUNNING:
        yield "check-in", f"{display.full_time(record.checkin_at)}{f': {record.checkin}' if record.checkin else ''}"
    if limits:
        yield "limits", limits
    for name, text in (("unique", record.unique_key), ("schedule", record.schedule), ("meta", record.meta)):
        if text:
            yield name, shorten(text, _MAX_TEXT)
    yield "arguments", shorten(json_text(stored_json(record.args)), _MAX_TEXT)


def _task_note(task: TaskInfo | None) -> str:
    """Where an option that the job leaves to its task comes from."""
    is_known = task is not None and task.announced_at is not None
    return " (from its task)" if is_known else " (default; its task is not known yet)"


def _counts(record: Job, note: str) -> str:
    of_task = note if "max_attempts" in _from_task(record) else ""
    text = f"{attempt_text(record).replace('/', ' of ')}{of_task}"
    counts = {"failed": record.failures, "halted": record.halts, "taken back": record.losses, "snoozed": record.snoozes}
    parts = [f"{word} {number} ×" for word, number in counts.items() if number]
    return ", ".join([text, *parts])


def _from_task(record: Job) -> tuple[str, ...]:
    """The options that come from its task."""
    return record.from_task if isinstance(record, EffectiveJob) else ()


def _took(record: Job) -> str:
    """How long the last attempt of a finished job ran."""
    took = record.took(None) if record.state in FINAL else None
    return "" if took is None else f", ran {ran_text(took)}"


def _limits(record: Job, task: TaskInfo | None, note: str) -> str:
    limits = {
        "run": record.timeout,
        "silence": record.idle_timeout,
        "wait": record.expires,
        "whole life": record.total_timeout,
    }
    of_task = {"run": "timeout", "silence": "idle_timeout"}
    parts = [
        f"{word} {span_text(limit)}{note if of_task.get(word) in _from_task(record) else ''}"
        for word, limit in limits.items()
        if limit is not None
    ]
    memory = task.options.get("memory_limit") if task else None
    return ", ".join([*parts, f"memory {size_text(memory)}"] if isinstance(memory, int) else parts)


def _failure_lines(record: Job) -> Iterator[str]:
    if record.error is not None:
        failure = Failure.from_json(record.error)
        version = f", version {failure.version}" if failure.version else ""
        text = failure.summary() + (f"\n{place_text(failure.place)}{version}" if failure.place else version)
        is_past = record.state in (*HELD, State.QUEUED, State.SCHEDULED, COMPLETED)
        yield from pair_lines([("last error" if is_past else "error", shorten(text, _MAX_TEXT))])


def _log_lines(lines: list[LogLine], display: Display) -> Iterator[str]:
    """The last lines. Of progress only the latest line is shown, so that it does not hide the others."""
    progress = [line for line in lines if line.kind is LogKind.PROGRESS][:-1]
    left_out = {line.id for line in progress}
    parts = [_log_line(line, display) for line in lines if line.id not in left_out]
    beside = f"without {count_text(len(progress), 'earlier line')} of progress" if progress else ""
    yield from _latest("log", parts, _FEW_LINES, "--log", beside)


def _latest(title: str, lines: list[str], most: int, option: str, beside: str = "") -> Iterator[str]:
    """The last of these lines; `beside` says what else is left out."""
    if not lines:
        return
    few = f"the last {most} of {len(lines):,}" if len(lines) > most else ""
    more = ", ".join(filter(None, [few, beside]))
    yield ""
    yield paint(f"{title}, {more}; {option} shows all" if more else title, "dim")
    yield from (f"  {line}" for line in lines[-most:])


def _log_line(line: LogLine, display: Display) -> str:
    style = "red" if line.kind is LogKind.ERROR else None
    kind = "" if line.kind is LogKind.LOG else f"{line.kind}: "
    return f"{paint(display.clock_time(line.at), 'dim')}  {paint(kind + escape(line.message), style)}"


def _event_line(event: Event, display: Display) -> str:
    kind = paint(f"{event.kind:<16}", state_style(event.state or ""))
    line = f"{paint(display.clock_time(event.at), 'dim')}  {kind}  "
    return f"{line}{fit_line(f'  {line}', escape(event_data(event, whole=not display.is_terminal)))}".rstrip()


_NEXT = {
    Operation.RETRY: "retry",
    Operation.FORCE_START: "start",
    Operation.ABORT: "abort",
    Operation.DELETE: "delete",
}


def _print_next(context: CommandContext, record: Job) -> None:
    short = short_id(record.id)
    steps = [f"packhorse {word} {short}" for operation, word in _NEXT.items() if is_legal(operation, record.state)]
    if record.error and Failure.from_json(record.error).traceback:
        steps.insert(0, f"packhorse job {short} --trace")
    context.note(paint("\nnext: " + " · ".join(steps[:3]), "dim", err=True))


# --- one section ------------------------------------------------------------------------------------------------------


def _print_section(context: CommandContext, handle: JobHandle[Any], name: str, *, is_alone: bool) -> None:
    if not is_alone:
        say(paint(name, "bold"))
    display, record = context.display, handle.record
    if name == "args":
        say(json_text(stored_json(record.args)))
    elif name == "log":
        _print_lines(context, [_log_line(line, display) for line in handle.logs()], "It has written no log.")
    elif name == "events":
        _print_lines(context, [_event_line(event, display) for event in handle.events()], "Nothing happened to it.")
    else:
        _print_trace(context, record)


def _print_lines(context: CommandContext, lines: list[str], if_none: str) -> None:
    if not lines:
        context.note(if_none)
    for line in lines:
        say(line)


def _print_trace(context: CommandContext, record: Job) -> None:
    failure = Failure.from_json(record.error) if record.error else None
    if failure is None:
        context.note("It has not failed.")
    else:
        sys.stdout.write(escape_lines(failure.traceback or failure.summary()).rstrip() + "\n")
