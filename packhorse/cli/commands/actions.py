"""Steering: abort, start, priority, move, retry and delete jobs, one or many.

Which jobs are meant is settled in `choosing.py`. What is done to more than one is shown first and asked about. It is
done to what was seen: a job that has changed by then is left alone, and counted so, unless it was named alone.
"""

from __future__ import annotations

import shlex
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

import click

from packhorse.cli.arguments import Given, read_given
from packhorse.cli.commands.queues import named_queues, on_queues
from packhorse.cli.completion import complete_queue, complete_task
from packhorse.cli.context import CommandContext
from packhorse.cli.errors import CommandError, ExitCode
from packhorse.cli.follow import looks
from packhorse.cli.lookup import check_queue, check_task, warn_unserved
from packhorse.cli.options import by_option, command, moment_option, span_option
from packhorse.cli.output import ProgressLine, escape, paint, say, short_id
from packhorse.cli.selection import Chosen, Selection, are_meant, choose, number_of_jobs, on_jobs, show_choice, together
from packhorse.client.job import JobHandle
from packhorse.core.clock import SECOND
from packhorse.core.errors import JobNotFound, WrongState
from packhorse.core.job import FINAL, HELD, WAITING, Job, Operation, State, is_legal
from packhorse.core.outcome import Failure
from packhorse.core.task import TaskOptions, check_name
from packhorse.monitor.serializers import plain_fields, steered_fields
from packhorse.monitor.text import call_text, shorten
from packhorse.monitor.why import still_running_text
from packhorse.storage import Storage
from packhorse.storage.records import ActionResult, JobVersion

_AT_ONCE = 500  # jobs in one write: enough to be quick, few enough that Ctrl-C is heard soon
_ASKED = "asked to stop"
_DONE = frozenset({"changed", "asked", "already"})  # outcomes with which nothing is left to be wished for


class Action:
    """What is to be done, in words, to one job, and to many. Job handles and storages call it by the same name."""

    def __init__(self, operation: Operation, verb: str, done: str, *values: Any, already: str | None = None) -> None:
        self.operation = operation
        self.verb = verb
        self.done = done
        self.already = already  # of a job that could be changed, and needs not
        self.states = frozenset(state for state in State if is_legal(operation, state))
        self._values = values

    def to_one(self, handle: JobHandle[Any], by: str | None) -> None:
        getattr(handle, self.operation.value)(*self._values, by=by)

    def to_many(self, storage: Storage, chosen: Mapping[str, JobVersion], by: str | None) -> list[ActionResult]:
        """To these jobs, as far as they are as they were seen."""
        steer = getattr(storage, self.operation.value)
        answers: list[ActionResult] = steer(list(chosen), *self._values, by=by, seen=list(chosen.values()))
        return answers


class ForcedDeletion(Action):
    """Deleting also those that run: they are aborted first and waited for, with so much patience."""

    def __init__(self, patience: int) -> None:
        super().__init__(Operation.DELETE, "delete", "deleted")
        self.states = frozenset(State)
        self._patience = patience

    def to_one(self, handle: JobHandle[Any], by: str | None) -> None:
        handle.delete(force=True, timeout=self._patience / SECOND, by=by)

    def to_many(self, storage: Storage, chosen: Mapping[str, JobVersion], by: str | None) -> list[ActionResult]:
        """The waiting ones are aborted too, so that none begins meanwhile. However those end that were, they go."""
        asked = storage.abort(list(chosen), by=by, seen=list(chosen.values()))
        stopped = [answer.job_id for answer in asked if answer.changed]
        held = _held(storage, stopped)
        for _ in looks(self._patience):
            held = _held(storage, held)
            if not held:
                break
        now_seen = {job.id: JobVersion.of(job) for job in storage.get_many(stopped)}
        return super().to_many(storage, {**chosen, **now_seen}, by)


def _held(storage: Storage, ids: Sequence[str]) -> list[str]:
    return [job.id for job in storage.get_many(ids) if job.state in HELD]


# --- commands ---------------------------------------------------------------------------------------------------------


@command("abort", "packhorse abort 1be2c845", "packhorse abort --where 'queue:mail state:queued' --dry-run")
@on_jobs
def abort(context: CommandContext, selection: Selection) -> int:
    """Stop jobs for good. Waiting ones end at once. Running ones are asked to stop, and made to if they do not; one
    that completes before it hears of it is completed."""
    return _steer(context, Action(Operation.ABORT, "abort", "aborted"), selection)


