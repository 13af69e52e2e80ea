"""Steering: abort, start, priority, retry and delete jobs; pause and resume queues.

Jobs are named by ids, on stdin, or by a filter. What is done to more than one is shown first and asked about. The jobs
are chosen before the question: those that come or change while one thinks about it are not touched.
"""

from __future__ import annotations

import functools
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import click
from msgspec.structs import replace

from packhorse.cli.failing import CommandError, ExitCode
from packhorse.cli.invocation import Invocation, operator
from packhorse.cli.job_text import one_line
from packhorse.cli.options import command, span_option
from packhorse.cli.output import escape, paint, say, short_ids
from packhorse.cli.progress import ProgressLine
from packhorse.cli.watching import looks
from packhorse.cli.where import find_job, ids_from
from packhorse.clock import SECOND
from packhorse.codec import nearest
from packhorse.errors import BadValue
from packhorse.fields import steered_fields
from packhorse.filter_words import find_all, parse_words
from packhorse.job import HELD, Job, Operation, State, is_legal
from packhorse.job_handle import JobHandle
from packhorse.job_text import call_text, cut
from packhorse.storage import BATCH, Storage
from packhorse.storage.records import Filter, Steered
from packhorse.task import TaskOptions

_AT_ONCE = 500  # jobs in one write: enough to be quick, few enough that Ctrl-C is heard soon
_EXAMPLES = 3
_LIKELY = {Operation.DELETE: "finished", Operation.ABORT: "unfinished", Operation.RETRY: "dead"}


class Action(NamedTuple):
    """What is to be done, in words, to one job, and to many."""

    operation: Operation
    verb: str
    done: str
    to_one: Callable[[JobHandle[Any], str | None], Any]
    to_many: Callable[[Storage, list[str], str | None], list[Steered]]
    states: frozenset[State]


class Selection(NamedTuple):
    """How the jobs are named, and how sure the user is."""

    ids: tuple[str, ...]
    where: str | None
    yes: bool
    dry_run: bool
    by: str | None


class Chosen(NamedTuple):
    """The jobs that are meant; `examples` are the first of them. `missing` ids came on stdin and are not there."""

    ids: list[str]
    examples: list[Job]
    missing: int = 0


def _states_for(operation: Operation) -> frozenset[State]:
    return frozenset(state for state in State if is_legal(operation, state))


def _on_jobs(function: Callable[..., Any]) -> Callable[..., Any]:
    """The options that name jobs; the function is handed them as one `Selection`."""

    @functools.wraps(function)
    def gather(invocation: Invocation, **given: Any) -> Any:
        selection = Selection(**{field: given.pop(field) for field in Selection._fields})
        return function(invocation, selection, **given)

    for decorate in reversed(_OPTIONS):
        gather = decorate(gather)
    return gather


_OPTIONS: tuple[Callable[..., Any], ...] = (
    click.argument("ids", nargs=-1, metavar="[ID...|-]"),
    click.option(
        "--where",
        metavar="FILTER",
        help="All jobs that fit, e.g. 'state:dead task:resize since:2h'; the words are those of `packhorse jobs`.",
    ),
    click.option("--yes", is_flag=True, help="Do not ask."),
    click.option("--dry-run", is_flag=True, help="Only show which jobs it would be."),
    click.option("--by", metavar="NAME", default=operator, show_default="you", help="Who does it, for the record."),
)

# --- commands ---------------------------------------------------------------------------------------------------------


@command("abort", "packhorse abort 1be2c845", "packhorse abort --where 'queue:mail state:queued' --dry-run")
@_on_jobs
def abort(invocation: Invocation, selection: Selection) -> int:
    """Stop jobs for good. Waiting ones end at once; running ones are asked to stop, and made to if they do not."""
    action = Action(
        Operation.ABORT,
        "abort",
        "aborted",
        lambda handle, by: handle.abort(by=by),
        lambda storage, ids, by: storage.abort(ids, by=by),
        _states_for(Operation.ABORT),
    )
    return _steer(invocation, action, selection)


