"""Everything on one screen: `packhorse status`. `top` and its header use the same `Snapshot`."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import click
import msgspec

from packhorse.cli.commands.stats import percentile_text, time_text
from packhorse.cli.context import CommandContext
from packhorse.cli.options import command, span_option
from packhorse.cli.output import escape, paint, say, terminal_size, unless_zero, unpainted
from packhorse.cli.table import Column, table_lines, width_of, wrapped
from packhorse.core.clock import HOUR, MINUTE, SECOND
from packhorse.core.event import Subject
from packhorse.core.job import HELD, State
from packhorse.core.settings import Settings
from packhorse.monitor.health import Caller, Facts, Finding, Severity, findings
from packhorse.monitor.liveness import busy_slots, is_alive
from packhorse.monitor.serializers import queue_fields
from packhorse.monitor.stats import RunStats, counts_since, midnight_before, run_stats, totals_of
from packhorse.monitor.text import count_text, per_second_text, share_text, size_text, span_text
from packhorse.storage import Storage
from packhorse.storage.records import Health, Point, QueueInfo, Span, WorkerInfo
from packhorse.storage.transfer import Move

_CLEAR = "\x1b[H\x1b[2J\x1b[3J"
_MAX_NOTICES = 6
_MAX_QUEUES = 100
_KINDS = {"sqlite": "SQLite", "redis": "Redis", "postgresql": "PostgreSQL", "mysql": "MySQL", "mariadb": "MariaDB"}


@command(
    "status", "packhorse status", "packhorse status --watch", "packhorse status --json | jq .totals.states", pages=True
)
@click.option("--watch", is_flag=True, help="Refresh until Ctrl-C.")
@span_option("--every", default="2s", show_default=True, help="With --watch: how often to refresh.")
def status(context: CommandContext, watch: bool, every: int) -> None:
    """Everything on one screen: storage, workers, the last hour, each queue, and what needs attention."""
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
    """The screen as JSON."""
    storage, condition = context.storage, snapshot.health
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
        "storage": {
            "kind": condition.kind,
            "url": condition.url,
            "size": condition.size,
            "latency": condition.latency / SECOND,
        },
        "totals": totals,
        "last_hour": snapshot.last_hour,
        "queues": queues,
        "notices": [{"sentence": sentence, "hint": hint} for sentence, hint in notices(snapshot)],
    }


# --- what is read -----------------------------------------------------------------------------------------------------

_RATE_MINUTES = 5
_BARS = 10
_BLOCKS = "▁▂▃▄▅▆▇█"
_PLAIN_BLOCKS = "_.:-=+*#"


class Flow(NamedTuple):
    """The jobs that a queue receives and ends per second, and the ended ones in each tenth of the last hour."""

    comes: float = 0.0
    ends: float = 0.0
    hour: tuple[int, ...] = (0,) * _BARS


class Snapshot(msgspec.Struct, frozen=True, dict=True):
    """The whole system at one moment, from a few reads. `findings` are the problems, the worst first."""

    now: int
    lease: int
    health: Health
    queues: Sequence[QueueInfo]
    workers: Sequence[WorkerInfo]
    points: Sequence[Point]  # of the last two hours, by minute
    move: Move | None = None
    findings: Sequence[Finding] = ()

    def alive(self, subject: Subject) -> list[WorkerInfo]:
        """The foremen, or the workers, with a heartbeat within their lease."""
        return [each for each in self.workers if each.subject is subject and is_alive(each, self.now, self.lease)]

    @property
    def slots(self) -> tuple[int, int]:
        """How many slots are busy, and how many there are."""
        workers = self.alive(Subject.WORKER)
        running, held = (sum(number_in(queue, states) for queue in self.queues) for states in ([State.RUNNING], HELD))
        return busy_slots(workers, running=running, held=held), sum(worker.concurrency for worker in workers)

    @property
    def last_hour(self) -> RunStats:
        """The attempts of the last hour."""
        return run_stats(point for point in self.points if point.at > self.now - HOUR)

    def flow(self, queue: str) -> Flow:
        """What goes through this queue."""
        return flow_of(self._points_by_queue.get(queue, []), self.now)

    @cached_property
    def _points_by_queue(self) -> dict[str, list[Point]]:
        found: dict[str, list[Point]] = {}
        for point in self.points:
            found.setdefault(point.queue, []).append(point)
        return found


def take_snapshot(storage: Storage, settings: Settings) -> Snapshot:
    """Read the storage."""
    facts = Facts(storage, settings.lease)
    problems = [each for each in findings(facts, Caller.STATUS) if each.severity is not Severity.OK]
    return Snapshot(
        facts.now,
        settings.lease,
        facts.health,
        facts.queues,
        facts.workers,
        storage.series(Span.TWO_HOURS),
        facts.move,
        sorted(problems, key=lambda each: each.is_ok),
    )


def flow_of(points: Iterable[Point], now: int) -> Flow:
    """The rates of the last five minutes, and the jobs that ended in the last hour."""
    since = now - now % MINUTE - (_RATE_MINUTES - 1) * MINUTE
    seconds = (now - since) / SECOND
    comes = ends = 0
    hour = [0] * _BARS
    for point in points:
        ended = sum(point.values.get(name, 0) for name in ("completed", "dead", "aborted"))
        if point.at >= since:
            comes += point.values.get("added", 0)
            ends += ended
        place = (point.at + MINUTE - 1 - (now - HOUR)) * _BARS // HOUR
        if place >= 0:
            hour[min(place, _BARS - 1)] += ended
    return Flow(comes / seconds, ends / seconds, tuple(hour))


def bars(numbers: Sequence[int], encoding: str = "utf-8") -> str:
    """The numbers as a row of bars, each as high as its share of the largest; in ASCII for terminals without blocks."""
    blocks = _BLOCKS if encoding.lower().startswith("utf") else _PLAIN_BLOCKS
    most = max(numbers, default=0)
    return "".join(blocks[-(-(len(blocks) - 1) * number // most) if most else 0] for number in numbers)


def number_in(queue: QueueInfo, states: Iterable[State]) -> int:
    """How many jobs of the queue are in one of these states."""
    return sum(queue.counts.get(state, 0) for state in states)


def notices(snapshot: Snapshot) -> list[tuple[str, str]]:
    """Each problem as a sentence, and what to try."""
    return [(each.sentence, each.fix or "packhorse doctor") for each in snapshot.findings]


# --- lines ------------------------------------------------------------------------------------------------------------


def status_lines(snapshot: Snapshot, width: int | None) -> Iterator[str]:
    """The whole screen; None: for a pipe."""
    yield from header_lines(snapshot, width)
    if snapshot.queues:
        yield ""
        in_order = sorted(snapshot.queues, key=lambda queue: queue.oldest_queued_at or snapshot.now)
        rows = [queue_cells(snapshot, queue) for queue in in_order[:_MAX_QUEUES]]
        yield from table_lines(QUEUE_COLUMNS, rows, width)
        if len(in_order) > _MAX_QUEUES:
            yield paint(f"… and {len(in_order) - _MAX_QUEUES:,} more: packhorse queues", "dim")
    else:
        yield "There are no jobs yet. Enqueue one: packhorse enqueue NAME"
    yield from _notice_lines(snapshot, width)


def header_lines(snapshot: Snapshot, width: int | None) -> Iterator[str]:
    """The storage, the workers, and the attempts of the last hour."""
    condition, (busy, slots) = snapshot.health, snapshot.slots
    name = condition.url.removeprefix("sqlite:///").rpartition("/")[2]
    url = name if condition.kind == "sqlite" else condition.url
    size = f", {size_text(condition.size)}" if condition.size is not None else ""
    storage = f"{escape(url)} ({_KINDS.get(condition.kind, condition.kind)}{size})"
    yield _fit(paint(storage, "bold"), _workers_text(snapshot, busy, slots), width)
    yield _hour_text(snapshot, width)


def _fit(first: str, second: str, width: int | None) -> str:
    """Both on one line, or on two if that is too long."""
    line = f"{first}   {second}"
    return line if width is None or width_of(unpainted(line)) <= width else f"{first}\n{second}"


def _workers_text(snapshot: Snapshot, busy: int, slots: int) -> str:
    foremen, workers = snapshot.alive(Subject.FOREMAN), snapshot.alive(Subject.WORKER)
    if not workers:
        there = f"{count_text(len(foremen), 'foreman', 'foremen')}, but " if foremen else ""
        return paint(f"{there}no worker is running", "red" if snapshot.queues else None)
    hosts = len({worker.host for worker in workers})
    up = span_text(snapshot.now - min(each.joined_at for each in [*foremen, *workers]))
    parts = [count_text(hosts, "host"), count_text(len(workers), "worker"), f"{busy}/{slots} slots busy", f"up {up}"]
    return ", ".join(parts)


def _hour_text(snapshot: Snapshot, width: int | None) -> str:
    hour = snapshot.last_hour
    halted = [paint(f"{hour.halted:,} halted", "red")] if hour.halted else []
    if not hour.runs:
        nothing = paint(f"last hour: nothing ran{f', {hour.added:,} came in' if hour.added else ''}", "dim")
        return "   ".join([nothing, *halted])
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
    """The cells of a queue for `QUEUE_COLUMNS`."""
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
    found = notices(snapshot)
    for sentence, hint in found[:_MAX_NOTICES]:
        mark = paint("!", "yellow")
        text = f"{sentence}."
        line = f"{mark} {escape(text)}  Try: {escape(hint)}"
        if width is not None and len(text) + len(hint) + 9 > width:
            wrapped_lines = [*wrapped(text, max(width - 2, 20)), *wrapped(f"Try: {hint}", max(width - 2, 20))]
            line = f"{mark} " + "\n  ".join(map(escape, wrapped_lines))
        yield line
    if len(found) > _MAX_NOTICES:
        yield paint(f"… and {len(found) - _MAX_NOTICES} more: packhorse doctor", "dim")
