"""Measuring: how tasks and queues did over time, `stats`; and what tasks there are, `tasks`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import click
import msgspec

from packhorse.amounts import rate_text, share_text
from packhorse.cli.completing import complete_queue, complete_task
from packhorse.cli.invocation import Invocation
from packhorse.cli.options import command, span_option
from packhorse.cli.output import Shown, escape, paint, unless_nought
from packhorse.cli.table import Column, print_table
from packhorse.clock import DAY, MINUTE, SECOND
from packhorse.errors import BadValue
from packhorse.fields import iso, task_fields
from packhorse.job import HELD, WAITING, State
from packhorse.job_text import cut
from packhorse.measures import Measured, by_queue, by_task, measured
from packhorse.storage.records import Point, Span, Tally, TaskInfo
from packhorse.why import span_text

_LONGEST = 90 * DAY

# --- stats ------------------------------------------------------------------------------------------------------------


@command(
    "stats",
    "packhorse stats",
    "packhorse stats --by queue --range 7d",
    "packhorse stats --range 1h --queue mail --json | jq '{name, run_p95}'",
)
@click.option("--by", type=click.Choice(["task", "queue"]), default="task", show_default=True, help="A row for each.")
@span_option("--range", "length", default="24h", show_default=True, help="How far to look back, up to 90d.")
@click.option("--queue", metavar="QUEUE", help="Only of this queue.", shell_complete=complete_queue)
@click.option("--task", metavar="TASK", help="Only of this task.", shell_complete=complete_task)
def stats(invocation: Invocation, by: str, length: int, queue: str | None, task: str | None) -> None:
    """How attempts went: how many, how often they failed, how long they waited and ran, and who took the time.

    Half of the attempts ran no longer than P50, all but one in twenty no longer than P95. They are told in steps (1ms,
    3ms, 10ms …): the upper limit of the step that holds them.
    """
    if not MINUTE <= length <= _LONGEST:
        raise BadValue(f"--range must be from 1m to 90d, not {span_text(length)}")
    span = span_for(length)
    since = max(invocation.storage.now() - length, 0)
    points = [
        point
        for point in invocation.storage.series(span, queue=queue, task=task)
        if point.at + span.level.width > since
    ]
    groups = sorted((by_task if by == "task" else by_queue)(points).items(), key=lambda item: -item[1].ran)
    if invocation.as_json:
        for name, each in groups:
            whole = sum(other.ran for _, other in groups)
            invocation.print_json(_fields(by, name, each, length, whole))
    elif not groups:
        invocation.note(f"Nothing was enqueued or run in the last {span_text(length)}. Look further back: --range 7d")
    else:
        _print_stats(by, groups, points, length)
        invocation.note(paint(_remark(length, span), "dim", err=True))


def span_for(length: int) -> Span:
    """The finest series that reaches so far back."""
    return next((span for span in Span if length <= span.length), Span.NINETY_DAYS)


def _remark(length: int, span: Span) -> str:
    finest = {"minute": "minutes", "hour": "whole hours", "day": "whole days, in UTC"}[span.level.name]
    return f"the last {span_text(length)}, in {finest}"


def _fields(by: str, name: str, each: Measured, length: int, whole: float) -> dict[str, Any]:
    return {
        "by": by,
        "name": name,
        "range": length / SECOND,
        **msgspec.structs.asdict(each),
        "per_second": each.runs * SECOND / length,
        "share": each.ran / whole if whole else None,
    }


def _print_stats(by: str, groups: Sequence[tuple[str, Measured]], points: Sequence[Point], length: int) -> None:
    whole = measured(points)
    columns = [
        Column(by.upper(), flexible=True),
        Column("RUNS", right=True),
        Column("RATE", right=True, style=unless_nought(None)),
        Column("FAILED", right=True, style=unless_nought("red")),
        Column("FAIL%", right=True, style=unless_nought("red"), spare=True),
        Column("WAIT", right=True, style=unless_nought(None)),
        Column("P50", right=True, style=unless_nought(None)),
        Column("P95", right=True, style=unless_nought(None)),
        Column("TIME", right=True, style=unless_nought(None), spare=True),
        Column("SHARE", right=True, style=unless_nought(None)),
    ]
    rows = [_stats_row(name, each, whole, length) for name, each in groups]
    if len(rows) > 1:
        rows.append(_stats_row("all", whole, whole, length))
    print_table(columns, rows)


def _stats_row(name: str, each: Measured, whole: Measured, length: int) -> list[str]:
    return [
        name,
        f"{each.runs:,}",
        rate_text(each.runs * SECOND / length) if each.runs else "-",
        f"{each.ended_badly:,}" if each.ended_badly else "-",
        share_text(each.ended_badly, each.runs).replace(" ", "") if each.ended_badly else "-",
        _time(each.wait_mean),
        _time(each.run_p50),
        _time(each.run_p95),
        _time(each.ran) if each.runs else "-",
        share_text(each.ran, whole.ran).replace(" ", ""),
    ]


def _time(seconds: float | None) -> str:
    return "-" if seconds is None else span_text(round(seconds * SECOND))


# --- tasks ------------------------------------------------------------------------------------------------------------


class Known(NamedTuple):
    """A task, its jobs by state, and how they went within two days."""

    task: TaskInfo
    counts: Counter[State]
    measured: Measured


@command("tasks", "packhorse tasks", "packhorse tasks --json | jq -r 'select(.announced_at | not) | .name'")
def tasks(invocation: Invocation) -> None:
    """Every task that was ever enqueued, or that a worker has announced: its jobs, and how they went in two days."""
    storage = invocation.storage
    found = _known(storage.tasks(), storage.tallies(), storage.series(Span.TWO_DAYS))
    if invocation.as_json:
        for each in found:
            fields = msgspec.structs.asdict(task_fields(each.task))
            invocation.print_json({**fields, "counts": each.counts, "measured": each.measured})
    elif not found:
        invocation.note("No task is known yet: workers announce theirs when they start. Try: packhorse work")
    else:
        _print_tasks(invocation, found)


def _known(tasks: Sequence[TaskInfo], tallies: Sequence[Tally], points: Sequence[Point]) -> list[Known]:
    counts: dict[str, Counter[State]] = {task.name: Counter() for task in tasks}
    for tally in tallies:
        counts.setdefault(tally.task, Counter())[tally.state] += tally.number
    of = by_task(points)
    return [Known(task, counts[task.name], of.get(task.name, Measured())) for task in tasks]


def _print_tasks(invocation: Invocation, found: Sequence[Known]) -> None:
    shown = invocation.shown
    has_queues = not shown.is_terminal or any(each.task.queue != each.task.name for each in found)
    columns = [
        Column("TASK", flexible=True, style=lambda text: "yellow" if text.endswith(" ?") else None),
        *([Column("QUEUE", flexible=True)] if has_queues else []),
        Column("WAITING", right=True, style=unless_nought("yellow")),
        Column("HELD", right=True, style=unless_nought("cyan")),
        Column("DEAD", right=True, style=unless_nought("red")),
        Column("RUNS", right=True, style=unless_nought(None)),
        Column("FAILED", right=True, style=unless_nought("red"), spare=True),
        Column("P95", right=True, style=unless_nought(None)),
        Column("OPTIONS", style="dim", spare=True),
        *([] if shown.is_terminal else [Column("ANNOUNCED")]),
    ]
    print_table(columns, [_task_row(each, shown, has_queues=has_queues) for each in found])
    if unknown := [each.task.name for each in found if each.task.announced_at is None]:
        names = ", ".join(cut(escape(name), 20) for name in unknown[:2]) + (" …" if len(unknown) > 2 else "")
        invocation.note(f"? No worker knows {names}")


def _task_row(each: Known, shown: Shown, *, has_queues: bool) -> list[str]:
    is_unknown = each.task.announced_at is None
    return [
        f"{each.task.name} ?" if shown.is_terminal and is_unknown else each.task.name,
        *([each.task.queue] if has_queues else []),
        shown.number(sum(each.counts[state] for state in WAITING)),
        shown.number(sum(each.counts[state] for state in HELD)),
        shown.number(each.counts[State.DEAD]),
        shown.number(each.measured.runs),
        shown.number(each.measured.ended_badly),
        _time(each.measured.run_p95),
        _options(each.task.options),
        *([] if shown.is_terminal else [iso(each.task.announced_at) or ""]),
    ]


def _options(options: dict[str, Any]) -> str:
    """Those that were set, as they are written in the code."""
    told = {name: value for name, value in options.items() if value not in (None, False, "", {}, [])}
    return " ".join(f"{name}={_option(name, value)}" for name, value in told.items())


def _option(name: str, value: Any) -> str:
    if isinstance(value, int) and not isinstance(value, bool) and name.endswith(("timeout", "expires")):
        return span_text(value)
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