@command("start", "packhorse start 1be2c845", "packhorse start --where 'scheduled task:report' --yes")
@_on_jobs
def start(invocation: Invocation, selection: Selection) -> int:
    """Run waiting jobs next, whatever their delay, their retry wait, or a pause of their queue."""
    action = Action(
        Operation.FORCE_START,
        "force start",
        "forced to start",
        lambda handle, by: handle.force_start(by=by),
        lambda storage, ids, by: storage.force_start(ids, by=by),
        _states_for(Operation.FORCE_START),
    )
    return _steer(invocation, action, selection)


@command("priority", "packhorse priority 9 1be2c845", "packhorse priority 1 --where 'queue:mail text:newsletter'")
@click.argument("number", type=int, metavar="N")
@_on_jobs
def priority(invocation: Invocation, selection: Selection, number: int) -> int:
    """Move waiting jobs in line. N is 10 for the most urgent, 1 for regular ones."""
    number = TaskOptions().with_(priority=number).priority
    action = Action(
        Operation.SET_PRIORITY,
        f"set priority {number} of",
        f"moved to priority {number}",
        lambda handle, by: handle.set_priority(number, by=by),
        lambda storage, ids, by: storage.set_priority(ids, number, by=by),
        _states_for(Operation.SET_PRIORITY),
    )
    return _steer(invocation, action, selection)


@command("retry", "packhorse retry 1be2c845", "packhorse jobs dead --task resize --ids | packhorse retry - --yes")
@_on_jobs
def retry(invocation: Invocation, selection: Selection) -> int:
    """Run dead and aborted jobs again, with all their tries; retrying ones now."""
    action = Action(
        Operation.RETRY,
        "retry",
        "queued again",
        lambda handle, by: handle.retry(by=by),
        lambda storage, ids, by: storage.retry(ids, by=by),
        _states_for(Operation.RETRY),
    )
    return _steer(invocation, action, selection)


@command("delete", "packhorse delete 1be2c845", "packhorse delete --where 'state:completed until:2d' --yes")
@click.option("--force", is_flag=True, help="Abort those that run, wait for their end, then delete them.")
@span_option("--timeout", "patience", default="30s", show_default=True, help="With --force: how long to wait.")
@_on_jobs
def delete(invocation: Invocation, selection: Selection, force: bool, patience: int) -> int:
    """Remove jobs with their log lines; their events stay. Running ones are left alone unless forced."""
    action = Action(
        Operation.DELETE,
        "delete",
        "deleted",
        lambda handle, by: handle.delete(force=force, timeout=patience / SECOND, by=by),
        lambda storage, ids, by: _delete_many(storage, ids, by, patience if force else None),
        frozenset(State) if force else _states_for(Operation.DELETE),
    )
    return _steer(invocation, action, selection)


def _delete_many(storage: Storage, ids: list[str], by: str | None, patience: int | None) -> list[Steered]:
    """With patience, unfinished jobs are aborted first, the waiting ones too, so that none begins meanwhile; those in
    workers' hands are waited for."""
    if patience is not None:
        storage.abort(ids, by=by)
        held = _held(storage, ids)
        for _ in looks(patience):
            held = _held(storage, held)
            if not held:
                break
    return storage.delete(ids, by=by)


def _held(storage: Storage, ids: list[str]) -> list[str]:
    return [job.id for job in storage.get_many(ids) if job.state in HELD]


@command("pause", "packhorse pause mail", "packhorse pause mail --why 'the mail server is down'")
@click.argument("queue")
@click.option("--why", help="For those who wonder.")
@click.option("--by", metavar="NAME", default=operator, show_default="you", help="Who does it, for the record.")
def pause(invocation: Invocation, queue: str, why: str | None, by: str | None) -> None:
    """Let no job of a queue begin until it is resumed, but those that are forced. Running ones go on."""
    _check_queue(invocation, queue)
    changed = invocation.client.pause(queue, by=by, why=why)
    _tell_queue(invocation, queue, changed, "paused" if changed else "paused already")


@command("resume", "packhorse resume mail", "packhorse resume mail --by ann")
@click.argument("queue")
@click.option("--by", metavar="NAME", default=operator, show_default="you", help="Who does it, for the record.")
def resume(invocation: Invocation, queue: str, by: str | None) -> None:
    """Undo a pause."""
    _check_queue(invocation, queue)
    changed = invocation.client.resume(queue, by=by)
    _tell_queue(invocation, queue, changed, "resumed" if changed else "not paused")


