"""Change jobs: abort, start, priority, move, retry, delete, purge and copy, one job or many.

`monitor/actions.py` does it. More than one job is shown first, and the user is asked. A job that has changed since it
was selected is skipped, unless it was named alone.
"""

from __future__ import annotations

import shlex
import time
from collections import Counter
from collections.abc import Mapping
from typing import Any

import click

from packhorse.cli.arguments import Arguments, read_arguments
from packhorse.cli.commands.queues import queue_options, queues_named
from packhorse.cli.completion import complete_queue, complete_task
from packhorse.cli.context import CommandContext
from packhorse.cli.errors import CommandError, ExitCode
from packhorse.cli.lookup import check_queue, check_task, warn_unserved
from packhorse.cli.options import by_option, command, delay_of, moment_option, span_option
from packhorse.cli.output import ProgressLine, escape, paint, say, short_id
from packhorse.cli.selection import (
    SelectionOptions,
    confirm_selection,
    select_jobs,
    selection_options,
    show_selection,
)
from packhorse.client.job import JobHandle
from packhorse.core.errors import JobNotFound, WrongState
from packhorse.core.job import FINAL, HELD, WAITING, Job, Operation, State
from packhorse.core.outcome import Failure
from packhorse.core.task import check_name
from packhorse.monitor.actions import (
    BATCH_SIZE,
    ForcedDelete,
    JobAction,
    JobSelection,
    apply_in_batches,
    is_success,
    outcome_of,
    outcome_text,
)
from packhorse.monitor.serializers import action_fields, plain_fields
from packhorse.monitor.text import call_text, count_text, shorten
from packhorse.monitor.why import still_running_text
from packhorse.storage.records import ActionResult

_MANY_COPIES = 50  # from here on a bar shows the progress


@command("abort", "packhorse abort 1be2c845", "packhorse abort --where 'queue:mail state:queued' --dry-run")
@selection_options
def abort(context: CommandContext, options: SelectionOptions) -> int:
    """Stop jobs for good. Waiting jobs end immediately. Running jobs are asked to stop, and stopped if they do not; a
    job that completes first is completed."""
    return _run(context, JobAction(Operation.ABORT), options)


@command("start", "packhorse start 1be2c845", "packhorse start --where 'scheduled task:report' --yes")
@selection_options
def start(context: CommandContext, options: SelectionOptions) -> int:
    """Run waiting jobs next, even if they are delayed, wait for a retry, or their queue is paused."""
    return _run(context, JobAction(Operation.FORCE_START), options)


@command("priority", "packhorse priority 9 1be2c845", "packhorse priority 1 --where 'queue:mail text:newsletter'")
@click.argument("number", type=int, metavar="N")
@selection_options
def priority(context: CommandContext, options: SelectionOptions, number: int) -> int:
    """Set the priority of waiting jobs. N is from 1, for regular jobs, to 10, for the most urgent."""
    return _run(context, JobAction(Operation.SET_PRIORITY, priority=number), options)


@command("move", "packhorse move slow 1be2c845", "packhorse move slow --where 'queue:mail task:newsletter' --dry-run")
@click.argument("queue", shell_complete=complete_queue)
@click.option("--new", is_flag=True, help="The queue may be new.")
@selection_options
def move(context: CommandContext, options: SelectionOptions, queue: str, new: bool) -> int:
    """Put jobs that wait, are dead or were aborted in another queue. They keep their priority and their age."""
    if not new:
        check_queue(context.storage, queue, hint="--new creates it")
    name = check_name(queue, "queue name")
    code = _run(context, JobAction(Operation.SET_QUEUE, queue=name, new_queue=new), options)
    warn_unserved(context, context.storage, name)
    return code


@command("retry", "packhorse retry 1be2c845", "packhorse jobs dead --task resize --ids | packhorse retry - --yes")
@selection_options
def retry(context: CommandContext, options: SelectionOptions) -> int:
    """Run dead and aborted jobs again, with all their attempts; run retrying jobs now."""
    return _run(context, JobAction(Operation.RETRY), options)


@command("delete", "packhorse delete 1be2c845", "packhorse delete --where 'state:completed until:2d' --yes")
@click.option("--force", is_flag=True, help="Abort running jobs, wait for their end, then delete them.")
@span_option("--timeout", default="30s", show_default=True, help="With --force: how long to wait.")
@selection_options
def delete(context: CommandContext, options: SelectionOptions, force: bool, timeout: int) -> int:
    """Remove jobs with their log lines; their events stay. Running jobs are skipped without --force."""
    return _run(context, ForcedDelete(timeout) if force else JobAction(Operation.DELETE), options)


