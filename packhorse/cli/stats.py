"""How tasks or queues did over time: `packhorse stats`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click
import msgspec

from packhorse.cli.completing import complete_queue, complete_task
from packhorse.cli.invocation import Invocation
from packhorse.cli.operation_times import print_times
from packhorse.cli.options import command, refuse_beside, span_option
from packhorse.cli.output import paint, unless_nought
from packhorse.cli.table import Column, print_table
from packhorse.cli.where import check_queue, check_task
from packhorse.core.clock import DAY, MINUTE, SECOND
from packhorse.core.errors import BadValue
from packhorse.monitor.liveness import is_alive
from packhorse.monitor.serializers import operation_fields
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
from packhorse.monitor.text import count_text, per_second_text, share_text, significant, span_text
from packhorse.storage import Storage
from packhorse.storage.records import Point, Span

_LONGEST = 90 * DAY


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
    envvar="PACKHORSE_STATS_BY",  # PACKHORSE_BY is who does something
    help="A row for each.",
)
@span_option("--range", "length", default="24h", show_default=True, help="How far to look back, up to 90d.")
@click.option("--queue", metavar="QUEUE", help="Only of this queue.", shell_complete=complete_queue)
@click.option("--task", metavar="TASK", help="Only of this task.", shell_complete=complete_task)
def stats(invocation: Invocation, about: str | None, by: str, length: int, queue: str | None, task: str | None) -> None:
    """How attempts went: how many, how often they failed, how long they waited and ran, and who took the time.

    HALTED are those whose worker died. They are counted apart: nobody saw how they would have ended.

    Of 100 attempts 50 had waited in line for no longer than WAIT50, 95 no longer than WAIT95, 99 no longer than WAIT99;
    and so they ran for no longer than RUN50, RUN95, RUN99. These are right to a fifth.

    With `storage`: how the workers' calls of the storage went since they began, those first that took most of its time
    in all. WAIT is the time before a connection or a lock was free (contention), as mean and longest; RUN the storage's
    own time (load), also as RUN P95: of 100 calls 95 took no longer, in the worker where they were slowest.
    """
    if about is not None:
        hint = "it tells of all calls since the workers began: packhorse stats storage"
        refuse_beside("storage", "by", "length", "queue", "task", hint=hint)
        _print_storage_times(invocation)
        return
    if not MINUTE <= length <= _LONGEST:
        raise BadValue(f"--range must be from 1m to 90d, not {span_text(length)}")
    if queue is not None:
        check_queue(invocation.storage, queue)
    if task is not None:
        check_task(invocation.storage, task)
    span = span_for(length)
    since = max(invocation.storage.now() - length, 0)
    found = invocation.storage.series(span, queue=queue, task=task)
    points = [point for point in found if point.at + span.level.width > since]
    groups = sorted((stats_by_task if by == "task" else stats_by_queue)(points).items(), key=lambda item: -item[1].ran)
    if invocation.as_json:
        for name, each in groups:
            whole = sum(other.ran for _, other in groups)
            invocation.print_json(_fields(by, name, each, length, whole))
    elif not groups:
        invocation.note(f"Nothing was enqueued or run in the last {span_text(length)}. Look further back: --range 7d")
    else:
        _print_stats(by, groups, points, length)
        invocation.note(paint(_remark(length, span), "dim", err=True))
        is_all = span is Span.TWO_DAYS and queue is None and task is None  # read already
        if not invocation.quiet:
            invocation.note(paint(_since_ever(invocation.storage, found if is_all else None), "dim", err=True))


def _print_storage_times(invocation: Invocation) -> None:
    """As they told it themselves: this process has hardly asked anything yet."""
    now, lease = invocation.storage.now(), invocation.settings.lease
    alive = [each for each in invocation.storage.workers() if is_alive(each, now, lease)]
    found = total_operation_times(alive)
    if invocation.as_json:
        for each in found:
            invocation.print_json(operation_fields(each))
    elif not found:
        invocation.note("No worker is there to tell how its calls go. How it is from here: packhorse storage")
    else:
        print_times(found)
        told = sum(bool(reported_operations(each)) for each in alive)
        rest = f"as {count_text(told, 'worker')} told; WAIT is contention, RUN is load"
        invocation.note(paint(rest, "dim", err=True))


def span_for(length: int) -> Span:
    """The finest series that reaches so far back."""
    return next((span for span in Span if length <= span.length), Span.NINETY_DAYS)


def _remark(length: int, span: Span) -> str:
    finest = {"minute": "minutes", "hour": "whole hours", "day": "whole days, in UTC"}[span.level.name]
    return f"the last {span_text(length)}, in {finest}; WAIT50 … RUN99 are right to a fifth"


def _since_ever(storage: Storage, two_days: Sequence[Point] | None) -> str:
    """How many attempts ended, and failed, since ever and today."""
    two_days = storage.series(Span.TWO_DAYS) if two_days is None else two_days
    today = counts_since(two_days, midnight_before(storage.now()))
    told = (("since ever", storage.totals()), ("today", today))
    return "; ".join(
        f"{word} {ended_attempts(counts):,} ended, {counts.get('failed', 0):,} failed" for word, counts in told
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
        Column("RATE/S", right=True, style=unless_nought(None)),
        Column("FAILED", right=True, style=unless_nought("red")),
        Column("FAIL%", right=True, style=unless_nought("red"), spare=True),
        Column("HALTED", right=True, style=unless_nought("red"), spare=True),
        Column("WAIT50", right=True, style=unless_nought(None)),
        Column("WAIT95", right=True, style=unless_nought(None)),
        Column("WAIT99", right=True, style=unless_nought(None), spare=True),
        Column("RUN50", right=True, style=unless_nought(None)),
        Column("RUN95", right=True, style=unless_nought(None)),
        Column("RUN99", right=True, style=unless_nought(None), spare=True),
        Column("TIME", right=True, style=unless_nought(None), spare=True),
        Column("SHARE", right=True, style=unless_nought(None)),
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