@command("start", "packhorse start 1be2c845", "packhorse start --where 'scheduled task:report' --yes")
@on_jobs
def start(context: CommandContext, selection: Selection) -> int:
    """Run waiting jobs next, whatever their delay, their retry wait, or a pause of their queue."""
    return _steer(context, Action(Operation.FORCE_START, "force start", "forced to start"), selection)


@command("priority", "packhorse priority 9 1be2c845", "packhorse priority 1 --where 'queue:mail text:newsletter'")
@click.argument("number", type=int, metavar="N")
@on_jobs
def priority(context: CommandContext, selection: Selection, number: int) -> int:
    """Move waiting jobs in line. N is 10 for the most urgent, 1 for regular ones."""
    number = TaskOptions().with_(priority=number).priority
    words = f"set priority {number} of", f"moved to priority {number}"
    return _steer(context, Action(Operation.SET_PRIORITY, *words, number), selection)


@command("move", "packhorse move slow 1be2c845", "packhorse move slow --where 'queue:mail task:newsletter' --dry-run")
@click.argument("queue", shell_complete=complete_queue)
@click.option("--new", is_flag=True, help="The queue need not be known yet.")
@on_jobs
def move(context: CommandContext, selection: Selection, queue: str, new: bool) -> int:
    """Put jobs that wait, are dead or were aborted in another queue. They keep their priority and their age."""
    if not new:
        check_queue(context.storage, queue, hint="packhorse move --new makes it")
    name = check_name(queue, "queue name")
    words = f"move to {escape(name)}", f"moved to {escape(name)}"
    code = _steer(context, Action(Operation.SET_QUEUE, *words, name, already=f"already in {escape(name)}"), selection)
    warn_unserved(context, context.storage, name)
    return code


@command("retry", "packhorse retry 1be2c845", "packhorse jobs dead --task resize --ids | packhorse retry - --yes")
@on_jobs
def retry(context: CommandContext, selection: Selection) -> int:
    """Run dead and aborted jobs again, with all their tries; retrying ones now."""
    return _steer(context, Action(Operation.RETRY, "retry", "queued again"), selection)


@command("delete", "packhorse delete 1be2c845", "packhorse delete --where 'state:completed until:2d' --yes")
@click.option("--force", is_flag=True, help="Abort those that run, wait for their end, then delete them.")
@span_option("--timeout", "patience", default="30s", show_default=True, help="With --force: how long to wait.")
@on_jobs
def delete(context: CommandContext, selection: Selection, force: bool, patience: int) -> int:
    """Remove jobs with their log lines; their events stay. Running ones are left alone unless forced."""
    action = ForcedDeletion(patience) if force else Action(Operation.DELETE, "delete", "deleted")
    return _steer(context, action, selection)


@command("purge", "packhorse purge mail --dry-run", "packhorse purge mail --yes", "packhorse purge --task newsletter")
@on_queues
@click.option("--task", metavar="TASK", help="Only jobs of this task.", shell_complete=complete_task)
@click.option("--dry-run", is_flag=True, help="Only show which jobs it would be.")
@by_option
def purge(
    context: CommandContext,
    names: tuple[str, ...],
    everything: bool,
    task: str | None,
    yes: bool,
    dry_run: bool,
    by: str | None,
) -> int:
    """Delete the jobs that wait in a queue: those queued, scheduled or retrying. What runs goes on."""
    if task is not None:
        check_task(context.storage, task)
    queues = named_queues(context, names, everything or (task is not None and not names))
    of_task = f" {shlex.quote(f'task:{task}')}" if task is not None else ""
    where = [f"waiting {shlex.quote(f'queue:{queue}')}{of_task}" for queue in queues]
    action = Action(Operation.DELETE, "delete", "deleted")
    selection = Selection(ids=(), where=None, yes=yes, dry_run=dry_run, by=by)
    chosen = together(choose(context, action, selection._replace(where=each)) for each in where)
    return _steer_chosen(context, action, chosen, selection)


# --- doing ------------------------------------------------------------------------------------------------------------


def _steer(context: CommandContext, action: Action, selection: Selection) -> int:
    return _steer_chosen(context, action, choose(context, action, selection), selection)


def _steer_chosen(context: CommandContext, action: Action, chosen: Chosen, selection: Selection) -> int:
    if not chosen.seen and not chosen.missing:
        context.note("No jobs fit.")
        return ExitCode.OK
    if selection.dry_run:
        return show_choice(context, action, chosen)
    if len(chosen.seen) == 1 and not chosen.missing:
        is_named = bool(selection.ids)
        return (_steer_one if is_named else _steer_only)(context, action, chosen, selection.by)
    if len(chosen.seen) > 1 and not selection.yes and not are_meant(action, chosen):
        context.note("nothing was done")
        return ExitCode.REFUSED
    return _steer_many(context, action, chosen, selection.by)


