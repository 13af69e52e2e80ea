"""Who is next: `packhorse next`."""

from __future__ import annotations

from collections import Counter
from typing import Any

import click

from packhorse.cli.invocation import Invocation
from packhorse.cli.options import command, number_option
from packhorse.cli.output import escape, say, short_ids
from packhorse.cli.table import Column, print_table
from packhorse.core.job import QUEUED
from packhorse.monitor.schedules import NextJob, order_next_jobs, queue_weights
from packhorse.monitor.text import call_text, count_text
from packhorse.storage.contract import BATCH
from packhorse.storage.records import BY_AGE, Filter

_ROWS = 20
_COLUMNS = [
    Column("PLACE", right=True),
    Column("ID"),
    Column("TIER"),
    Column("RANK", right=True),
    Column("QUEUE", flexible=True),
    Column("IN QUEUE", right=True),
    Column("CALL", flexible=True, least=20),
]


@command("next", "packhorse next", "packhorse next --explain -n 5", pages=True)
@number_option("-n", "number", default=_ROWS, show_default=True, help="How many of those that go next; 0 is all.")
@click.option("--explain", is_flag=True, help="Say by which rules they stand so.")
def next_up(invocation: Invocation, number: int, explain: bool) -> None:
    """The jobs in line in the order in which they will be taken: each with its rank, and its place in its queue.
    Those of paused queues are left out, but for forced ones."""
    invocation.tell_move()
    order = _order(invocation)
    waiting, paused = _found(invocation, order)
    found = waiting[: number or None]
    if invocation.as_json:
        for one in found:
            invocation.print_json(_fields(one))
        return
    if explain:
        say(_rules(order))
    if not found:
        invocation.note("Nothing is in line.")
        _tell_paused(invocation, paused)
        return
    ids = short_ids(one.job.id for one in found) if invocation.shown.is_terminal else {}
    print_table(_COLUMNS, [_row(one, ids.get(one.job.id, one.job.id)) for one in found])
    _tell_paused(invocation, paused)


def _tell_paused(invocation: Invocation, paused: Counter[str]) -> None:
    for queue, number in sorted(paused.items()):
        waits = count_text(number, "more waits", "more wait")
        invocation.note(f"{waits} in the paused queue {escape(queue)}: packhorse resume {escape(queue)}")


def _found(invocation: Invocation, order: str) -> tuple[list[NextJob], Counter[str]]:
    """The jobs in line, and how many are left out of it by paused queue."""
    storage = invocation.storage
    paused = {queue.name for queue in storage.queues() if queue.is_paused}
    line = storage.find(Filter(states=frozenset({QUEUED})), limit=BATCH).jobs
    jobs = [job for job in line if job.queue not in paused or job.is_forced]
    left_out = Counter(job.queue for job in line if job.queue in paused and not job.is_forced)
    return order_next_jobs(jobs, order, queue_weights(storage.tasks())), left_out


def _order(invocation: Invocation) -> str:
    return invocation.storage.outlook("", []).order


def _rules(order: str) -> str:
    within = (
        "within a rank the oldest goes first, whatever its queue (order = created)"
        if order == BY_AGE
        else "within a rank queues take turns by weight, and in a queue the oldest goes first (order = turns)"
    )
    return f"lowest rank first: recovered 0, forced 1, halted 2, then priority 10 … 1 as 3 … 12; {within}"


def _row(one: NextJob, shown_id: str) -> list[str]:
    job = one.job
    return [str(one.place), shown_id, one.tier, str(job.rank), job.queue, str(one.place_in_queue), call_text(job)]


def _fields(one: NextJob) -> dict[str, Any]:
    job = one.job
    told = {name: getattr(job, name) for name in ("rank", "id", "task", "queue", "priority")}
    return {"place": one.place, "place_in_queue": one.place_in_queue, "tier": one.tier, **told}
