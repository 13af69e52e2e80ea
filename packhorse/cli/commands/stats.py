"""Statistics: `packhorse stats` of tasks, queues or calls of the storage; `packhorse tasks`."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import click
import msgspec

from packhorse.cli.completion import complete_queue, complete_task
from packhorse.cli.context import CommandContext
from packhorse.cli.lookup import check_queue, check_task
from packhorse.cli.options import command, refuse_beside, span_option
from packhorse.cli.output import Display, escape, paint, unless_zero
from packhorse.cli.table import Column, print_table, table_lines
from packhorse.core.clock import DAY, MINUTE, SECOND
from packhorse.core.errors import BadValue
from packhorse.core.job import HELD, WAITING, State
from packhorse.monitor.liveness import is_alive
from packhorse.monitor.serializers import iso, operation_fields, task_fields
from packhorse.monitor.stats import (
    RunStats,
    counts_since,
    ended_attempts,
    midnight_before,
    percentile_bound,
    reported_operations,
    run_stats,
    stats_by_queue,
    stats_by_task,
    total_operation_times,
)
from packhorse.monitor.text import count_text, per_second_text, share_text, shorten, significant, size_text, span_text
from packhorse.storage import Storage
from packhorse.storage.records import OperationTimes, Point, Span, Tally, TaskInfo

_MAX_RANGE = 90 * DAY


@command(
    "stats",
    "packhorse stats",
    "packhorse stats --by queue --range 7d",
    "packhorse stats --range 1h --queue mail --json | jq '{name, run_p95}'",
    "packhorse stats storage",
    pages=True,
)
@click.argument("about", required=False, metavar="[storage]", type=click.Choice(["storage"]))
@click.option(
    "--by",
    type=click.Choice(["task", "queue"]),
    default="task",
    show_default=True,
    envvar="PACKHORSE_STATS_BY",  # PACKHORSE_BY is the operator
    help="A row for each.",
)
@span_option("--range", "length", default="24h", show_default=True, help="How far to look back, up to 90d.")
@click.option("--queue", metavar="QUEUE", help="Only of this queue.", shell_complete=complete_queue)
@click.option("--task", metavar="TASK", help="Only of this task.", shell_complete=complete_task)
def stats(
    context: CommandContext, about: str | None, by: str, length: int, queue: str | None, task: str | None
) -> None:
    """Attempts by task or queue: how many, how often they failed, how long they waited and ran, and their share of the
    time.

    HALTED are attempts whose worker died; they count neither as completed nor as failed.

    WAIT50, WAIT95 and WAIT99 are percentiles of the wait in the queue, RUN50, RUN95 and RUN99 of the run time, exact to
    a fifth.

    With `storage`: the workers' calls of the storage since they started, those that took most time first. WAIT is the
    time for a connection or a lock (contention), RUN the storage's own time (load); RUN P95 is that of the slowest
    worker.
    """
    if about is not None:
        hint = "it counts all calls since the workers started: packhorse stats storage"
        refuse_beside("storage", "by", "length", "queue", "task", hint=hint)
        _print_storage_times(context)
        return
    if not MINUTE <= length <= _MAX_RANGE:
        raise BadValue(f"--range must be from 1m to 90d, not {span_text(length)}")
    if queue is not None:
        check_queue(context.storage, queue)
    if task is not None:
        check_task(context.storage, task)
    span = span_for(length)
    since = max(context.storage.now() - length, 0)
    found = context.storage.series(span, queue=queue, task=task)
    points = [point for point in found if point.at + span.level.width > since]
    groups = sorted((stats_by_task if by == "task" else stats_by_queue)(points).items(), key=lambda item: -item[1].ran)
    if context.as_json:
        for name, each in groups:
            whole = sum(other.ran for _, other in groups)
            context.print_json(_fields(by, name, each, length, whole))
    elif not groups:
        context.note(f"Nothing was enqueued or run in the last {span_text(length)}. Look further back: --range 7d")
    else:
        _print_stats(by, groups, points, length)
        context.note(paint(_remark(length, span), "dim", err=True))
        is_all = span is Span.TWO_DAYS and queue is None and task is None  # read already
        if not context.quiet:
            context.note(paint(_totals_text(context.storage, found if is_all else None), "dim", err=True))


def _print_storage_times(context: CommandContext) -> None:
    """The calls that workers report."""
    now, lease = context.storage.now(), context.settings.lease
    alive = [each for each in context.storage.workers() if is_alive(each, now, lease)]
    found = total_operation_times(alive)
    if context.as_json:
        for each in found:
            context.print_json(operation_fields(each))
    elif not found:
        context.note("No worker reports its calls. For the latency from here: packhorse storage")
    else:
        print_times(found)
        reporting = sum(bool(reported_operations(each)) for each in alive)
        rest = f"reported by {count_text(reporting, 'worker')}; WAIT is contention, RUN is load"
        context.note(paint(rest, "dim", err=True))


def span_for(length: int) -> Span:
    """The finest series that reaches this far back."""
    return next((span for span in Span if length <= span.length), Span.NINETY_DAYS)


def _remark(length: int, span: Span) -> str:
    finest = {"minute": "minutes", "hour": "whole hours", "day": "whole days, in UTC"}[span.level.name]
    return f"the last {span_text(length)}, in {finest}; WAIT50 … RUN99 are exact to a fifth"


def _totals_text(storage: Storage, two_days: Sequence[Point] | None) -> str:
    """How many attempts ended and failed, in all and today."""
    two_days = storage.series(Span.TWO_DAYS) if two_days is None else two_days
    today = counts_since(two_days, midnight_before(storage.now()))
    totals = (("in all", storage.totals()), ("today", today))
    return "; ".join(
        f"{word} {ended_attempts(counts):,} ended, {counts.get('failed', 0):,} failed" for word, counts in totals
    )


def _fields(by: str, name: str, each: RunStats, length: int, whole: float) -> dict[str, Any]:
    return {
        "by": by,
        "name": name,
        "range": length / SECOND,
        **msgspec.structs.asdict(each),
        "per_second": each.runs * SECOND / length,
        "share": each.ran / whole if whole else None,
    }


def _print_stats(by: str, groups: Sequence[tuple[str, RunStats]], points: Sequence[Point], length: int) -> None:
    whole = run_stats(points)
    columns = [
        Column(by.upper(), flexible=True),
        Column("RUNS", right=True),
        Column("RATE/S", right=True, style=unless_zero(None)),
        Column("FAILED", right=True, style=unless_zero("red")),
        Column("FAIL%", right=True, style=unless_zero("red"), spare=True),
        Column("HALTED", right=True, style=unless_zero("red"), spare=True),
        Column("WAIT50", right=True, style=unless_zero(None)),
        Column("WAIT95", right=True, style=unless_zero(None)),
        Column("WAIT99", right=True, style=unless_zero(None), spare=True),
        Column("RUN50", right=True, style=unless_zero(None)),
        Column("RUN95", right=True, style=unless_zero(None)),
        Column("RUN99", right=True, style=unless_zero(None), spare=True),
        Column("TIME", right=True, style=unless_zero(None), spare=True),
        Column("SHARE", right=True, style=unless_zero(None)),
    ]
    rows = [_stats_row(name, each, whole, length) for name, each in groups]
    if len(rows) > 1:
        rows.append(_stats_row("all", whole, whole, length))
    print_table(columns, rows)


def _stats_row(name: str, each: RunStats, whole: RunStats, length: int) -> list[str]:
    return [
        name,
        f"{each.runs:,}",
        per_second_text(each.runs * SECOND / length),
        f"{each.failed:,}" if each.failed else "-",
        share_text(each.failed, each.runs).replace(" ", "") if each.failed else "-",
        f"{each.halted:,}" if each.halted else "-",
        *map(percentile_text, (each.wait_p50, each.wait_p95, each.wait_p99)),
        *map(percentile_text, (each.run_p50, each.run_p95, each.run_p99)),
        time_text(each.ran) if each.runs else "-",
        share_text(each.ran, whole.ran).replace(" ", ""),
    ]


def time_text(seconds: float | None) -> str:
    """A duration, or a dash."""
    return "-" if seconds is None else span_text(round(seconds * SECOND))


def percentile_text(percentile: float | None) -> str:
    """A percentile: "1.2s", "≤1ms"; or a dash."""
    if percentile is None:
        return "-"
    sign, duration = percentile_bound(percentile)
    if duration < 10:  # its two digits, where a span would have whole milliseconds
        return f"{sign}{duration:g}s" if duration >= 1 else f"{sign}{significant(1_000 * duration)}ms"
    return f"{sign}{time_text(duration)}"


_OPERATION_COLUMNS = (
    Column("OPERATION", flexible=True),
    Column("CALLS", right=True),
    Column("WAIT MEAN", right=True),
    Column("WAIT MAX", right=True, spare=True),
    Column("RUN MEAN", right=True),
    Column("RUN P95", right=True),
    Column("RUN MAX", right=True),
)


def print_times(operations: Sequence[OperationTimes]) -> None:
    """A row for each kind of call."""
    print_table(_OPERATION_COLUMNS, [_operation_row(each) for each in operations])


def _operation_row(times: OperationTimes) -> list[str]:
    spans = (times.wait_mean, times.wait_max, times.run_mean, times.run_p95, times.run_max)
    return [times.name, f"{times.calls:,}", *map(milliseconds, spans)]


def milliseconds(duration: int) -> str:
    """The duration in milliseconds, so that a column has one unit."""
    return f"{significant(duration / 1_000)}ms"


def trace_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add --trace, which prints the calls of the storage on stderr."""

    @click.option("--trace", is_flag=True, help="Print on stderr the calls of the storage, and their times.")
    @functools.wraps(function)
    def traced(context: CommandContext, *args: Any, trace: bool, **rest: Any) -> Any:
        try:
            return function(context, *args, **rest)
        finally:
            if trace:
                _print_trace(context, [each.times for each in context.storage.measured()])

    return traced


