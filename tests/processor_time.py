"""The processor time that other processes have used. Unlike the time on the wall it does not grow with what else the
machine has to do, so it can be compared."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path

_IS_TOLD = Path("/proc/self/schedstat").exists()


def processor_time(pids: Iterable[int]) -> float:
    """Seconds that these processes have used so far, with all of their threads; those that are gone count as none.
    Where the system does not tell it is the time on the wall."""
    if not _IS_TOLD:
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