def _steer_one(context: CommandContext, action: Action, chosen: Chosen, by: str | None) -> int:
    """One job that was named: what stands in the way is an error with its own words."""
    (job_id,) = chosen.seen
    handle = context.client.get(job_id)
    record = handle.record
    try:
        action.to_one(handle, by)
    except WrongState as error:
        if action.already and record.state in action.states and not context.as_json:
            say(f"{action.already}: {shorten(escape(call_text(record)), 120)}")
            return ExitCode.OK
        error.hint = _advice(action.operation, record) or error.hint
        raise
    after = context.storage.get(job_id)
    if context.as_json:
        answer = ActionResult(job_id, True, after.state if after else record.state)
        context.print_json(steered_fields(action.operation, answer))
    else:
        say(f"{_done_to_one(action, after)}: {shorten(escape(call_text(record)), 120)}")
    _tell_what_goes_on(context, action, record)
    return ExitCode.OK


def _done_to_one(action: Action, after: Job | None) -> str:
    """What is certain: a job that a worker holds is asked to stop, and may have ended otherwise before it heard it."""
    if action.operation is not Operation.ABORT or after is None or after.state is State.ABORTED:
        return action.done
    return _ASKED if after.state in HELD else f"asked to stop, but it is {after.state}"


def _steer_only(context: CommandContext, action: Action, chosen: Chosen, by: str | None) -> int:
    """The only job that fits."""
    (record,) = chosen.examples
    (answer,) = action.to_many(context.storage, chosen.seen, by)
    outcome = _outcome(action, answer)
    if context.as_json:
        context.print_json(steered_fields(action.operation, answer))
    else:
        say(f"{_words_for(action, outcome)}: {shorten(escape(call_text(record)), 120)}")
    if answer.changed:
        _tell_what_goes_on(context, action, record)
    return ExitCode.OK if outcome in _DONE else ExitCode.UNSUCCESSFUL


def _tell_what_goes_on(context: CommandContext, action: Action, record: Job) -> None:
    is_again = action.operation in (Operation.RETRY, Operation.FORCE_START)
    if not is_again or Failure.goes_on_in(record.error) is None:
        return
    if beside := still_running_text(record, context.storage.now(), context.storage.workers()):
        context.note(f"it waits: {beside}")


def _advice(operation: Operation, job: Job) -> str | None:
    """What to call instead, where there is something."""
    if operation is Operation.DELETE:
        return f"abort it first, or do both: packhorse delete {short_id(job.id)} --force"
    if operation is Operation.RETRY and job.state in WAITING:
        return f"it waits in line already; packhorse start {short_id(job.id)} makes it the next"
    if operation in (Operation.RETRY, Operation.FORCE_START) and job.state is State.COMPLETED:
        return f"what it did is done; for another one like it: packhorse copy {short_id(job.id)}"
    if operation is Operation.FORCE_START and job.state in FINAL:
        return f"packhorse retry {short_id(job.id)}"
    return None


def _steer_many(context: CommandContext, action: Action, chosen: Chosen, by: str | None) -> int:
    outcomes: Counter[str] = Counter()
    if chosen.missing:
        outcomes["gone"] = chosen.missing
    try:
        _steer_all(context, action, chosen.seen, by, outcomes)
    finally:
        if not context.as_json:
            _tell_outcomes(action, outcomes, len(chosen.seen) + chosen.missing)
    return ExitCode.OK if set(outcomes) <= _DONE else ExitCode.UNSUCCESSFUL


