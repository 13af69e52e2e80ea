"""Every task that is known, its jobs, and how they went: `packhorse tasks`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from packhorse.cli.invocation import Invocation
from packhorse.cli.options import command
from packhorse.cli.output import Shown, escape, unless_nought
from packhorse.cli.stats import percentile_text
from packhorse.cli.table import Column, print_table
from packhorse.core.job import HELD, WAITING, State
from packhorse.monitor.serializers import iso, task_fields
from packhorse.monitor.stats import RunStats, stats_by_task
from packhorse.monitor.text import shorten, size_text, span_text
from packhorse.storage.records import Point, Span, Tally, TaskInfo

TASK_COLUMNS = (
    Column("TASK", flexible=True, style=lambda text: "yellow" if text.endswith(" ?") else None),
    Column("QUEUE", flexible=True),
    Column("WAITING", right=True, style=unless_nought("yellow")),
    Column("HELD", right=True, style=unless_nought("cyan")),
    Column("DEAD", right=True, style=unless_nought("red")),
    Column("RUNS", right=True, style=unless_nought(None)),
    Column("FAILED", right=True, style=unless_nought("red"), spare=True),
    Column("WAIT95", right=True, style=unless_nought(None)),
    Column("RUN95", right=True, style=unless_nought(None)),
    Column("OPTIONS", style="dim", spare=True),
)


class Known(NamedTuple):
    """A task, its jobs by state, and how they went within two days."""

    task: TaskInfo
    counts: Counter[State]
    measured: RunStats


@command("tasks", "packhorse tasks", "packhorse tasks --json | jq -r 'select(.announced_at | not) | .name'", pages=True)
def tasks(invocation: Invocation) -> None:
    """Every task that was ever enqueued, or that a worker has announced: its jobs, and how they went in two days.

    Of 100 attempts 95 had waited in line for no longer than WAIT95, and ran for no longer than RUN95. These are
    right to a fifth.
    """
    invocation.tell_move()
    storage = invocation.storage
    found = known_tasks(storage.tasks(), storage.tallies(), storage.series(Span.TWO_DAYS))
    if invocation.as_json:
        for each in found:
            fields = msgspec.structs.asdict(task_fields(each.task))
            invocation.print_json({**fields, "counts": each.counts, "measured": each.measured})
    elif not found:
        invocation.note("No task is known yet: workers announce theirs when they start. Try: packhorse work")
    else:
        _print_tasks(invocation, found)


def known_tasks(tasks: Sequence[TaskInfo], tallies: Sequence[Tally], points: Sequence[Point]) -> list[Known]:
    """The tasks, with what there is to tell of each."""
    counts: dict[str, Counter[State]] = {task.name: Counter() for task in tasks}
    for tally in tallies:
        counts.setdefault(tally.task, Counter())[tally.state] += tally.number
    of = stats_by_task(points)
    return [Known(task, counts[task.name], of.get(task.name, RunStats())) for task in tasks]


def _print_tasks(invocation: Invocation, found: Sequence[Known]) -> None:
    shown = invocation.shown
    rows = [task_cells(each, shown) for each in found]
    if shown.is_terminal:
        print_table(TASK_COLUMNS, rows)
    else:
        announced = [iso(each.task.announced_at) or "" for each in found]
        columns = [*TASK_COLUMNS, Column("ANNOUNCED")]
        print_table(columns, [[*row, at] for row, at in zip(rows, announced, strict=True)])
    if unknown := [each.task.name for each in found if each.task.announced_at is None]:
        names = ", ".join(shorten(escape(name), 20) for name in unknown[:2]) + (" …" if len(unknown) > 2 else "")
        invocation.note(f"? No worker knows {names}")


def task_cells(each: Known, shown: Shown) -> list[str]:
    """What `TASK_COLUMNS` say of a task."""
    is_unknown = each.task.announced_at is None
    return [
        f"{each.task.name} ?" if shown.is_terminal and is_unknown else each.task.name,
        each.task.queue,
        shown.number(sum(each.counts[state] for state in WAITING)),
        shown.number(sum(each.counts[state] for state in HELD)),
        shown.number(each.counts[State.DEAD]),
        shown.number(each.measured.runs),
        shown.number(each.measured.failed),
        percentile_text(each.measured.wait_p95),
        percentile_text(each.measured.run_p95),
        _options(each.task.options),
    ]


_NOTHING: tuple[Any, ...] = (None, False, "", {}, [])


def _options(options: dict[str, Any]) -> str:
    """Those that were set, as they are written in the code. What the task takes is told by --json."""
    told = {name: value for name, value in options.items() if name != "parameters" and value not in _NOTHING}
    return " ".join(f"{name}={_option(name, value)}" for name, value in told.items())


def _option(name: str, value: Any) -> str:
    if isinstance(value, int) and not isinstance(value, bool) and name.endswith(("timeout", "expires")):
        return span_text(value)
    if isinstance(value, int) and name == "memory_limit":
        return size_text(value).replace(" ", "")
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
