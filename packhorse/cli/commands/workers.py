"""Who works: `packhorse workers`, with those that are gone and what they held."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import click

from packhorse.cli.commands.stats import trace_option
from packhorse.cli.completion import complete_worker
from packhorse.cli.context import CommandContext, is_sure
from packhorse.cli.errors import CommandError, ExitCode
from packhorse.cli.follow import looks
from packhorse.cli.options import by_option, command, gathered, number_option, span_option
from packhorse.cli.output import Shown, escape, paint, say, short_owner, unless_nought
from packhorse.cli.table import Column, print_table
from packhorse.core.errors import BadValue
from packhorse.core.event import NOT_IN_PROGRAM, ForemanAction, ForemanOrder, Subject
from packhorse.core.job import HELD, WAITING, State
from packhorse.monitor.actions import ask_for_stacks, check_accepts, have_answered, send_order, workers_of
from packhorse.monitor.liveness import Presence, group_processes, group_text, is_alive, presence_of
from packhorse.monitor.serializers import client_fields, worker_fields
from packhorse.monitor.served_queues import queues_served_by
from packhorse.monitor.stacks import stacks_of
from packhorse.monitor.text import count_text, shorten, span_text
from packhorse.storage import BATCH, Storage
from packhorse.storage.records import Filter, WorkerInfo

_MOST_TOLD = 5  # crews that are gone


@command(
    "workers",
    "packhorse workers",
    "packhorse workers --json | jq -r 'select(.subject == \"worker\") | .id'",
    "packhorse workers --gone",
    pages=True,
)
@click.option("--gone", "only_gone", is_flag=True, help="Those that fell silent and whose jobs nobody has taken back.")
@trace_option
def workers(context: CommandContext, only_gone: bool) -> None:
    """Every foreman and its workers: where they run, how many jobs they hold, and their last sign of life.

    Who has been silent for longer than a lease is gone, and no longer listed; --gone lists it, with what it held. One
    that was only frozen returns by itself.
    """
    now, lease = context.shown.now, context.settings.lease
    known = context.storage.workers()
    presence = presence_of(known, now, lease)
    listed = _by_foreman(presence.gone if only_gone else presence.here)
    holds = holds_of(context.storage) if known else Counter()
    if not holds:  # whoever has jobs has them from here
        context.tell_move()
    if context.as_json:
        for worker in listed:
            fields = worker_fields(worker, is_alive=is_alive(worker, now, lease), holds=holds[worker.id])
            context.print_json(fields)
        return
    if listed:
        _print_workers(context.shown, listed, holds, lease)
    elif only_gone:
        context.note("Nobody is gone without a word.")
    else:
        waiting = context.storage.count(Filter(states=WAITING)).number
        waits = f" {count_text(waiting, 'job waits', 'jobs wait')}." if waiting else ""
        context.note(f"No worker is running.{waits} Start some: packhorse work")
    if not only_gone:
        _tell_gone(context, presence, holds)


def holds_of(storage: Storage, states: frozenset[State] = HELD) -> Counter[str | None]:
    """How many jobs each worker has in these states, in as few reads as can be."""
    found: Counter[str | None] = Counter()
    cursor = None
    while True:
        page = storage.find(Filter(states=states), cursor=cursor, limit=BATCH)
        found.update(job.owner for job in page.jobs)
        cursor = page.next
        if cursor is None:
            return found


def _tell_gone(context: CommandContext, presence: Presence, holds: Counter[str | None]) -> None:
    lost, shown = group_processes(presence.gone), context.shown
    for each in lost[:_MOST_TOLD]:
        at = each.silent_since
        since = f"{span_text(shown.now - at)} ago" if shown.is_terminal else shown.time(at)
        held = count_text(each.held(holds), "job") if each.held(holds) else "nothing"
        told = f"{group_text(each)} fell silent {since}, and held {held}"
        context.note(f"{paint('!', 'yellow', err=True)} {escape(told)}")
    if len(lost) > _MOST_TOLD:
        context.note(f"… and {len(lost) - _MOST_TOLD:,} more: packhorse workers --gone")
    is_watched = any(each.subject is Subject.FOREMAN for each in presence.here)
    if lost and not is_watched and any(each.held(holds) for each in lost):
        context.note("No foreman is there to take their jobs back. Start one: packhorse work")


def _by_foreman(found: Iterable[WorkerInfo]) -> list[WorkerInfo]:
    """Each foreman, and below it its crew."""
    everyone = list(found)
    foremen = {worker.id: place for place, worker in enumerate(everyone) if worker.subject is Subject.FOREMAN}

    def place(worker: WorkerInfo) -> tuple[int, bool, int]:
        chief = worker.id if worker.subject is Subject.FOREMAN else worker.foreman
        return foremen.get(chief or "", len(everyone)), worker.subject is not Subject.FOREMAN, worker.joined_at

    return sorted(everyone, key=place)


def _print_workers(shown: Shown, found: Sequence[WorkerInfo], holds: Counter[str | None], lease: int) -> None:
    foremen = {worker.id for worker in found if worker.subject is Subject.FOREMAN}
    has_versions = not shown.is_terminal or any(worker.code_version for worker in found)
    has_states = not shown.is_terminal or any(_process_state(worker) not in ("", "working") for worker in found)
    columns = [
        Column("WORKER"),
        Column("KIND"),
        Column("HOST", flexible=True),
        Column("PID", right=True, spare=True),
        Column("HOLDS", right=True, style=unless_nought("cyan")),
        Column("SLOTS", right=True),
        Column("UP", right=shown.is_terminal, spare=True),
        Column("BEAT", style=lambda text: "red" if "silent" in text else "green"),
        *([Column("STATE", style=_process_style)] if has_states else []),
        *([Column("VERSION", spare=True)] if has_versions else []),
        Column("QUEUES", flexible=True),
    ]
    rows = []
    for worker in found:
        is_foreman = worker.subject is Subject.FOREMAN
        indent = "  " if shown.is_terminal and worker.foreman in foremen else ""
        rows.append(
            [
                indent + (short_owner(worker.id) if shown.is_terminal else worker.id),
                worker.subject,
                worker.host,
                str(worker.pid or ""),
                "" if is_foreman else shown.number(holds[worker.id]),
                "" if is_foreman else shown.number(worker.concurrency),
                shown.age(worker.joined_at),
                _beat(worker, shown, lease),
                *([_state(worker, shown, lease)] if has_states else []),
                *([shorten(worker.code_version or "", 40)] if has_versions else []),
                ", ".join(queues_served_by(worker)),
            ]
        )
    print_table(columns, rows)


def _process_state(worker: WorkerInfo) -> str:
    """What a foreman or a worker says of itself."""
    return str(worker.report.get("state") or "")


def _state(worker: WorkerInfo, shown: Shown, lease: int) -> str:
    """The same, while it lives. On a terminal its last beat tells that it is silent; in a pipe that is a time."""
    if is_alive(worker, shown.now, lease):
        return _process_state(worker)
    return "" if shown.is_terminal else "silent"


def _process_style(text: str) -> str | None:
    return {"unhealthy": "red", "silent": "red", "quiet": "yellow", "stopping": "yellow"}.get(text)


def _beat(worker: WorkerInfo, shown: Shown, lease: int) -> str:
    if shown.is_terminal and not is_alive(worker, shown.now, lease):
        return f"silent {span_text(shown.now - worker.beat_at)}"
    return shown.time(worker.beat_at)


@command(
    "clients",
    "packhorse clients",
    "packhorse clients --json | jq -r 'select(.subscriptions > 0) | .id'",
    pages=True,
)
def clients(context: CommandContext) -> None:
    """Every client: where it runs, since when, its last sign of life, and how many jobs it has subscribed to.

    One that is silent for longer than the setting `client_timeout` is forgotten with its subscriptions.
    """
    context.tell_move()
    known, shown = context.storage.clients(), context.shown
    if context.as_json:
        for client in known:
            context.print_json(client_fields(client))
        return
    if not known:
        context.note("No client is known. A program makes one: app.client(name)")
        return
    columns = [
        Column("CLIENT", flexible=True),
        Column("HOST", flexible=True),
        Column("PID", right=True, spare=True),
        Column("SINCE", right=shown.is_terminal, spare=True),
        Column("SEEN"),
        Column("SUBSCRIPTIONS", right=True, style=unless_nought("cyan")),
    ]
    rows = [
        [
            client.id,
            str(client.info.get("host", "")),
            str(client.info.get("pid", "")),
            shown.age(client.joined_at),
            shown.time(client.beat_at),
            shown.number(client.subscriptions),
        ]
        for client in known
    ]
    print_table(columns, rows)


_MOST_WORKERS = _MOST_SLOTS = 1_024
_DONE = {
    ForemanAction.QUIET: "takes no more jobs",
    ForemanAction.STOP: "stops when its jobs have ended",
    ForemanAction.RESTART: "gives way to fresh workers",
    ForemanAction.SCALE: "is scaled",
}


class Whom(NamedTuple):
    """How foremen and workers are named, how sure the user is, and how long to wait for an answer."""

    names: tuple[str, ...]
    everybody: bool
    yes: bool
    by: str | None
    patience: int


class Given(NamedTuple):
    """An order that was given, to whom, and its number."""

    order: ForemanOrder
    to: WorkerInfo
    foreman: str
    number: int


_OPTIONS: tuple[Callable[..., Any], ...] = (
    click.argument("names", nargs=-1, metavar="[WORKER...]", shell_complete=complete_worker),
    click.option("--all", "everybody", is_flag=True, help="Every foreman that is alive, with its workers."),
    click.option("--yes", is_flag=True, help="Do not ask."),
    by_option,
    span_option("--wait", "patience", default="5s", show_default=True, help="How long to wait for an answer."),
)

on_workers = gathered(Whom, _OPTIONS)
"""The options that name foremen and workers; the function is handed them as one `Whom`."""

# --- commands ---------------------------------------------------------------------------------------------------------


@command("quiet", "packhorse quiet --all", "packhorse quiet 6Sy9y8qR")
@on_workers
def quiet(context: CommandContext, whom: Whom) -> int:
    """Have foremen, or single workers, take no more jobs; what runs goes on. `restart` undoes it. WORKER is an id as
    `packhorse workers` shows it, a pid, or host:pid."""
    return _send_orders(context, whom, lambda to: ForemanOrder(ForemanAction.QUIET))


@command("stop", "packhorse stop 6Sy9y8qR", "packhorse stop --all --yes", "packhorse stop mule:4711 --now")
@click.option("--now", is_flag=True, help="Do not wait for what runs: it is handed back and runs elsewhere.")
@on_workers
def stop(context: CommandContext, whom: Whom, now: bool) -> int:
    """End foremen with their workers, or single workers, when the jobs that they run have ended. A single worker is
    not replaced, unless more jobs wait than the others can take. To stop a job: packhorse abort."""
    return _send_orders(context, whom, lambda to: ForemanOrder(ForemanAction.STOP, now=now))


@command("restart", "packhorse restart --all", "packhorse restart JfpR-YFy")
@on_workers
def restart(context: CommandContext, whom: Whom) -> int:
    """Replace workers by fresh ones, one after the other, each when its substitute is ready; so new code is taken in
    without a gap."""
    return _send_orders(context, whom, lambda to: ForemanOrder(ForemanAction.RESTART))


@command(
    "scale",
    "packhorse scale 4 --all",
    "packhorse scale +2 6Sy9y8qR",
    "packhorse scale 2-8 --all",
    "packhorse scale --all --slots 4",
    context_settings={"ignore_unknown_options": True},  # -1 is a size
)
@click.argument("size", required=False)
@number_option("--slots", help="How many jobs each worker runs at once; SIZE may be left out.")
@on_workers
def scale(context: CommandContext, whom: Whom, size: str | None, slots: int | None) -> int:
    """Change how many workers foremen keep, until they end. SIZE is a number, two for the least and the most (2-8), or
    how many more (+2) or fewer (-1) than there are now. With other --slots, workers give way to fresh ones, one after
    the other; what they still run after the drain time is handed back and begins again."""
    _refuse_options([size or "", *whom.names])
    if slots is not None and not 1 <= slots <= _MOST_SLOTS:
        raise BadValue(f"a worker cannot have {slots:,} slots", hint=f"1 to {_MOST_SLOTS:,}")
    if slots is not None and size is not None and not _is_size(size):
        whom, size = whom._replace(names=(size, *whom.names)), None
    if size is None and slots is None:
        raise CommandError("say how many workers, or --slots", ExitCode.USAGE, hint="e.g. packhorse scale 4 --all")
    limits = None if size is None else parse_size(size)
    return _send_orders(context, whom, lambda to: _scaled(to, limits, slots))


def _refuse_options(words: Sequence[str]) -> None:
    """Those that nobody knows: `scale` has click let them pass, as -1 is a size."""
    for word in words:
        if re.fullmatch(r"--[a-z][a-z-]+(=.*)?", word):
            raise click.NoSuchOption(word.partition("=")[0], ctx=click.get_current_context())


# --- sizes ------------------------------------------------------------------------------------------------------------

Limits = Callable[[int, int, int], tuple[int, int]]
"""From how many workers are wanted now, at least and at most, to the new least and most."""


def parse_size(text: str) -> Limits:
    """What a size means for a foreman; BadValue if it is none.

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
    if low > high or high > _MOST_WORKERS:
        hint = f"write e.g. 4, 2-8, +2 or -1; {_MOST_WORKERS:,} workers is the most"
        raise BadValue(f"{text!r} is no number of workers", hint=hint)
    return lambda wanted, least, most: (low, high)


