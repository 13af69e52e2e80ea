"""The state of everything on one screen: `packhorse status`."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from typing import Any

import click
import msgspec

from packhorse.cli.commands.stats import percentile_text, time_text
from packhorse.cli.context import CommandContext
from packhorse.cli.options import command, span_option
from packhorse.cli.output import escape, paint, say, terminal_size, unless_zero, unpainted
from packhorse.cli.snapshot import Snapshot, bars, notices, number_in, take_snapshot
from packhorse.cli.table import Column, table_lines, width_of, wrapped
from packhorse.core.clock import SECOND
from packhorse.core.event import Subject
from packhorse.core.job import HELD, State
from packhorse.monitor.serializers import queue_fields
from packhorse.monitor.stats import counts_since, midnight_before, totals_of
from packhorse.monitor.text import count_text, per_second_text, share_text, size_text, span_text
from packhorse.storage.records import QueueInfo, Span

_CLEAR = "\x1b[H\x1b[2J\x1b[3J"
_MOST_NOTICES = 6
_MOST_QUEUES = 100  # those whose jobs wait longest
_KINDS = {"sqlite": "SQLite", "redis": "Redis", "postgresql": "PostgreSQL", "mysql": "MySQL", "mariadb": "MariaDB"}


@command(
    "status", "packhorse status", "packhorse status --watch", "packhorse status --json | jq .totals.states", pages=True
)
@click.option("--watch", is_flag=True, help="Go on, until Ctrl-C.")
@span_option("--every", default="2s", show_default=True, help="With --watch: how often.")
def status(context: CommandContext, watch: bool, every: int) -> None:
    """How everything stands, on one screen: storage, workers, the last hour, each queue, and what needs attention."""
    if not watch:
        _show(context, is_first=True)
        return
    is_first = True
    try:
        while True:
            _show(context, is_first=is_first, is_watched=True)
            is_first = False
            time.sleep(max(every, SECOND // 10) / SECOND)
    except KeyboardInterrupt:
        return


def _show(context: CommandContext, *, is_first: bool, is_watched: bool = False) -> None:
    snapshot = take_snapshot(context.storage, context.settings)
    if context.as_json:
        context.print_json(status_fields(context, snapshot))
        return
    width = terminal_size().columns if sys.stdout.isatty() else None
    lines = list(status_lines(snapshot, width))
    if is_watched and width is not None and os.environ.get("TERM", "") not in ("", "dumb"):
        say(_CLEAR, end="")
    elif not is_first:
        say("")
    for line in lines:
        say(line)


def status_fields(context: CommandContext, snapshot: Snapshot) -> dict[str, Any]:
    """The same for programs."""
    storage, health = context.storage, snapshot.health
    totals = totals_of(
        snapshot.now,
        snapshot.lease,
        snapshot.queues,
        snapshot.workers,
        storage.totals(),
        counts_since(storage.series(Span.TWO_DAYS), midnight_before(snapshot.now)),
        failure_kinds=len(storage.failures(limit=500)),
        schedules=len(storage.schedules()),
    )
    queues = []
    for queue in snapshot.queues:
        flow = snapshot.flow(queue.name)
        rates = {"comes_per_second": flow.comes, "ends_per_second": flow.ends, "ended_last_hour": flow.hour}
        queues.append({**msgspec.structs.asdict(queue_fields(queue, snapshot.now)), **rates})
    return {
        "storage": {"kind": health.kind, "url": health.url, "size": health.size, "latency": health.latency / SECOND},
        "totals": totals,
        "last_hour": snapshot.last_hour,
        "queues": queues,
        "notices": [{"sentence": sentence, "hint": hint} for sentence, hint in notices(snapshot)],
    }


# --- lines ------------------------------------------------------------------------------------------------------------


def status_lines(snapshot: Snapshot, width: int | None) -> Iterator[str]:
    """The whole screen; None: it goes into a pipe."""
    yield from header_lines(snapshot, width)
    if snapshot.queues:
        yield ""
        in_order = sorted(snapshot.queues, key=lambda queue: queue.oldest_queued_at or snapshot.now)
        rows = [queue_cells(snapshot, queue) for queue in in_order[:_MOST_QUEUES]]
        yield from table_lines(QUEUE_COLUMNS, rows, width)
        if len(in_order) > _MOST_QUEUES:
            yield paint(f"… and {len(in_order) - _MOST_QUEUES:,} more: packhorse queues", "dim")
    else:
        yield "There are no jobs yet. Put one in: packhorse enqueue NAME"
    yield from _notice_lines(snapshot, width)


def header_lines(snapshot: Snapshot, width: int | None) -> Iterator[str]:
    """Where it is, who works, and what became of the last hour's jobs."""
    health, (busy, slots) = snapshot.health, snapshot.slots
    url = health.url.removeprefix("sqlite:///").rpartition("/")[2] if health.kind == "sqlite" else health.url
    size = f", {size_text(health.size)}" if health.size is not None else ""
    storage = f"{escape(url)} ({_KINDS.get(health.kind, health.kind)}{size})"
    yield _fit(paint(storage, "bold"), _crew_text(snapshot, busy, slots), width)
    yield _hour_text(snapshot, width)


