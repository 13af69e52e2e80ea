"""What a process has used of the processor: the measure that stays true while others are at work. Needs Linux."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path


def milliseconds(pids: Iterable[int]) -> float:
    """Of all threads of these processes and their children so far; whoever is gone has none."""
    return sum(map(_nanoseconds, pids)) / 1e6


def _nanoseconds(pid: int) -> int:
    worked = 0
    for thread in Path(f"/proc/{pid}/task").glob("*"):
        try:
            worked += int((thread / "schedstat").read_text().split()[0])
            worked += sum(_nanoseconds(int(child)) for child in (thread / "children").read_text().split())
        except OSError:  # ended meanwhile
            continue
    return worked