def _check_queue(invocation: Invocation, queue: str) -> None:
    names = [known.name for known in invocation.storage.queues()]
    if queue not in names:
        hint = f"there are {', '.join(names[:8])}{' …' if len(names) > 8 else ''}" if names else "there are none yet"
        raise CommandError(f"there is no queue {queue!r}{nearest(queue, names)}", ExitCode.NOT_FOUND, hint=hint)


def _tell_queue(invocation: Invocation, queue: str, changed: bool, words: str) -> None:
    if invocation.as_json:
        invocation.print_json({"queue": queue, "changed": changed})
    else:
        say(f"{queue} is {words}")


# --- choosing ---------------------------------------------------------------------------------------------------------


def _steer(invocation: Invocation, action: Action, selection: Selection) -> int:
    chosen = _choose(invocation, action, selection)
    if not chosen.ids and not chosen.missing:
        invocation.note("No jobs fit.")
        return ExitCode.OK
    if selection.dry_run:
        return _show_choice(invocation, action, chosen)
    if len(chosen.ids) == 1 and not chosen.missing:
        return _steer_one(invocation, action, chosen.ids[0], selection.by)
    if len(chosen.ids) > 1 and not selection.yes and not _is_sure(action, chosen):
        invocation.note("nothing was done")
        return ExitCode.REFUSED
    return _steer_many(invocation, action, chosen, selection.by)


def _choose(invocation: Invocation, action: Action, selection: Selection) -> Chosen:
    storage = invocation.storage
    if selection.where is not None:
        if selection.ids:
            raise CommandError("give ids or --where, not both", ExitCode.USAGE)
        return _chosen_by_filter(storage, action, selection.where)
    if not selection.ids:
        hint = f"packhorse {click.get_current_context().info_name} --help"
        raise CommandError("name the jobs: ids, - for ids on stdin, or --where", ExitCode.USAGE, hint=hint)
    ids = ids_from(selection.ids)
    if "-" in selection.ids:
        return _chosen_on_stdin(storage, ids)
    jobs = {job.id: job for job in (find_job(storage, part) for part in ids)}
    return Chosen(list(jobs), list(jobs.values())[:_EXAMPLES])


def _chosen_by_filter(storage: Storage, action: Action, words: str) -> Chosen:
    where = parse_words([words], storage.now()) if words.strip() else Filter()
    if where == Filter():
        hint = f"say which, e.g. --where {_LIKELY.get(action.operation, 'waiting')}"
        raise CommandError("--where has no words, and would mean every job", ExitCode.USAGE, hint=hint)
    where = replace(where, states=_possible(action, where.states))
    ids: list[str] = []
    examples: list[Job] = []
    for job in find_all(storage, where):
        ids.append(job.id)
        if len(examples) < _EXAMPLES:
            examples.append(job)
    return Chosen(ids, examples)


def _possible(action: Action, asked: frozenset[State]) -> frozenset[State]:
    """Of the states that were asked for, those in which it can be done."""
    possible = asked & action.states if asked else action.states
    if not possible:
        hint = f"only those that are {', '.join(sorted(action.states))}"
        if action.operation is Operation.DELETE and asked & HELD:
            hint += "; with --force, those that run are aborted first"
        raise BadValue(f"cannot {action.verb} jobs that are {', '.join(sorted(asked))}", hint=hint)
    return possible


def _chosen_on_stdin(storage: Storage, ids: list[str]) -> Chosen:
    jobs = [job for start in range(0, len(ids), BATCH) for job in storage.get_many(ids[start : start + BATCH])]
    if not jobs:
        hint = "whole ids are needed on stdin: packhorse jobs … --ids prints them"
        raise CommandError(f"none of the {len(ids)} jobs on stdin is there", ExitCode.NOT_FOUND, hint=hint)
    return Chosen([job.id for job in jobs], jobs[:_EXAMPLES], len(ids) - len(jobs))


# --- asking -----------------------------------------------------------------------------------------------------------


def _show_choice(invocation: Invocation, action: Action, chosen: Chosen) -> int:
    if invocation.as_json:
        for job_id in chosen.ids:
            invocation.print_json({"id": job_id})
    else:
        say(f"would {_what(action, chosen)}")
    return ExitCode.OK