def _is_size(text: str) -> bool:
    try:
        parse_size(text)
    except BadValue:
        return False
    return True


def _scaled(foreman: WorkerInfo, limits: Limits | None, slots: int | None) -> ForemanOrder:
    if foreman.subject is not Subject.FOREMAN:
        raise BadValue(f"{foreman.id} is a worker, and only a foreman has workers", hint="packhorse workers lists them")
    if limits is None:
        return ForemanOrder(ForemanAction.SCALE, slots=slots)
    told = {**foreman.info, **foreman.report}
    least, most = (_whole(told.get(name)) for name in ("min", "max"))
    new_least, new_most = limits(_whole(told.get("wanted"), least), least, most)
    return ForemanOrder(
        ForemanAction.SCALE, least=min(new_least, _MOST_WORKERS), most=min(new_most, _MOST_WORKERS), slots=slots
    )


def _whole(told: object, otherwise: int = 0) -> int:
    """A number that a record tells, in which there may be anything."""
    return told if isinstance(told, int) else otherwise


# --- whom -------------------------------------------------------------------------------------------------------------


def chosen_ones(context: CommandContext, whom: Whom) -> list[WorkerInfo]:
    """Those that are meant, all of them alive."""
    storage, lease = context.storage, context.settings.lease
    now, everyone = storage.now(), storage.workers()
    alive = [each for each in everyone if is_alive(each, now, lease)]
    foremen = [each for each in alive if each.subject is Subject.FOREMAN]
    if whom.everybody:
        if whom.names:
            raise CommandError("give workers or --all, not both", ExitCode.USAGE)
        if not foremen:
            raise CommandError("no foreman is running", ExitCode.NOT_FOUND, hint="start one: packhorse work")
        return foremen
    if not whom.names:
        raise CommandError("name the foremen or workers, or say --all", ExitCode.USAGE, hint=_offer(foremen))
    chosen = {each.id: each for each in (find_worker(everyone, name, foremen) for name in whom.names)}
    for each in chosen.values():
        if each not in alive:
            silent = span_text(now - each.beat_at)
            raise CommandError(
                f"{name_of(each)} is silent for {silent}, and would not hear it",
                ExitCode.UNSUCCESSFUL,
                hint="another foreman will strike it off: packhorse workers",
            )
    return list(chosen.values())


