"""The run log of a trial: every job appends 17 bytes to one file when it runs.

Jobs write it in the environments of their contenders, so this module uses only the standard library; the harness reads
it. It counts runs in the same way for every contender, without asking a storage.
"""

from __future__ import annotations

import os
import struct
import time
from pathlib import Path
from typing import NamedTuple

VARIABLE = "BENCH_RUN_LOG"
"""The environment variable that names the file."""

_ENTRY = struct.Struct("<dd?")
_file: int | None = None


class Entry(NamedTuple):
    """A job started or ended."""

    at: float  # `time.monotonic()`, which all processes of a machine share
    number: float  # the argument of the job
    has_ended: bool


def note(number: float, *, has_ended: bool = True) -> None:
    """Append an entry. Small appends of several processes never mix."""
    global _file
    if _file is None:
        _file = os.open(os.environ[VARIABLE], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(_file, _ENTRY.pack(time.monotonic(), number, has_ended))


class RunLog:
    """Reads the file for the harness."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __len__(self) -> int:
        try:
            return self.path.stat().st_size // _ENTRY.size
        except FileNotFoundError:  # nothing has run
            return 0

    def entries(self, since: int = 0) -> list[Entry]:
        """All entries after the first `since`, ordered by time."""
        if not len(self):
            return []
        content = self.path.read_bytes()[since * _ENTRY.size : len(self) * _ENTRY.size]
        return sorted(map(Entry._make, _ENTRY.iter_unpack(content)))
