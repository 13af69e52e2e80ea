"""The figures: their names in code, their headings in tables, and their number of digits."""

from __future__ import annotations

from typing import NamedTuple


class Figure(NamedTuple):
    """One column."""

    name: str
    heading: str
    digits: int = 0

    def text(self, value: float | None) -> str:
        """The value as text for a table.

        >>> Figure("drain_one", "drain").text(12345.6)
        '12,346'
        """
        return "–" if value is None else f"{value:,.{self.digits}f}"


class Group(NamedTuple):
    """Figures that share a table."""

    title: str
    figures: tuple[Figure, ...]


THROUGHPUT = Group(
    "Throughput, jobs a second",
    (
        Figure("single", "enqueue, one by one"),
        Figure("many", "enqueue, 1,000 a call"),
        Figure("drain_one", "drain, 1 process"),
        Figure("drain_two", "drain, 2 processes"),
    ),
)
LATENCY = Group(
    "Latency, milliseconds",
    (
        Figure("idle_p50", "idle p50", 2),
        Figure("idle_p95", "p95", 2),
        Figure("idle_p99", "p99", 2),
        Figure("half_p50", "half load p50", 2),
        Figure("half_p95", "p95", 2),
        Figure("half_p99", "p99", 2),
        Figure("half_rate", "half load, jobs/s"),
    ),
)
IDLE = Group(
    "Ten slots, idle",
    (
        Figure("idle_cpu", "CPU, % of a core", 2),
        Figure("idle_requests", "requests/s", 1),
        Figure("idle_commands", "commands/s", 1),
        Figure("processes", "processes"),
        Figure("memory", "memory, MB"),
        Figure("largest", "largest process, MB"),
        Figure("start_up", "start to first job, s", 2),
    ),
)
CRASH = Group(
    "Crash: 200 jobs of 0.2 s, all processes killed after 2 s and started again",
    (
        Figure("crash_finished", "finished of 200"),
        Figure("crash_in_flight", "in flight"),
        Figure("crash_rerun", "last of these rerun after, s", 1),
        Figure("crash_seconds", "last job done after, s", 1),
        Figure("crash_twice", "finished ones run again"),
    ),
)
GROUPS = (THROUGHPUT, LATENCY, IDLE, CRASH)
