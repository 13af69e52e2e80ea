"""Ordering foremen and their workers about, wherever they run: quiet, stop, restart, scale.

An order is left in the storage; the foreman that it is for follows it within a second or two and says so in its next
heartbeat, for which these commands wait. No connection to the other machine is needed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import click

from packhorse.cli.asking import is_sure
from packhorse.cli.completing import complete_worker
from packhorse.cli.failing import CommandError, ExitCode
from packhorse.cli.invocation import Invocation
from packhorse.cli.options import by_option, command, gathered, number_option, span_option
from packhorse.cli.output import escape, say
from packhorse.cli.watching import looks
from packhorse.core.errors import BadValue
from packhorse.core.event import NOT_IN_PROGRAM, ForemanAction, ForemanOrder, Subject
from packhorse.monitor.actions import check_accepts, send_order
from packhorse.monitor.liveness import is_alive
from packhorse.monitor.text import count_text, span_text
from packhorse.storage import Storage
from packhorse.storage.records import WorkerInfo

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
def quiet(invocation: Invocation, whom: Whom) -> int:
    """Have foremen, or single workers, take no more jobs; what runs goes on. `restart` undoes it. WORKER is an id as
    `packhorse workers` shows it, a pid, or host:pid."""
    return _order(invocation, whom, lambda to: ForemanOrder(ForemanAction.QUIET))


@command("stop", "packhorse stop 6Sy9y8qR", "packhorse stop --all --yes", "packhorse stop mule:4711 --now")
@click.option("--now", is_flag=True, help="Do not wait for what runs: it is handed back and runs elsewhere.")
@on_workers
def stop(invocation: Invocation, whom: Whom, now: bool) -> int:
    """End foremen with their workers, or single workers, when the jobs that they run have ended. A single worker is
    not replaced, unless more jobs wait than the others can take. To stop a job: packhorse abort."""
    return _order(invocation, whom, lambda to: ForemanOrder(ForemanAction.STOP, now=now))


@command("restart", "packhorse restart --all", "packhorse restart JfpR-YFy")
@on_workers
def restart(invocation: Invocation, whom: Whom) -> int:
    """Replace workers by fresh ones, one after the other, each when its substitute is ready; so new code is taken in
    without a gap."""
    return _order(invocation, whom, lambda to: ForemanOrder(ForemanAction.RESTART))


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
def scale(invocation: Invocation, whom: Whom, size: str | None, slots: int | None) -> int:
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
    return _order(invocation, whom, lambda to: _scaled(to, limits, slots))


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


def chosen_ones(invocation: Invocation, whom: Whom) -> list[WorkerInfo]:
    """Those that are meant, all of them alive."""
    storage, lease = invocation.storage, invocation.settings.lease
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


def _order(invocation: Invocation, whom: Whom, order_for: Callable[[WorkerInfo], ForemanOrder]) -> int:
    chosen = chosen_ones(invocation, whom)
    orders = [(to, order_for(to)) for to in chosen]
    orders = _without_pools(invocation, whom, orders)
    if len(chosen) > 1 and not whom.yes and not _are_meant(orders):
        invocation.note("nothing was done")
        return ExitCode.REFUSED
    given = [_give(invocation.storage, to, order, whom.by) for to, order in orders]
    open_ones = _wait(invocation.storage, given, whom.patience)
    for each in given:
        _tell(invocation, each, each not in open_ones, whom.patience)
    return ExitCode.TIMED_OUT if open_ones else ExitCode.OK


def _without_pools(
    invocation: Invocation, whom: Whom, orders: list[tuple[WorkerInfo, ForemanOrder]]
) -> list[tuple[WorkerInfo, ForemanOrder]]:
    """Those that can follow. A pool that is named and cannot is an error; of `--all` it is left out."""
    if orders[0][1].do not in NOT_IN_PROGRAM:
        return orders
    everyone = {each.id: each for each in invocation.storage.workers()}
    able: list[tuple[WorkerInfo, ForemanOrder]] = []
    for to, order in orders:
        try:
            check_accepts(to if to.subject is Subject.FOREMAN else everyone.get(to.foreman or ""), order.do)
        except BadValue as refusal:
            if len(orders) == 1 or not whom.everybody:
                raise
            invocation.note(f"{refusal.what}: it is left out")
        else:
            able.append((to, order))
    if not able:
        raise CommandError(f"only pools in programs are running, and none can {orders[0][1].do}", ExitCode.NOT_FOUND)
    return able


def _are_meant(orders: Sequence[tuple[WorkerInfo, ForemanOrder]]) -> bool:
    names = "".join(f"\n  {escape(name_of(to))}" for to, _ in orders)
    deed = f"{orders[0][1].do} {len(orders)} of them"
    return is_sure(f"{deed}:{names}", f"will not {deed} without being sure")


def _give(storage: Storage, to: WorkerInfo, order: ForemanOrder, by: str | None) -> Given:
    """Leave the order for the foreman, who is the one that hears."""
    foreman = to.id if to.subject is Subject.FOREMAN else to.foreman
    if foreman is None:
        raise CommandError(f"{name_of(to)} has no foreman and cannot receive orders", ExitCode.UNSUCCESSFUL)
    sent = send_order(storage, to, order, by=by)
    return Given(sent.order, to, foreman, sent.number)


def _wait(storage: Storage, given: list[Given], patience: int) -> list[Given]:
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


def _tell(invocation: Invocation, given: Given, is_followed: bool, patience: int) -> None:
    if invocation.as_json:
        told = {"id": given.to.id, "subject": given.to.subject, "followed": is_followed}
        invocation.print_json({**told, **given.order.facts(None)})
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
