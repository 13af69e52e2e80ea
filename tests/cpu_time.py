"""The CPU time of other processes. Unlike wall time it does not depend on the load of the machine."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path

_IS_AVAILABLE = Path("/proc/self/schedstat").exists()


def cpu_time(pids: Iterable[int]) -> float:
    """CPU seconds of these processes; an ended one counts 0. Without schedstat, return wall time."""
    if not _IS_AVAILABLE:
        return time.monotonic()
    return sum(_nanoseconds(task) for pid in pids for task in _tasks(pid)) / 1e9


def _tasks(pid: int) -> list[Path]:
    try:
        return list(Path(f"/proc/{pid}/task").iterdir())
    except OSError:
        return []


def _nanoseconds(task: Path) -> int:
    try:
        return int((task / "schedstat").read_text("ascii").split()[0])
    except OSError:
        return 0
