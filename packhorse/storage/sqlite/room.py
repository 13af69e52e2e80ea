"""Room for the log: SQLite's write-ahead log gets its space on disk ahead of the commits that fill it.

A commit that makes the log longer has the file system write down the new length as well, and takes twice as long as one
that finds its place there. Called by the database with each commit, under the file's write lock. A hint only: where it
cannot be had, the log grows with each commit.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

STEP = 1 << 20
"""Bytes. A log whose length is a multiple of this has been given room; SQLite itself never leaves it at one."""
MOST = 64 * STEP
"""The log is folded back into the file before it is longer, and cut to this length after."""


def make_room(log: Path) -> None:
    """Lengthen a log that has outgrown its room."""
    with suppress(OSError):  # the disk is full: that is for the commit to find out
        length = log.stat().st_size
        if length % STEP and length < MOST:
            _append_zeros(log, STEP - length % STEP)


def _append_zeros(log: Path, number: int) -> None:
    """Nobody takes zeros for a commit. Space that was only set aside would be as slow as none."""
    descriptor = os.open(log, os.O_WRONLY | os.O_APPEND)
    try:
        os.write(descriptor, bytes(number))
    finally:
        os.close(descriptor)