@command("purge", "packhorse purge mail --dry-run", "packhorse purge mail --yes", "packhorse purge --task newsletter")
@queue_options
@click.option("--task", metavar="TASK", help="Only jobs of this task.", shell_complete=complete_task)
@click.option("--dry-run", is_flag=True, help="Only show which jobs would be deleted.")
@by_option
def purge(
    context: CommandContext,
    names: tuple[str, ...],
    every_queue: bool,
    task: str | None,
    yes: bool,
    dry_run: bool,
    by: str | None,
) -> int:
    """Delete the jobs that wait in a queue: queued, scheduled and retrying ones. Running jobs continue."""
    if task is not None:
        check_task(context.storage, task)
    queues = queues_named(context, names, every_queue or (task is not None and not names))
    of_task = f" {shlex.quote(f'task:{task}')}" if task is not None else ""
    action = JobAction(Operation.DELETE)
    options = SelectionOptions(ids=(), where=None, yes=yes, dry_run=dry_run, by=by)
    filters = [f"waiting {shlex.quote(f'queue:{queue}')}{of_task}" for queue in queues]
    selections = [select_jobs(context, action, options._replace(where=each)) for each in filters]
    return _apply(context, action, JobSelection.union(selections), options)


# --- applying ---------------------------------------------------------------------------------------------------------


def _run(context: CommandContext, action: JobAction, options: SelectionOptions) -> int:
    action.check()
    return _apply(context, action, select_jobs(context, action, options), options)


def _apply(context: CommandContext, action: JobAction, selection: JobSelection, options: SelectionOptions) -> int:
    if not selection.seen and not selection.missing:
        context.note("No jobs match.")
        return ExitCode.OK
    if options.dry_run:
        return show_selection(context, action, selection)
    if len(selection.seen) == 1 and not selection.missing:
        apply = _apply_to_named if options.ids else _apply_to_only
        return apply(context, action, selection, options.by)
    if len(selection.seen) > 1 and not options.yes and not confirm_selection(context, action, selection):
        return ExitCode.REFUSED
    return _apply_to_many(context, action, selection, options.by)


def _apply_to_named(context: CommandContext, action: JobAction, selection: JobSelection, by: str | None) -> int:
    """Apply it to the one job that was named; a state that forbids it is an error."""
    (job_id,) = selection.seen
    handle = context.client.get(job_id)
    record = handle.record
    try:
        action.apply_to_one(handle, by=by)
    except WrongState as error:
        if action.operation is Operation.SET_QUEUE and record.state in action.states and not context.as_json:
            say(f"{outcome_text(action, 'already')}: {_call(record)}")
            return ExitCode.OK
        error.hint = _alternative(action.operation, record) or error.hint
        raise
    after = context.storage.get(job_id)
    if context.as_json:
        result = ActionResult(job_id, True, after.state if after else record.state)
        context.print_json(action_fields(action.operation, result))
    else:
        say(f"{_change_text(action, after)}: {_call(record)}")
    _note_wait(context, action, record)
    return ExitCode.OK


def _change_text(action: JobAction, after: Job | None) -> str:
    """What is certain: a running job that was asked to stop may still end otherwise."""
    if action.operation is not Operation.ABORT or after is None or after.state is State.ABORTED:
        return action.done
    return "asked to stop" if after.state in HELD else f"asked to stop, but it is {after.state}"


def _apply_to_only(context: CommandContext, action: JobAction, selection: JobSelection, by: str | None) -> int:
    """Apply it to the only job that matches."""
    (record,) = selection.examples
    (result,) = action.apply(context.storage, selection.seen, by=by)
    outcome = outcome_of(action, result)
    if context.as_json:
        context.print_json(action_fields(action.operation, result))
    else:
        say(f"{outcome_text(action, outcome)}: {_call(record)}")
    if result.changed:
        _note_wait(context, action, record)
    return ExitCode.OK if is_success(outcome) else ExitCode.UNSUCCESSFUL


def _call(record: Job) -> str:
    return shorten(escape(call_text(record)), 120)


def _note_wait(context: CommandContext, action: JobAction, record: Job) -> None:
    """Say that a retried job waits for its last attempt, if that still runs."""
    if action.operation not in (Operation.RETRY, Operation.FORCE_START) or Failure.goes_on_in(record.error) is None:
        return
    if reason := still_running_text(record, context.storage.now(), context.storage.workers()):
        context.note(f"it waits: {reason}")


def _alternative(operation: Operation, job: Job) -> str | None:
    """What to call instead."""
    if operation is Operation.DELETE:
        return f"abort it first, or do both: packhorse delete {short_id(job.id)} --force"
    if operation is Operation.RETRY and job.state in WAITING:
        return f"it waits in its queue already; packhorse start {short_id(job.id)} runs it next"
    if operation in (Operation.RETRY, Operation.FORCE_START) and job.state is State.COMPLETED:
        return f"to enqueue another one like it: packhorse copy {short_id(job.id)}"
    if operation is Operation.FORCE_START and job.state in FINAL:
        return f"packhorse retry {short_id(job.id)}"
    return None