def _fit(first: str, second: str, width: int | None) -> str:
    """Both on a line, or on two where that is too long."""
    line = f"{first}   {second}"
    return line if width is None or width_of(unpainted(line)) <= width else f"{first}\n{second}"


def _crew_text(snapshot: Snapshot, busy: int, slots: int) -> str:
    foremen, workers = snapshot.alive(Subject.FOREMAN), snapshot.alive(Subject.WORKER)
    if not workers:
        there = f"{count_text(len(foremen), 'foreman', 'foremen')}, but " if foremen else ""
        return paint(f"{there}no worker is running", "red" if snapshot.queues else None)
    hosts = len({worker.host for worker in workers})
    up = span_text(snapshot.now - min(each.joined_at for each in [*foremen, *workers]))
    told = [count_text(hosts, "host"), count_text(len(workers), "worker"), f"{busy}/{slots} slots busy", f"up {up}"]
    return ", ".join(told)


def _hour_text(snapshot: Snapshot, width: int | None) -> str:
    hour = snapshot.last_hour
    halted = [paint(f"{hour.halted:,} halted", "red")] if hour.halted else []
    if not hour.runs:
        went = paint(f"last hour: nothing ran{f', {hour.added:,} came in' if hour.added else ''}", "dim")
        return "   ".join([went, *halted])
    parts = [
        f"last hour {hour.completed:,} done",
        f"{per_second_text(hour.runs / 3_600)}/s",
        paint(f"{hour.failed:,} failed ({share_text(hour.failed, hour.runs)})", "red" if hour.failed else "dim"),
        *halted,
        f"wait {time_text(hour.wait_mean)}" if hour.wait_p95 is None else f"wait p95 {percentile_text(hour.wait_p95)}",
        f"run {time_text(hour.run_mean)}" if hour.run_p95 is None else f"run p95 {percentile_text(hour.run_p95)}",
    ]
    while width is not None and width_of(unpainted("   ".join(parts))) > width and len(parts) > 1:
        parts.pop()
    return "   ".join(parts)


QUEUE_COLUMNS = (
    Column("QUEUE", flexible=True, style=lambda text: "yellow" if text.endswith("(paused)") else None),
    Column("QUEUED", right=True, style=unless_zero("yellow")),
    Column("OLDEST", right=True, style=unless_zero(None)),
    Column("IN/S", right=True, style=unless_zero(None)),
    Column("OUT/S", right=True, style=unless_zero(None)),
    Column("HELD", right=True, style=unless_zero("cyan")),
    Column("RETRYING", right=True, style=unless_zero("magenta"), spare=True),
    Column("SCHEDULED", right=True, style=unless_zero(None), spare=True),
    Column("DEAD", right=True, style=unless_zero("red")),
    Column("LAST HOUR", style="green", spare=True),
)


def queue_cells(snapshot: Snapshot, queue: QueueInfo) -> list[str]:
    """What `QUEUE_COLUMNS` say of a queue."""
    flow = snapshot.flow(queue.name)
    waited = snapshot.now - queue.oldest_queued_at if queue.oldest_queued_at else None
    counted = ([State.QUEUED], HELD, [State.RETRYING], [State.SCHEDULED], [State.DEAD])
    queued, held, retrying, scheduled, dead = (f"{number_in(queue, states):,}" for states in counted)
    cells = [
        f"{queue.name} (paused)" if queue.is_paused else queue.name,
        queued,
        "-" if waited is None else span_text(waited),
        per_second_text(flow.comes),
        per_second_text(flow.ends),
        held,
        retrying,
        scheduled,
        dead,
        bars(flow.hour, sys.stdout.encoding or ""),
    ]
    return ["-" if cell == "0" else cell for cell in cells]


def _notice_lines(snapshot: Snapshot, width: int | None) -> Iterator[str]:
    found = list(notices(snapshot))
    for sentence, hint in found[:_MOST_NOTICES]:
        mark = paint("!", "yellow")
        text = f"{sentence}."
        line = f"{mark} {escape(text)}  Try: {escape(hint)}"
        if width is not None and len(text) + len(hint) + 9 > width:
            told = [*wrapped(text, max(width - 2, 20)), *wrapped(f"Try: {hint}", max(width - 2, 20))]
            line = f"{mark} " + "\n  ".join(map(escape, told))
        yield line
    if len(found) > _MOST_NOTICES:
        yield paint(f"… and {len(found) - _MOST_NOTICES} more: packhorse doctor", "dim")
