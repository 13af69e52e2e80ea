"""How much memory a process holds: for the report of a worker, and for the limits of isolated tasks."""

from __future__ import annotations

import os
from pathlib import Path


def can_be_known() -> bool:
    """Does this system tell how much memory a process holds?"""
    return resident_bytes() > 0


def resident_bytes(pid: int | str = "self") -> int:
    """How much memory a process holds; 0 where that cannot be known."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text("ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError, ValueError):
        return 0