def _steer_all(
    context: CommandContext, action: Action, chosen: Mapping[str, JobVersion], by: str | None, outcomes: Counter[str]
) -> None:
    number, rest = len(chosen), iter(chosen.items())
    bar = ProgressLine(f"{action.verb} {number_of_jobs(number)}", quiet=context.quiet or number <= _AT_ONCE)
    began_at = time.monotonic()
    try:
        for start in range(0, number, _AT_ONCE):
            for answer in action.to_many(context.storage, dict(islice(rest, _AT_ONCE)), by):
                outcomes[_outcome(action, answer)] += 1
                if context.as_json:
                    context.print_json(steered_fields(action.operation, answer))
            done = min(start + _AT_ONCE, number)
            rate = done / max(time.monotonic() - began_at, 0.001)
            bar.update(100 * done // number, f"{rate:,.0f}/s  Ctrl-C stops after this batch")
    finally:
        bar.clear()


def _outcome(action: Action, answer: ActionResult) -> str:
    if answer.changed:
        is_asked = action.operation is Operation.ABORT and answer.state in HELD
        return "asked" if is_asked else "changed"
    if answer.stale:
        return "stale"
    if answer.conflict:
        return "twin"
    if action.already and answer.state in action.states:
        return "already"
    return answer.state or "gone"


def _words_for(action: Action, outcome: str) -> str:
    words = {
        "changed": action.done,
        "asked": _ASKED,
        "already": action.already or "",
        "gone": "not there",
        "stale": "left alone: changed meanwhile",
        "twin": "left alone: a unique twin waits",
    }
    return words.get(outcome, f"left alone: {outcome}")


def _tell_outcomes(action: Action, outcomes: Counter[str], total: int) -> None:
    parts = [f"{number:,} {_words_for(action, outcome)}" for outcome, number in sorted(outcomes.items())]
    left = total - sum(outcomes.values())
    if left:
        parts.append(f"{left:,} not tried")
    say(", ".join(parts) or "nothing was done")


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
def copy(context: CommandContext, selection: Selection, changes: tuple[str, ...], **options: Any) -> int:
    """Enqueue jobs like these, whatever became of them, and print the ids of the new ones. What is not changed is as
    it was: the arguments, the queue, the priority, the limits, the retries."""
    given = _changes(changes)
    wanted = _copy_options(options, selection.by)
    chosen = choose(context, Copying(), selection)
    if not chosen.ids and not chosen.missing:
        context.note("No jobs fit.")
        return ExitCode.OK
    if selection.dry_run:
        return show_choice(context, Copying(), chosen)
    if len(chosen.ids) > 1 and not selection.yes and not are_meant(Copying(), chosen):
        context.note("nothing was done")
        return ExitCode.REFUSED
    gone = chosen.missing + _copy_all(context, chosen, given, wanted)
    if gone:
        context.note(f"{len(chosen.ids) + chosen.missing - gone:,} copied, {gone:,} gone")
    if wanted.get("queue"):
        warn_unserved(context, context.storage, wanted["queue"])
    return ExitCode.UNSUCCESSFUL if gone else ExitCode.OK


def _changes(words: tuple[str, ...]) -> Given:
    given = read_given(words, None, None)
    if given.by_place:
        hint = "write --set width=800, or --set 'sizes:=[1, 2]' for JSON"
        raise CommandError(f"--set {words[0]} names no argument", ExitCode.USAGE, hint=hint)
    return given


def _copy_options(given: dict[str, Any], by: str | None) -> dict[str, Any]:
    if given["delay"] is not None and given["at"] is not None:
        raise CommandError("give --in or --at, not both", ExitCode.USAGE, hint="--in 10m, or --at 2030-12-31T23:00")
    delay = None if given["delay"] is None else given["delay"] / SECOND
    wanted = {**given, "delay": delay, "created_by": by}
    return {name: value for name, value in wanted.items() if value is not None}


def _copy_all(context: CommandContext, chosen: Chosen, given: Given, options: dict[str, Any]) -> int:
    """How many were gone before their turn came; the others are copied."""
    total, gone = len(chosen.ids), 0
    bar = ProgressLine(f"copy {number_of_jobs(total)}", quiet=context.quiet or total < _MANY)
    try:
        for done, job_id in enumerate(chosen.ids, 1):
            try:
                _copy_one(context, context.client.get(job_id), given, options)
            except JobNotFound:
                if total == 1 and not chosen.missing:
                    raise
                gone += 1
            bar.update(100 * done // total, "Ctrl-C stops after this one")
    finally:
        bar.clear()
    return gone


def _copy_one(context: CommandContext, handle: JobHandle[Any], given: Given, options: dict[str, Any]) -> None:
    made = handle.copy(_changed(handle.args, given) if given.by_name else None, **options)
    if context.as_json:
        context.print_json({**plain_fields(context.client.effective_job(made.record)), "is_new": made.is_new})
        return
    word = "enqueued" if made.is_new else f"already {made.state}"
    context.note(f"{paint(word, 'green', err=True)} {shorten(escape(call_text(made.record)), 100)}")
    say(made.id)


def _changed(args: Mapping[str, Any], given: Given) -> dict[str, Any]:
    """The arguments with what was given; what was text stays text, also if it is written like a number."""
    changed = dict(args)
    for name, new in given.by_name.items():
        is_text = isinstance(args.get(name), str) and new.text is not None
        changed[name] = new.text if is_text else new.value
    return changed