def _what(action: Action, chosen: Chosen) -> str:
    number = len(chosen.ids)
    shown = short_ids(job.id for job in chosen.examples)
    lines = [f"{action.verb} {_jobs(number)}:"]
    lines += [f"  {one_line(job, shown[job.id])}" for job in chosen.examples]
    if number > len(chosen.examples):
        lines.append(f"  … and {number - len(chosen.examples):,} more")
    return "\n".join(lines)


def _jobs(number: int) -> str:
    return "1 job" if number == 1 else f"{number:,} jobs"


def _is_sure(action: Action, chosen: Chosen) -> bool:
    """Ask; only a yes is a yes. Ids may come on stdin while the user sits at the terminal all the same."""
    what = _what(action, chosen)
    answer = _answer(f"{what}\n{paint('Go on?', 'bold', err=True)} [y/N] ")
    if answer is None:
        raise CommandError(
            f"will not {action.verb} {_jobs(len(chosen.ids))} without being sure",
            ExitCode.REFUSED,
            why="there is no terminal to ask at",
            hint="look with --dry-run, then say --yes",
        )
    return answer.strip().lower() in ("y", "yes")


def _answer(question: str) -> str | None:
    if sys.stdin.isatty():
        say(question, err=True, end="")
        return sys.stdin.readline()
    if not sys.stderr.isatty():
        return None
    try:
        with Path("/dev/tty").open() as keyboard:
            say(question, err=True, end="")
            return keyboard.readline()
    except OSError:
        return None


# --- doing ------------------------------------------------------------------------------------------------------------


def _steer_one(invocation: Invocation, action: Action, job_id: str, by: str | None) -> int:
    """One job: what stands in the way is an error with its own words."""
    handle = invocation.client.get(job_id)
    record = handle.record
    action.to_one(handle, by)
    after = invocation.storage.get(job_id)
    if invocation.as_json:
        invocation.print_json(steered_fields(Steered(job_id, True, after.state if after else record.state)))
    else:
        is_asked = action.operation is Operation.ABORT and after is not None and after.state in HELD
        say(f"{'asked to stop' if is_asked else action.done}: {cut(escape(call_text(record)), 120)}")
    return ExitCode.OK


def _steer_many(invocation: Invocation, action: Action, chosen: Chosen, by: str | None) -> int:
    outcomes: Counter[str] = Counter()
    if chosen.missing:
        outcomes["gone"] = chosen.missing
    try:
        _steer_all(invocation, action, chosen.ids, by, outcomes)
    finally:
        if not invocation.as_json:
            _tell_outcomes(action, outcomes, len(chosen.ids) + chosen.missing)
    return ExitCode.OK if set(outcomes) <= {"changed", "asked"} else ExitCode.UNSUCCESSFUL


def _steer_all(invocation: Invocation, action: Action, ids: list[str], by: str | None, outcomes: Counter[str]) -> None:
    is_long = len(ids) > _AT_ONCE
    bar = ProgressLine(f"{action.verb} {_jobs(len(ids))}", quiet=invocation.quiet or not is_long)
    began_at = time.monotonic()
    try:
        for start in range(0, len(ids), _AT_ONCE):
            for answer in action.to_many(invocation.storage, ids[start : start + _AT_ONCE], by):
                outcomes[_outcome(action, answer)] += 1
                if invocation.as_json:
                    invocation.print_json(steered_fields(answer))
            done = min(start + _AT_ONCE, len(ids))
            rate = done / max(time.monotonic() - began_at, 0.001)
            bar.update(100 * done // len(ids), f"{rate:,.0f}/s  Ctrl-C stops after this batch")
    finally:
        bar.clear()


def _outcome(action: Action, answer: Steered) -> str:
    if answer.changed:
        is_asked = action.operation is Operation.ABORT and answer.state in HELD
        return "asked" if is_asked else "changed"
    if answer.conflict:
        return "twin"
    return answer.state or "gone"


def _tell_outcomes(action: Action, outcomes: Counter[str], total: int) -> None:
    words = {
        "changed": action.done,
        "asked": "asked to stop",
        "gone": "not there",
        "twin": "left alone: a unique twin waits",
    }
    parts = [
        f"{number:,} {words.get(outcome, f'left alone: {outcome}')}" for outcome, number in sorted(outcomes.items())
    ]
    left = total - sum(outcomes.values())
    if left:
        parts.append(f"{left:,} not tried")
    say(", ".join(parts) or "nothing was done")