def find_worker(everyone: Sequence[WorkerInfo], name: str, foremen: Sequence[WorkerInfo]) -> WorkerInfo:
    """The one with this id, or whose id begins or ends so, or with this pid, or host:pid."""
    found = [each for each in everyone if name in (each.id, str(each.pid), f"{each.host}:{each.pid}")] or [
        each for each in everyone if len(name) >= 4 and (each.id.startswith(name) or each.id.endswith(name))
    ]
    if not found:
        hint = f"{_offer(foremen)}; to stop a job: packhorse abort ID"
        raise CommandError(f"there is no foreman or worker {name!r}", ExitCode.NOT_FOUND, hint=hint)
    if len(found) > 1:
        some = "\n".join(f"{each.id}  {name_of(each)}" for each in found[:5])
        raise CommandError(f"{name} may be {len(found)} of them", ExitCode.USAGE, why=some, hint="give more of the id")
    return found[0]


def _offer(foremen: Sequence[WorkerInfo]) -> str:
    some = ", ".join(f"{each.id[:8]} ({each.host}:{each.pid})" for each in foremen[:3])
    return f"the foremen are {some}" if some else "no foreman is running: packhorse workers"


def name_of(worker: WorkerInfo) -> str:
    """What a foreman or worker is called: "the worker mule:12"."""
    return f"the {worker.subject} {worker.host}:{worker.pid}"