def _print_trace(context: CommandContext, operations: Sequence[OperationTimes]) -> None:
    calls = sum(each.calls for each in operations)
    took = sum(each.calls * (each.wait_mean + each.run_mean) for each in operations)
    summary = f"{count_text(calls, 'call')} of the storage, {milliseconds(took)} in all"
    for line in [summary, *table_lines(_OPERATION_COLUMNS, [_operation_row(each) for each in operations], None)]:
        context.note(paint(line, "dim", err=True))


TASK_COLUMNS = (
    Column("TASK", flexible=True, style=lambda text: "yellow" if text.endswith(" ?") else None),
    Column("QUEUE", flexible=True),
    Column("WAITING", right=True, style=unless_zero("yellow")),
    Column("HELD", right=True, style=unless_zero("cyan")),
    Column("DEAD", right=True, style=unless_zero("red")),
    Column("RUNS", right=True, style=unless_zero(None)),
    Column("FAILED", right=True, style=unless_zero("red"), spare=True),
    Column("WAIT95", right=True, style=unless_zero(None)),
    Column("RUN95", right=True, style=unless_zero(None)),
    Column("OPTIONS", style="dim", spare=True),
)


class TaskStats(NamedTuple):
    """A task, its jobs by state, and the attempts of two days."""

    task: TaskInfo
    counts: Counter[State]
    measured: RunStats


