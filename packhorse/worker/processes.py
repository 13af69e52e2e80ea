"""Processes: exit with the parent, adopt orphans, find the children, measure the memory.

For foremen, workers and their fork server. Some of it works on Linux only. Elsewhere a process does not notice
immediately that its parent has exited, adopts no orphans, and cannot measure its memory.
"""

from __future__ import annotations

import ctypes
import os
import signal
import threading
from contextlib import suppress
from pathlib import Path

_PROC = Path("/proc")
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def die_with_parent(parent: int, number: int = signal.SIGKILL) -> None:
    """Get this signal when the parent exits, for whatever reason; if it has exited already, exit now."""
    signal_on_parents_exit(number)
    if os.getppid() != parent:
        os._exit(0)


def signal_on_parents_exit(number: int) -> None:
    """Get this signal when the parent exits."""
    _prctl(_PR_SET_PDEATHSIG, number)


def adopt_orphans() -> None:
    """From now on the processes that this one's descendants leave behind become its children, even those that lead a
    session of their own. Children of this process do not inherit that."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def own_children() -> set[int]:
    """The children of this process, also those that have exited and wait to be reaped. Children that other threads have
    started are missing."""
    with suppress(OSError):
        pids = (_PROC / "self/task" / str(threading.get_native_id()) / "children").read_text()
        return {int(pid) for pid in pids.split()}
    me = os.getpid()
    with suppress(OSError):
        everyone = [int(path.name) for path in _PROC.iterdir() if path.name.isdigit()]
        return {pid for pid in everyone if _parent_of(pid) == me}
    return set()


def can_measure_memory() -> bool:
    """Does this system say how much memory a process holds?"""
    return resident_bytes() > 0


def resident_bytes(pid: int | str = "self") -> int:
    """How much memory a process holds; 0 if that is unknown."""
    try:
        return int((_PROC / str(pid) / "statm").read_text("ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError, ValueError):
        return 0


def _parent_of(pid: int) -> int | None:
    try:
        return int((_PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()[1])
    except (OSError, IndexError):
        return None


def _prctl(option: int, value: int) -> None:
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)
