"""Parents and children among processes: ending with one's parent, adopting orphans, finding one's children.

For foremen, workers and their fork server. What only Linux can do is left out elsewhere: there nobody hears at once
of a
parent's end, and no orphans come.
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
    """Get this signal when the parent ends, however that happens; if it has ended already, end now."""
    hear_of_parents_end(number)
    if os.getppid() != parent:
        os._exit(0)


def hear_of_parents_end(number: int) -> None:
    """Get this signal when the parent ends."""
    _prctl(_PR_SET_PDEATHSIG, number)


def adopt_orphans() -> None:
    """From here on, what this process's descendants leave behind when they end becomes its own child, even if it leads
    a session of its own. Children of this process do not inherit that."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def own_children() -> set[int]:
    """The children of this process, also those that have ended and wait to be reaped. For a process without threads:
    those of other threads are not among them."""
    with suppress(OSError):
        told = (_PROC / "self/task" / str(threading.get_native_id()) / "children").read_text()
        return {int(pid) for pid in told.split()}
    me = os.getpid()
    with suppress(OSError):
        pids = [int(path.name) for path in _PROC.iterdir() if path.name.isdigit()]
        return {pid for pid in pids if _parent_of(pid) == me}
    return set()


def _parent_of(pid: int) -> int | None:
    try:
        return int((_PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()[1])
    except (OSError, IndexError):
        return None


def _prctl(option: int, value: int) -> None:
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)
