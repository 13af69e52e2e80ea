"""Foremen and workers, wherever they run: `workers`, `clients`; orders to them: `quiet`, `stop`, `restart`, `scale`;
and `stacks`.

An order is left in the storage. Its foreman follows it within a second or two and says so in its next heartbeat, for
which these commands wait. They need no connection to the other machine.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import click

from packhorse.cli.commands.stats import trace_option
from packhorse.cli.completion import complete_worker
from packhorse.cli.context import CommandContext
from packhorse.cli.errors import CommandError, ExitCode
from packhorse.cli.options import by_option, command, grouped, number_option, span_option
from packhorse.cli.output import Display, escape, paint, say, short_owner, unless_zero
from packhorse.cli.table import Column, print_table
from packhorse.core.errors import BadValue
from packhorse.core.event import NOT_IN_PROGRAM, ForemanAction, ForemanOrder, Subject
from packhorse.core.job import HELD, WAITING, State
from packhorse.monitor.actions import (
    MAX_WORKERS,
    SentOrder,
    ask_for_stacks,
    check_accepts,
    have_answered,
    open_orders,
    poll,
    scale_order,
    send_order,
    workers_of,
)
from packhorse.monitor.liveness import Presence, group_processes, group_text, is_alive, presence_of
from packhorse.monitor.serializers import client_fields, worker_fields
from packhorse.monitor.served_queues import queues_served_by
from packhorse.monitor.stacks import stacks_of
from packhorse.monitor.text import count_text, shorten, span_text
from packhorse.storage import BATCH, Storage
from packhorse.storage.records import Filter, WorkerInfo

_MAX_GONE = 5  # groups of dead processes that are listed


@command(
    "workers",
    "packhorse workers",
    "packhorse workers --json | jq -r 'select(.subject == \"worker\") | .id'",
    "packhorse workers --gone",
    pages=True,
)
@click.option("--gone", "only_gone", is_flag=True, help="Only silent processes whose jobs were not taken back.")
@trace_option
def workers(context: CommandContext, only_gone: bool) -> None:
    """Every foreman and its workers: where they run, how many jobs they hold, and their last heartbeat.

    A process that is silent for longer than a lease is gone and no longer listed; --gone lists it with the jobs it
    held. A process that was only frozen comes back.
    """
    now, lease = context.display.now, context.settings.lease
    known = context.storage.workers()
    presence = presence_of(known, now, lease)
    listed = _by_foreman(presence.gone if only_gone else presence.here)
    holds = held_jobs(context.storage) if known else Counter()
    if not holds:  # who holds jobs got them from this storage
        context.warn_if_moved()
    if context.as_json:
        for worker in listed:
            fields = worker_fields(worker, is_alive=is_alive(worker, now, lease), holds=holds[worker.id])
            context.print_json(fields)
        return
    if listed:
        _print_workers(context.display, listed, holds, lease)
    elif only_gone:
        context.note("No process is gone.")
    else:
        waiting = context.storage.count(Filter(states=WAITING)).number
        waits = f" {count_text(waiting, 'job waits', 'jobs wait')}." if waiting else ""
        context.note(f"No worker is running.{waits} Start some: packhorse work")
    if not only_gone:
        _note_gone(context, presence, holds)


def held_jobs(storage: Storage, states: frozenset[State] = HELD) -> Counter[str | None]:
    """How many jobs in these states each worker holds, in as few reads as possible."""
    found: Counter[str | None] = Counter()
    cursor = None
    while True:
        page = storage.find(Filter(states=states), cursor=cursor, limit=BATCH)
        found.update(job.owner for job in page.jobs)
        cursor = page.next
        if cursor is None:
            return found


def _note_gone(context: CommandContext, presence: Presence, holds: Counter[str | None]) -> None:
    gone, display = group_processes(presence.gone), context.display
    for each in gone[:_MAX_GONE]:
        at = each.silent_since
        since = f"{span_text(display.now - at)} ago" if display.is_terminal else display.time(at)
        held = count_text(each.held(holds), "job") if each.held(holds) else "no jobs"
        context.warn(f"{group_text(each)} fell silent {since} and held {held}")
    if len(gone) > _MAX_GONE:
        context.note(f"… and {len(gone) - _MAX_GONE:,} more: packhorse workers --gone")
    has_foreman = any(each.subject is Subject.FOREMAN for each in presence.here)
    if gone and not has_foreman and any(each.held(holds) for each in gone):
        context.note("No foreman is running to take their jobs back. Start one: packhorse work")


def _by_foreman(found: Iterable[WorkerInfo]) -> list[WorkerInfo]:
    """Each foreman, followed by its workers."""
    everyone = list(found)
    foremen = {worker.id: place for place, worker in enumerate(everyone) if worker.subject is Subject.FOREMAN}

    def place(worker: WorkerInfo) -> tuple[int, bool, int]:
        foreman = worker.id if worker.subject is Subject.FOREMAN else worker.foreman
        return foremen.get(foreman or "", len(everyone)), worker.subject is not Subject.FOREMAN, worker.joined_at

    return sorted(everyone, key=place)


def _print_workers(display: Display, found: Sequence[WorkerInfo], holds: Counter[str | None], lease: int) -> None:
    is_terminal = display.is_terminal
    foremen = {worker.id for worker in found if worker.subject is Subject.FOREMAN}
    has_versions = not is_terminal or any(worker.code_version for worker in found)
    has_states = not is_terminal or any(_reported_state(worker) not in ("", "working") for worker in found)
    columns = [
        Column("WORKER"),
        Column("KIND"),
        Column("HOST", flexible=True),
        Column("PID", right=True, spare=True),
        Column("HOLDS", right=True, style=unless_zero("cyan")),
        Column("SLOTS", right=True),
        Column("UP", right=is_terminal, spare=True),
        Column("BEAT", style=lambda text: "red" if "silent" in text else "green"),
        *([Column("STATE", style=_state_style)] if has_states else []),
        *([Column("VERSION", spare=True)] if has_versions else []),
        Column("QUEUES", flexible=True),
    ]
    rows = []
    for worker in found:
        is_foreman = worker.subject is Subject.FOREMAN
        indent = "  " if is_terminal and worker.foreman in foremen else ""
        rows.append(
            [
                indent + (short_owner(worker.id) if is_terminal else worker.id),
                worker.subject,
                worker.host,
                str(worker.pid or ""),
                "" if is_foreman else display.number(holds[worker.id]),
                "" if is_foreman else display.number(worker.concurrency),
                display.age(worker.joined_at),
                _heartbeat(worker, display, lease),
                *([_state(worker, display, lease)] if has_states else []),
                *([shorten(worker.code_version or "", 40)] if has_versions else []),
                ", ".join(queues_served_by(worker)),
            ]
        )
    print_table(columns, rows)


def _reported_state(worker: WorkerInfo) -> str:
    return str(worker.report.get("state") or "")


def _state(worker: WorkerInfo, display: Display, lease: int) -> str:
    """The state that a live process reports. On a terminal the heartbeat says that it is silent; in a pipe that is a
    time."""
    if is_alive(worker, display.now, lease):
        return _reported_state(worker)
    return "" if display.is_terminal else "silent"


def _state_style(text: str) -> str | None:
    return {"unhealthy": "red", "silent": "red", "quiet": "yellow", "stopping": "yellow"}.get(text)


def _heartbeat(worker: WorkerInfo, display: Display, lease: int) -> str:
    if display.is_terminal and not is_alive(worker, display.now, lease):
        return f"silent {span_text(display.now - worker.beat_at)}"
    return display.time(worker.beat_at)


@command(
    "clients",
    "packhorse clients",
    "packhorse clients --json | jq -r 'select(.subscriptions > 0) | .id'",
    pages=True,
)
def clients(context: CommandContext) -> None:
    """Every client: where it runs, since when, its last sign of life, and how many jobs it has subscribed to.

    A client that is silent for longer than the setting `client_timeout` is removed with its subscriptions.
    """
    context.warn_if_moved()
    known, display = context.storage.clients(), context.display
    if context.as_json:
        for client in known:
            context.print_json(client_fields(client))
        return
    if not known:
        context.note("No client is known. A program creates one: app.client(name)")
        return
    columns = [
        Column("CLIENT", flexible=True),
        Column("HOST", flexible=True),
        Column("PID", right=True, spare=True),
        Column("SINCE", right=display.is_terminal, spare=True),
        Column("SEEN"),
        Column("SUBSCRIPTIONS", right=True, style=unless_zero("cyan")),
    ]
    rows = [
        [
            client.id,
            str(client.info.get("host", "")),
            str(client.info.get("pid", "")),
            display.age(client.joined_at),
            display.time(client.beat_at),
            display.number(client.subscriptions),
        ]
        for client in known
    ]
    print_table(columns, rows)


# --- orders -----------------------------------------------------------------------------------------------------------

_DONE = {
    ForemanAction.QUIET: "takes no more jobs",
    ForemanAction.STOP: "stops when its jobs have ended",
    ForemanAction.RESTART: "is replacing its workers",
    ForemanAction.SCALE: "is scaled",
}


class WorkerOptions(NamedTuple):
    """Which foremen and workers, whether to ask, who gives the order, and how long to wait for an answer."""

    names: tuple[str, ...]
    every_foreman: bool
    yes: bool
    by: str | None
    timeout: int


_OPTIONS: tuple[Callable[..., Any], ...] = (
    click.argument("names", nargs=-1, metavar="[WORKER...]", shell_complete=complete_worker),
    click.option("--all", "every_foreman", is_flag=True, help="Every live foreman, with its workers."),
    click.option("--yes", is_flag=True, help="Do not ask."),
    by_option,
    span_option("--wait", "timeout", default="5s", show_default=True, help="How long to wait for an answer."),
)

worker_options = grouped(WorkerOptions, _OPTIONS)
"""Add the options that name foremen and workers; the function gets them as one `WorkerOptions`."""


@command("quiet", "packhorse quiet --all", "packhorse quiet 6Sy9y8qR")
@worker_options
def quiet(context: CommandContext, options: WorkerOptions) -> int:
    """Let foremen, or single workers, take no more jobs; running jobs continue. `restart` ends it. WORKER is an id as
    `packhorse workers` shows it, a pid, or host:pid."""
    return _order(context, options, lambda worker: ForemanOrder(ForemanAction.QUIET))


@command("stop", "packhorse stop 6Sy9y8qR", "packhorse stop --all --yes", "packhorse stop mule:4711 --now")
@click.option("--now", is_flag=True, help="Do not wait for running jobs: they are handed back and run elsewhere.")
@worker_options
def stop(context: CommandContext, options: WorkerOptions, now: bool) -> int:
    """Stop foremen with their workers, or single workers, when their running jobs have ended. A single worker is
    replaced only if more jobs wait than the others can take. To stop a job: packhorse abort."""
    return _order(context, options, lambda worker: ForemanOrder(ForemanAction.STOP, now=now))


@command("restart", "packhorse restart --all", "packhorse restart JfpR-YFy")
@worker_options
def restart(context: CommandContext, options: WorkerOptions) -> int:
    """Replace workers one after the other, each when its replacement is ready, to load new code without a gap."""
    return _order(context, options, lambda worker: ForemanOrder(ForemanAction.RESTART))


@command(
    "scale",
    "packhorse scale 4 --all",
    "packhorse scale +2 6Sy9y8qR",
    "packhorse scale 2-8 --all",
    "packhorse scale --all --slots 4",
    context_settings={"ignore_unknown_options": True},  # -1 is a size
)
@click.argument("size", required=False)
@number_option("--slots", help="How many jobs each worker runs at a time; SIZE may be left out.")
@worker_options
def scale(context: CommandContext, options: WorkerOptions, size: str | None, slots: int | None) -> int:
    """Change how many workers foremen keep, until they exit. SIZE is a number, a minimum and a maximum (2-8), or how
    many more (+2) or fewer (-1) than now. With --slots, workers are replaced one after the other; jobs that outlast the
    drain time are handed back and start again."""
    _refuse_unknown_options([size or "", *options.names])
    if slots is not None and size is not None and not _is_size(size):
        options, size = options._replace(names=(size, *options.names)), None
    if size is None and slots is None:
        raise CommandError("say how many workers, or --slots", ExitCode.USAGE, hint="e.g. packhorse scale 4 --all")
    if slots is not None:
        scale_order(None, None, slots)
    limits = None if size is None else parse_size(size)
    return _order(context, options, lambda worker: _scale_order(worker, limits, slots))


def _refuse_unknown_options(words: Sequence[str]) -> None:
    """`scale` lets click pass unknown options, since -1 is a size."""
    for word in words:
        if re.fullmatch(r"--[a-z][a-z-]+(=.*)?", word):
            raise click.NoSuchOption(word.partition("=")[0], ctx=click.get_current_context())


Limits = Callable[[int, int, int], tuple[int, int]]
"""From the wanted number of workers, the minimum and the maximum to the new minimum and maximum."""


def parse_size(text: str) -> Limits:
    """What a size means for a foreman. Raise BadValue if it is not valid.

    >>> parse_size("+2")(3, 1, 4)
    (5, 5)
    """
    if found := re.fullmatch(r"([+-])(\d{1,4})", text):
        step = int(found[2])
        if found[1] == "+":
            return lambda wanted, least, most: (wanted + step, max(most, wanted + step))
        return lambda wanted, least, most: (min(least, max(0, wanted - step)), max(0, wanted - step))
    found = re.fullmatch(r"(\d{1,4})(?:(?:-|\.\.)(\d{1,4}))?", text)
    low, high = (int(found[1]), int(found[2] or found[1])) if found else (1, 0)
    if low > high or high > MAX_WORKERS:
        hint = f"write e.g. 4, 2-8, +2 or -1; {MAX_WORKERS:,} workers is the maximum"
        raise BadValue(f"{text!r} is not a number of workers", hint=hint)
    return lambda wanted, least, most: (low, high)


def _is_size(text: str) -> bool:
    try:
        parse_size(text)
    except BadValue:
        return False
    return True


def _scale_order(foreman: WorkerInfo, limits: Limits | None, slots: int | None) -> ForemanOrder:
    if foreman.subject is not Subject.FOREMAN:
        raise BadValue(f"{foreman.id} is a worker, and only a foreman has workers", hint="packhorse workers lists them")
    if limits is None:
        return scale_order(None, None, slots)
    known = {**foreman.info, **foreman.report}
    least, most = (_whole(known.get(name)) for name in ("min", "max"))
    new_least, new_most = limits(_whole(known.get("wanted"), least), least, most)
    return scale_order(min(new_least, MAX_WORKERS), min(new_most, MAX_WORKERS), slots)


def _whole(value: object, default: int = 0) -> int:
    """A number from a record, in which there may be anything."""
    return value if isinstance(value, int) else default


def select_workers(context: CommandContext, options: WorkerOptions) -> list[WorkerInfo]:
    """The foremen and workers that the options name. Raise CommandError if one is not alive."""
    storage, lease = context.storage, context.settings.lease
    now, everyone = storage.now(), storage.workers()
    alive = [each for each in everyone if is_alive(each, now, lease)]
    foremen = [each for each in alive if each.subject is Subject.FOREMAN]
    if options.every_foreman:
        if options.names:
            raise CommandError("give workers or --all, not both", ExitCode.USAGE)
        if not foremen:
            raise CommandError("no foreman is running", ExitCode.NOT_FOUND, hint="start one: packhorse work")
        return foremen
    if not options.names:
        raise CommandError("name the foremen or workers, or say --all", ExitCode.USAGE, hint=_foremen_text(foremen))
    chosen = {each.id: each for each in (_find_worker(everyone, name, foremen) for name in options.names)}
    for each in chosen.values():
        if each not in alive:
            what = f"{name_of(each)} has been silent for {span_text(now - each.beat_at)} and cannot receive orders"
            hint = "another foreman removes it: packhorse workers"
            raise CommandError(what, ExitCode.UNSUCCESSFUL, hint=hint)
    return list(chosen.values())


def _find_worker(everyone: Sequence[WorkerInfo], name: str, foremen: Sequence[WorkerInfo]) -> WorkerInfo:
    """The one with this id, or whose id begins or ends so, or with this pid, or host:pid."""
    found = [each for each in everyone if name in (each.id, str(each.pid), f"{each.host}:{each.pid}")] or [
        each for each in everyone if len(name) >= 4 and (each.id.startswith(name) or each.id.endswith(name))
    ]
    if not found:
        hint = f"{_foremen_text(foremen)}; to stop a job: packhorse abort ID"
        raise CommandError(f"there is no foreman or worker {name!r}", ExitCode.NOT_FOUND, hint=hint)
    if len(found) > 1:
        some = "\n".join(f"{each.id}  {name_of(each)}" for each in found[:5])
        raise CommandError(f"{name} matches {len(found)} of them", ExitCode.USAGE, why=some, hint="give more of the id")
    return found[0]


def _foremen_text(foremen: Sequence[WorkerInfo]) -> str:
    some = ", ".join(f"{each.id[:8]} ({each.host}:{each.pid})" for each in foremen[:3])
    return f"the foremen are {some}" if some else "no foreman is running: packhorse workers"


def name_of(worker: WorkerInfo) -> str:
    """What a foreman or worker is called: "the worker mule:12"."""
    return f"the {worker.subject} {worker.host}:{worker.pid}"


def _order(context: CommandContext, options: WorkerOptions, order_for: Callable[[WorkerInfo], ForemanOrder]) -> int:
    """Send an order to each, and wait until it is followed."""
    storage = context.storage
    chosen = select_workers(context, options)
    orders = _without_pools(context, options, [(worker, order_for(worker)) for worker in chosen])
    if len(chosen) > 1 and not options.yes and not _confirm_orders(context, orders):
        return ExitCode.REFUSED
    sent = [_send(storage, worker, order, options.by) for worker, order in orders]
    left = sent
    for _ in poll(options.timeout):
        left = open_orders(storage.workers(), sent)
        if not left:
            break
    for each in sent:
        _print_order(context, each, each not in left, options.timeout)
    return ExitCode.TIMED_OUT if left else ExitCode.OK


def _without_pools(
    context: CommandContext, options: WorkerOptions, orders: list[tuple[WorkerInfo, ForemanOrder]]
) -> list[tuple[WorkerInfo, ForemanOrder]]:
    """The orders that can be followed. A pool that is named and cannot follow is an error; --all leaves it out."""
    if orders[0][1].do not in NOT_IN_PROGRAM:
        return orders
    everyone = {each.id: each for each in context.storage.workers()}
    accepted: list[tuple[WorkerInfo, ForemanOrder]] = []
    for worker, order in orders:
        try:
            check_accepts(worker if worker.subject is Subject.FOREMAN else everyone.get(worker.foreman or ""), order.do)
        except BadValue as refusal:
            if len(orders) == 1 or not options.every_foreman:
                raise
            context.note(f"{refusal.what}: it is left out")
        else:
            accepted.append((worker, order))
    if not accepted:
        raise CommandError(f"only pools in programs are running, and none can {orders[0][1].do}", ExitCode.NOT_FOUND)
    return accepted


def _confirm_orders(context: CommandContext, orders: Sequence[tuple[WorkerInfo, ForemanOrder]]) -> bool:
    names = "".join(f"\n  {escape(name_of(worker))}" for worker, _ in orders)
    action = f"{orders[0][1].do} {len(orders)} of them"
    return context.confirm(f"{action}:{names}", f"will not {action} without confirmation")


def _send(storage: Storage, worker: WorkerInfo, order: ForemanOrder, by: str | None) -> SentOrder:
    _require_foreman(worker)
    return send_order(storage, worker, order, by=by)


def _require_foreman(worker: WorkerInfo) -> None:
    if worker.subject is not Subject.FOREMAN and worker.foreman is None:
        raise CommandError(f"{name_of(worker)} has no foreman and cannot receive orders", ExitCode.UNSUCCESSFUL)


def _print_order(context: CommandContext, sent: SentOrder, is_followed: bool, timeout: int) -> None:
    if context.as_json:
        fields = {"id": sent.worker.id, "subject": sent.worker.subject, "followed": is_followed}
        context.print_json({**fields, **sent.order.facts(None)})
        return
    name = escape(name_of(sent.worker))
    if not is_followed:
        say(f"{name} has the order, but has not answered within {span_text(timeout)}")
        return
    done = _DONE[sent.order.do]
    if sent.order.do is ForemanAction.SCALE:
        done = _scale_text(sent.order)
    elif sent.order.now:
        done = "stops immediately"
    elif sent.order.do is ForemanAction.RESTART and sent.worker.subject is not Subject.FOREMAN:
        done = "is being replaced"
    say(f"{name} {done}")


def _scale_text(order: ForemanOrder) -> str:
    slots = "" if order.slots is None else count_text(order.slots, "slot")
    if order.most is None:
        return f"gives its workers {slots} each"
    least = "" if order.least == order.most else f"{order.least} to "
    return f"keeps {least}{count_text(order.most, 'worker')}{f' of {slots}' if slots else ''}"


# --- stacks -----------------------------------------------------------------------------------------------------------


@command("stacks", "packhorse stacks 6Sy9y8qR", "packhorse stacks --all", "packhorse stacks mule:4711 --json")
@worker_options
def stacks(context: CommandContext, options: WorkerOptions) -> int:
    """Show the stack of every thread of workers, and so what their jobs do: files, lines and functions, no values.
    Nothing stops. WORKER is an id as `packhorse workers` shows it, a pid, or host:pid; a foreman means all of its
    workers."""
    storage = context.storage
    asked = []
    for worker in select_workers(context, options):
        _require_foreman(worker)
        asked.append((worker, ask_for_stacks(storage, worker, by=options.by).number))
    everyone: list[WorkerInfo] = []
    for _ in poll(options.timeout):
        everyone = storage.workers()
        if all(have_answered(workers_of(worker, everyone), number) for worker, number in asked):
            break
    silent = 0
    for worker, number in asked:
        found = workers_of(worker, everyone)
        if not found:
            context.note(f"{name_of(worker)} has no workers")
        for each in found:
            is_answered = have_answered([each], number)
            silent += not is_answered
            _print_stacks(context, each, is_answered, options.timeout)
    return ExitCode.TIMED_OUT if silent else ExitCode.OK


def _print_stacks(context: CommandContext, worker: WorkerInfo, is_answered: bool, timeout: int) -> None:
    answer = stacks_of(worker) if is_answered else None
    items = answer.items if answer else []
    if context.as_json:
        found = [{"title": each.title, "job_id": each.job_id, "text": each.text} for each in items]
        context.print_json({"id": worker.id, "answered": is_answered, "stacks": found})
        return
    say(paint(escape(f"{name_of(worker)} ({worker.id})"), "bold"))
    if answer is None:
        say(f"  has not answered within {span_text(timeout)}: a thread may hold the interpreter")
        say(f"  on its machine: py-spy dump --pid {worker.pid}")
    for stack in items:
        say("")
        say(f"{escape(stack.title)}{f'  job {stack.job_id}' if stack.job_id else ''}")
        for line in stack.text.splitlines():
            say(escape(line))
    say("")