# --- giving -----------------------------------------------------------------------------------------------------------


def _send_orders(context: CommandContext, whom: Whom, order_for: Callable[[WorkerInfo], ForemanOrder]) -> int:
    chosen = chosen_ones(context, whom)
    orders = [(to, order_for(to)) for to in chosen]
    orders = _without_pools(context, whom, orders)
    if len(chosen) > 1 and not whom.yes and not _confirm_orders(orders):
        context.note("nothing was done")
        return ExitCode.REFUSED
    given = [_send_order(context.storage, to, order, whom.by) for to, order in orders]
    open_ones = _wait_for(context.storage, given, whom.patience)
    for each in given:
        _print_order_result(context, each, each not in open_ones, whom.patience)
    return ExitCode.TIMED_OUT if open_ones else ExitCode.OK


def _without_pools(
    context: CommandContext, whom: Whom, orders: list[tuple[WorkerInfo, ForemanOrder]]
) -> list[tuple[WorkerInfo, ForemanOrder]]:
    """Those that can follow. A pool that is named and cannot is an error; of `--all` it is left out."""
    if orders[0][1].do not in NOT_IN_PROGRAM:
        return orders
    everyone = {each.id: each for each in context.storage.workers()}
    able: list[tuple[WorkerInfo, ForemanOrder]] = []
    for to, order in orders:
        try:
            check_accepts(to if to.subject is Subject.FOREMAN else everyone.get(to.foreman or ""), order.do)
        except BadValue as refusal:
            if len(orders) == 1 or not whom.everybody:
                raise
            context.note(f"{refusal.what}: it is left out")
        else:
            able.append((to, order))
    if not able:
        raise CommandError(f"only pools in programs are running, and none can {orders[0][1].do}", ExitCode.NOT_FOUND)
    return able