@command("tasks", "packhorse tasks", "packhorse tasks --json | jq -r 'select(.announced_at | not) | .name'", pages=True)
def tasks(context: CommandContext) -> None:
    """Every task that was enqueued or that a worker has announced: its jobs, and its attempts in two days.

    WAIT95 and RUN95 are the 95th percentiles of the wait in the queue and of the run time, exact to a fifth.
    """
    context.warn_if_moved()
    storage = context.storage
    found = known_tasks(storage.tasks(), storage.tallies(), storage.series(Span.TWO_DAYS))
    if context.as_json:
        for each in found:
            fields = msgspec.structs.asdict(task_fields(each.task))
            context.print_json({**fields, "counts": each.counts, "measured": each.measured})
    elif not found:
        context.note("No task is known yet: workers announce theirs when they start. Try: packhorse work")
    else:
        _print_tasks(context, found)


def known_tasks(tasks: Sequence[TaskInfo], tallies: Sequence[Tally], points: Sequence[Point]) -> list[TaskStats]:
    """The tasks with their jobs and attempts."""
    counts: dict[str, Counter[State]] = {task.name: Counter() for task in tasks}
    for tally in tallies:
        counts.setdefault(tally.task, Counter())[tally.state] += tally.number
    of = stats_by_task(points)
    return [TaskStats(task, counts[task.name], of.get(task.name, RunStats())) for task in tasks]


def _print_tasks(context: CommandContext, found: Sequence[TaskStats]) -> None:
    display = context.display
    rows = [task_cells(each, display) for each in found]
    if display.is_terminal:
        print_table(TASK_COLUMNS, rows)
    else:
        announced = [iso(each.task.announced_at) or "" for each in found]
        columns = [*TASK_COLUMNS, Column("ANNOUNCED")]
        print_table(columns, [[*row, at] for row, at in zip(rows, announced, strict=True)])
    if unknown := [each.task.name for each in found if each.task.announced_at is None]:
        names = ", ".join(shorten(escape(name), 20) for name in unknown[:2]) + (" …" if len(unknown) > 2 else "")
        context.note(f"? No worker knows {names}")


def task_cells(each: TaskStats, display: Display) -> list[str]:
    """The cells of a task for `TASK_COLUMNS`."""
    is_unknown = each.task.announced_at is None
    return [
        f"{each.task.name} ?" if display.is_terminal and is_unknown else each.task.name,
        each.task.queue,
        display.number(sum(each.counts[state] for state in WAITING)),
        display.number(sum(each.counts[state] for state in HELD)),
        display.number(each.counts[State.DEAD]),
        display.number(each.measured.runs),
        display.number(each.measured.failed),
        percentile_text(each.measured.wait_p95),
        percentile_text(each.measured.run_p95),
        _options_text(each.task.options),
    ]


_NOTHING: tuple[Any, ...] = (None, False, "", {}, [])


def _options_text(options: dict[str, Any]) -> str:
    """The options that were set, as in the code. --json has the parameters too."""
    options_set = {name: value for name, value in options.items() if name != "parameters" and value not in _NOTHING}
    return " ".join(f"{name}={_option_text(name, value)}" for name, value in options_set.items())


def _option_text(name: str, value: Any) -> str:
    if isinstance(value, int) and not isinstance(value, bool) and name.endswith(("timeout", "expires")):
        return span_text(value)
    if isinstance(value, int) and name == "memory_limit":
        return size_text(value).replace(" ", "")
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