def _apply_to_many(context: CommandContext, action: JobAction, selection: JobSelection, by: str | None) -> int:
    total = len(selection.seen)
    outcomes: Counter[str] = Counter(gone=selection.missing) if selection.missing else Counter()
    bar = ProgressLine(f"{action.verb} {count_text(total, 'job')}", quiet=context.quiet or total <= BATCH_SIZE)
    started, done = time.monotonic(), 0
    try:
        for results in apply_in_batches(context.storage, action, selection, by=by):
            outcomes.update(outcome_of(action, result) for result in results)
            if context.as_json:
                for result in results:
                    context.print_json(action_fields(action.operation, result))
            done += len(results)
            rate = done / max(time.monotonic() - started, 0.001)
            bar.update(100 * done // total, f"{rate:,.0f}/s  Ctrl-C stops after this batch")
    finally:
        bar.clear()
        if not context.as_json:
            _print_outcomes(action, outcomes, total + selection.missing)
    return ExitCode.OK if all(map(is_success, outcomes)) else ExitCode.UNSUCCESSFUL


def _print_outcomes(action: JobAction, outcomes: Counter[str], total: int) -> None:
    parts = [f"{number:,} {outcome_text(action, outcome)}" for outcome, number in sorted(outcomes.items())]
    if left := total - sum(outcomes.values()):
        parts.append(f"{left:,} not tried")
    say(", ".join(parts) or "nothing changed")


# --- copying ----------------------------------------------------------------------------------------------------------


class CopyAction:
    """Enqueue new jobs like these; the jobs themselves stay as they are."""

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
    "--set", "changes", multiple=True, metavar="NAME=VALUE", help="Change this argument; NAME:=JSON works too."
)
@span_option("--in", "delay", help="Run the copies after this delay.")
@moment_option("--at", help="Run the copies at this time, ISO 8601; local unless it names a zone.")
@click.option("--priority", type=int, metavar="N", help="From 1, for regular jobs, to 10.")
@click.option("--queue", metavar="QUEUE", help="The queue to wait in.", shell_complete=complete_queue)
@selection_options
def copy(context: CommandContext, options: SelectionOptions, changes: tuple[str, ...], **rest: Any) -> int:
    """Enqueue new jobs like these, in any state, and print their ids. The copies keep what you do not change: the
    arguments, the queue, the priority, the limits, the retries."""
    arguments = _changed_arguments(changes)
    wanted = {**rest, "delay": delay_of(rest["delay"], rest["at"]), "created_by": options.by}
    wanted = {name: value for name, value in wanted.items() if value is not None}
    selection = select_jobs(context, CopyAction(), options)
    if not selection.seen and not selection.missing:
        context.note("No jobs match.")
        return ExitCode.OK
    if options.dry_run:
        return show_selection(context, CopyAction(), selection)
    if len(selection.seen) > 1 and not options.yes and not confirm_selection(context, CopyAction(), selection):
        return ExitCode.REFUSED
    gone = selection.missing + _copy_all(context, selection, arguments, wanted)
    if gone:
        context.note(f"{len(selection.seen) + selection.missing - gone:,} copied, {gone:,} not found")
    if wanted.get("queue"):
        warn_unserved(context, context.storage, wanted["queue"])
    return ExitCode.UNSUCCESSFUL if gone else ExitCode.OK


def _changed_arguments(words: tuple[str, ...]) -> Arguments:
    arguments = read_arguments(words, None, None)
    if arguments.by_place:
        hint = "write --set width=800, or --set 'sizes:=[1, 2]' for JSON"
        raise CommandError(f"--set {words[0]} names no argument", ExitCode.USAGE, hint=hint)
    return arguments


def _copy_all(context: CommandContext, selection: JobSelection, arguments: Arguments, options: dict[str, Any]) -> int:
    """Copy each job; return how many were deleted before their turn."""
    total, gone = len(selection.seen), 0
    bar = ProgressLine(f"copy {count_text(total, 'job')}", quiet=context.quiet or total < _MANY_COPIES)
    try:
        for done, job_id in enumerate(selection.seen, 1):
            try:
                _copy_one(context, context.client.get(job_id), arguments, options)
            except JobNotFound:
                if total == 1 and not selection.missing:
                    raise
                gone += 1
            bar.update(100 * done // total, "Ctrl-C stops after this job")
    finally:
        bar.clear()
    return gone


def _copy_one(context: CommandContext, handle: JobHandle[Any], arguments: Arguments, options: dict[str, Any]) -> None:
    copied = handle.copy(_with_changes(handle.args, arguments) if arguments.by_name else None, **options)
    if context.as_json:
        context.print_json({**plain_fields(context.client.effective_job(copied.record)), "is_new": copied.is_new})
        return
    word = "enqueued" if copied.is_new else f"already {copied.state}"
    context.note(f"{paint(word, 'green', err=True)} {shorten(escape(call_text(copied.record)), 100)}")
    say(copied.id)


def _with_changes(args: Mapping[str, Any], arguments: Arguments) -> dict[str, Any]:
    """The arguments with the changes; a text stays a text, even if the new one looks like a number."""
    changed = dict(args)
    for name, new in arguments.by_name.items():
        is_text = isinstance(args.get(name), str) and new.text is not None
        changed[name] = new.text if is_text else new.value
    return changed