def _confirm_orders(orders: Sequence[tuple[WorkerInfo, ForemanOrder]]) -> bool:
    names = "".join(f"\n  {escape(name_of(to))}" for to, _ in orders)
    deed = f"{orders[0][1].do} {len(orders)} of them"
    return is_sure(f"{deed}:{names}", f"will not {deed} without being sure")


def _send_order(storage: Storage, to: WorkerInfo, order: ForemanOrder, by: str | None) -> Given:
    """Leave the order for the foreman, who is the one that hears."""
    foreman = to.id if to.subject is Subject.FOREMAN else to.foreman
    if foreman is None:
        raise CommandError(f"{name_of(to)} has no foreman and cannot receive orders", ExitCode.UNSUCCESSFUL)
    sent = send_order(storage, to, order, by=by)
    return Given(sent.order, to, foreman, sent.number)


def _wait_for(storage: Storage, given: list[Given], patience: int) -> list[Given]:
    """Those that were not followed in time. A foreman that is gone has followed."""
    left = given
    for _ in looks(patience):
        reports = {each.id: each.report for each in storage.workers()}
        left = [
            each
            for each in left
            if each.foreman in reports and _whole(reports[each.foreman].get("order")) < each.number
        ]
        if not left:
            break
    return left


def _print_order_result(context: CommandContext, given: Given, is_followed: bool, patience: int) -> None:
    if context.as_json:
        told = {"id": given.to.id, "subject": given.to.subject, "followed": is_followed}
        context.print_json({**told, **given.order.facts(None)})
        return
    if not is_followed:
        say(f"{escape(name_of(given.to))} was asked, and has not answered within {span_text(patience)}")
        return
    done = _DONE[given.order.do]
    if given.order.do is ForemanAction.SCALE:
        done = _scaled_text(given.order)
    elif given.order.now:
        done = "stops at once"
    say(f"{escape(name_of(given.to))} {done}")


