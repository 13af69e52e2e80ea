"""Who works: `packhorse workers`, with those that are gone and what they held."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import click

from packhorse.cli.invocation import Invocation
from packhorse.cli.operation_times import trace_option
from packhorse.cli.options import command
from packhorse.cli.output import Shown, escape, paint, short_owner, unless_nought
from packhorse.cli.table import Column, print_table
from packhorse.core.event import Subject
from packhorse.core.job import HELD, WAITING, State
from packhorse.monitor.liveness import Presence, group_processes, group_text, is_alive, presence_of
from packhorse.monitor.serializers import worker_fields
from packhorse.monitor.served_queues import queues_served_by
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
def workers(invocation: Invocation, only_gone: bool) -> None:
    """Every foreman and its workers: where they run, how many jobs they hold, and their last sign of life.

    Who has been silent for longer than a lease is gone, and no longer listed; --gone lists it, with what it held. One
    that was only frozen returns by itself.
    """
    now, lease = invocation.shown.now, invocation.settings.lease
    known = invocation.storage.workers()
    presence = presence_of(known, now, lease)
    listed = _by_foreman(presence.gone if only_gone else presence.here)
    holds = holds_of(invocation.storage) if known else Counter()
    if not holds:  # whoever has jobs has them from here
        invocation.tell_move()
    if invocation.as_json:
        for worker in listed:
            fields = worker_fields(worker, is_alive=is_alive(worker, now, lease), holds=holds[worker.id])
            invocation.print_json(fields)
        return
    if listed:
        _print_workers(invocation.shown, listed, holds, lease)
    elif only_gone:
        invocation.note("Nobody is gone without a word.")
    else:
        waiting = invocation.storage.count(Filter(states=WAITING)).number
        waits = f" {count_text(waiting, 'job waits', 'jobs wait')}." if waiting else ""
        invocation.note(f"No worker is running.{waits} Start some: packhorse work")
    if not only_gone:
        _tell_gone(invocation, presence, holds)


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


def _tell_gone(invocation: Invocation, presence: Presence, holds: Counter[str | None]) -> None:
    lost, shown = group_processes(presence.gone), invocation.shown
    for each in lost[:_MOST_TOLD]:
        at = each.silent_since
        since = f"{span_text(shown.now - at)} ago" if shown.is_terminal else shown.time(at)
        held = count_text(each.held(holds), "job") if each.held(holds) else "nothing"
        told = f"{group_text(each)} fell silent {since}, and held {held}"
        invocation.note(f"{paint('!', 'yellow', err=True)} {escape(told)}")
    if len(lost) > _MOST_TOLD:
        invocation.note(f"… and {len(lost) - _MOST_TOLD:,} more: packhorse workers --gone")
    is_watched = any(each.subject is Subject.FOREMAN for each in presence.here)
    if lost and not is_watched and any(each.held(holds) for each in lost):
        invocation.note("No foreman is there to take their jobs back. Start one: packhorse work")


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
