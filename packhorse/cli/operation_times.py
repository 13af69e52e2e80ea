"""How calls of the storage went, as a table: what `packhorse stats storage` and `--trace` print."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import click

from packhorse.cli.invocation import Invocation
from packhorse.cli.output import paint
from packhorse.cli.table import Column, print_table, table_lines
from packhorse.monitor.text import count_text, significant
from packhorse.storage.records import OperationTimes

COLUMNS = (
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
    print_table(COLUMNS, [_row(each) for each in operations])


def _row(times: OperationTimes) -> list[str]:
    spans = (times.wait_mean, times.wait_max, times.run_mean, times.run_p95, times.run_max)
    return [times.name, f"{times.calls:,}", *map(milliseconds, spans)]


def milliseconds(duration: int) -> str:
    """A few digits of it: all that stand below each other are in the same unit."""
    return f"{significant(duration / 1_000)}ms"


def trace_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command --trace, which tells beside the data what was asked of the storage for it."""

    @click.option("--trace", is_flag=True, help="Tell on stderr what was asked of the storage, and how long that took.")
    @functools.wraps(function)
    def traced(invocation: Invocation, *args: Any, trace: bool, **rest: Any) -> Any:
        try:
            return function(invocation, *args, **rest)
        finally:
            if trace:
                _tell(invocation, [each.times for each in invocation.storage.measured()])

    return traced


def _tell(invocation: Invocation, operations: Sequence[OperationTimes]) -> None:
    calls = sum(each.calls for each in operations)
    took = sum(each.calls * (each.wait_mean + each.run_mean) for each in operations)
    told = f"{count_text(calls, 'call')} of the storage, {milliseconds(took)} in all"
    for line in [told, *table_lines(COLUMNS, [_row(each) for each in operations], None)]:
        invocation.note(paint(line, "dim", err=True))
