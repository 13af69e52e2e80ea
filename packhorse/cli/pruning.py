"""`packhorse prune`: old jobs and events go now, as foremen do it by and by."""

from __future__ import annotations

import click

from packhorse.cli.asking import is_sure
from packhorse.cli.choosing import number_of_jobs
from packhorse.cli.failing import ExitCode
from packhorse.cli.invocation import Invocation
from packhorse.cli.options import command, span_option
from packhorse.cli.output import say
from packhorse.cli.progress import ProgressLine
from packhorse.core.job import FINAL, State
from packhorse.monitor.actions import retention
from packhorse.monitor.filters import find_all
from packhorse.monitor.text import count_text
from packhorse.storage import Storage
from packhorse.storage.records import EventFilter, Filter, Pruned, Retention

_FOR_EVER = 1 << 60
_STATES = sorted(state.value for state in FINAL)


@command("prune", "packhorse prune --dry-run", "packhorse prune --state completed --older-than 2d --yes")
@span_option("--older-than", "age", help="What ended so long ago; else what is over by the settings keep_completed, …")
@click.option(
    "--state", "states", type=click.Choice(_STATES), multiple=True, help="Only jobs that ended so; repeat it."
)
@click.option("--events", "with_events", is_flag=True, help="With --older-than or --state: old events, too.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--dry-run", is_flag=True, help="Only count what would go.")
def prune(
    invocation: Invocation, age: int | None, states: tuple[str, ...], with_events: bool, yes: bool, dry_run: bool
) -> int:
    """Remove jobs that ended long ago, with their log lines, and old events. Persistent jobs, jobs that a client has
    subscribed to, and holders of a unique key whose period still runs stay."""
    keep = _keep(retention(invocation.settings), age, states, with_events)
    storage = invocation.storage
    if dry_run or not yes:
        jobs, has_events = _over(storage, keep)
        what = f"{number_of_jobs(jobs)}{', and events older than that' if has_events else ''}"
        if dry_run:
            _show(invocation, jobs, what)
            return ExitCode.OK
        if not jobs and not has_events:
            invocation.note("nothing is old enough")
            return ExitCode.OK
        if not is_sure(f"remove up to {what}", f"will not remove {what} without being sure"):
            invocation.note("nothing was done")
            return ExitCode.REFUSED
    _tell(invocation, _prune_all(invocation, storage, keep))
    return ExitCode.OK


def _keep(settled: Retention, age: int | None, states: tuple[str, ...], with_events: bool) -> Retention:
    """What stays. A chosen age or state leaves everything else alone."""
    if age is None and not states:
        return settled
    chosen = {State(state) for state in states} or FINAL
    kept = {
        state.value: (settled.of(state) if age is None else age) if state in chosen else _FOR_EVER for state in FINAL
    }
    events = (settled.events if age is None else age) if with_events else _FOR_EVER
    return Retention(**kept, events=events, clients=settled.clients)


def _over(storage: Storage, keep: Retention) -> tuple[int, bool]:
    """How many jobs ended long enough ago, and whether events are as old."""
    now, jobs = storage.now(), 0
    for state in sorted(FINAL):
        if keep.of(state) < _FOR_EVER:
            found = find_all(storage, Filter(states=frozenset({state})))
            jobs += sum((job.finished_at or now) <= now - keep.of(state) and not job.persistent for job in found)
    oldest = storage.events(EventFilter(), limit=1)
    return jobs, bool(oldest) and oldest[0].at <= now - keep.events


def _show(invocation: Invocation, jobs: int, what: str) -> None:
    if invocation.as_json:
        invocation.print_json({"jobs": jobs})
    else:
        say(f"would remove up to {what}")


def _prune_all(invocation: Invocation, storage: Storage, keep: Retention) -> Pruned:
    bar = ProgressLine("prune", quiet=invocation.quiet)
    jobs = events = clients = 0
    total = 0
    try:
        while True:
            step = storage.prune(keep)
            jobs, events, clients = jobs + step.jobs, events + step.events, clients + step.clients
            if not step.more:
                return Pruned(jobs, events, clients)
            total = total or sum(tally.number for tally in storage.tallies() if tally.state in FINAL) + jobs
            bar.update(min(100 * jobs // max(total, 1), 99), f"{jobs:,} jobs, {events:,} events  Ctrl-C stops it")
    finally:
        bar.clear()


def _tell(invocation: Invocation, gone: Pruned) -> None:
    if invocation.as_json:
        invocation.print_json({"jobs": gone.jobs, "events": gone.events, "clients": gone.clients})
    else:
        clients = count_text(gone.clients, "silent client")
        say(f"{number_of_jobs(gone.jobs)}, {count_text(gone.events, 'event')} and {clients} are gone")
