"""The processes of a trial, found by a variable in their environment, also when their parents are dead.

Reads `/proc`, so it needs Linux.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import NamedTuple

_TICK = os.sysconf("SC_CLK_TCK")


class Cost(NamedTuple):
    """What a set of processes has used so far, and holds now."""

    processes: int
    cpu_seconds: float
    memory_mb: float  # shared pages counted once (PSS)
    largest_mb: float  # resident memory of the largest process


def members(variable: str, value: object) -> list[int]:
    """The living processes with this variable in their environment, oldest first."""
    mark = f"{variable}={value}".encode()
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if mark in path.read_bytes().split(b"\0"):
                found.append(int(path.parent.name))
        except OSError:  # ended meanwhile, or not readable by us
            continue
    return sorted(found, key=lambda pid: (_start(pid), pid))


def kill(pids: list[int]) -> None:
    """Send SIGKILL: the processes get no chance to clean up."""
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


def cost(pids: list[int]) -> Cost:
    """The total cost. An ended process adds nothing."""
    memory = [_memory(pid) for pid in pids]
    return Cost(
        len(pids),
        sum(map(_cpu_seconds, pids)),
        sum(shared for shared, _ in memory) / 1_000,
        max((resident for _, resident in memory), default=0) / 1_000,
    )


def _stat(pid: int) -> list[str]:
    """The fields after the program's name, which may contain any character."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ["0"] * 20


def _start(pid: int) -> int:
    return int(_stat(pid)[19])


def _cpu_seconds(pid: int) -> float:
    """User and system time, including ended children."""
    return sum(map(int, _stat(pid)[11:15])) / _TICK


def _memory(pid: int) -> tuple[float, float]:
    """Proportional and resident memory in kB (thousands of bytes)."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0.0, 0.0
    sizes = {line.split(":")[0]: int(line.split()[1]) * 1.024 for line in lines if line.startswith(("Pss:", "Rss:"))}
    return sizes.get("Pss", 0.0), sizes.get("Rss", 0.0)