def _scaled_text(order: ForemanOrder) -> str:
    slots = "" if order.slots is None else count_text(order.slots, "slot")
    if order.most is None:
        return f"gives its workers {slots} each"
    least = "" if order.least == order.most else f"{order.least} to "
    return f"keeps {least}{count_text(order.most, 'worker')}{f' of {slots}' if slots else ''}"


@command("stacks", "packhorse stacks 6Sy9y8qR", "packhorse stacks --all", "packhorse stacks mule:4711 --json")
@on_workers
def stacks(context: CommandContext, whom: Whom) -> int:
    """Show where every thread of workers stands, and so what their jobs do: files, lines and functions, no values.
    Nothing is stopped. WORKER is an id as `packhorse workers` shows it, a pid, or host:pid; of a foreman, all of its
    workers."""
    storage, asked = context.storage, []
    everybody: list[WorkerInfo] = []
    for to in chosen_ones(context, whom):
        if to.subject is not Subject.FOREMAN and to.foreman is None:
            raise CommandError(f"{name_of(to)} has no foreman and cannot receive orders", ExitCode.UNSUCCESSFUL)
        asked.append((to, ask_for_stacks(storage, to, by=whom.by).number))
    for _ in looks(whom.patience):
        everybody = storage.workers()
        if all(have_answered(workers_of(to, everybody), number) for to, number in asked):
            break
    silent = 0
    for to, number in asked:
        crew = workers_of(to, everybody)
        if not crew:
            context.note(f"{name_of(to)} has no workers just now")
        for worker in crew:
            is_answered = have_answered([worker], number)
            silent += not is_answered
            _print_stacks(context, worker, is_answered, whom.patience)
    return ExitCode.TIMED_OUT if silent else ExitCode.OK


def _print_stacks(context: CommandContext, worker: WorkerInfo, is_answered: bool, patience: int) -> None:
    told = stacks_of(worker) if is_answered else None
    if context.as_json:
        items = [{"title": each.title, "job_id": each.job_id, "text": each.text} for each in told.items] if told else []
        context.print_json({"id": worker.id, "answered": is_answered, "stacks": items})
        return
    say(paint(escape(f"{name_of(worker)} ({worker.id})"), "bold"))
    if told is None:
        say(f"  has not answered within {span_text(patience)}: something in it may hold the interpreter")
        say(f"  on its machine: py-spy dump --pid {worker.pid}")
    for stack in told.items if told else []:
        say("")
        say(f"{escape(stack.title)}{f'  job {stack.job_id}' if stack.job_id else ''}")
        for line in stack.text.splitlines():
            say(escape(line))
    say("")
