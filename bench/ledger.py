"""The ledger of a trial: every job that runs notes itself in one file, in 17 bytes, whoever runs it.

Jobs write it in their own processes and environments, so there is nothing here but the standard library; the harness
reads it. It counts what has run, the same way for everybody, and asks no storage.
"""

from __future__ import annotations

import os
import struct
import time
from pathlib import Path
from typing import NamedTuple

VARIABLE = "BENCH_LEDGER"
"""The environment variable that names the file."""

_ENTRY = struct.Struct("<dd?")
_file: int | None = None


class Entry(NamedTuple):
    """One note: a job began, or ended."""

    at: float  # `time.monotonic()`, which all processes of a machine share
    number: float  # the job's argument
    has_ended: bool


def note(number: float, *, has_ended: bool = True) -> None:
    """Write an entry. One small append is never mixed with another's."""
    global _file
    if _file is None:
        _file = os.open(os.environ[VARIABLE], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(_file, _ENTRY.pack(time.monotonic(), number, has_ended))


class Ledger:
    """The harness's view of the file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __len__(self) -> int:
        try:
            return self.path.stat().st_size // _ENTRY.size
        except FileNotFoundError:  # nothing has run
            return 0

    def entries(self, since: int = 0) -> list[Entry]:
        """All entries behind the first `since`, by their time."""
        if not len(self):
            return []
        content = self.path.read_bytes()[since * _ENTRY.size : len(self) * _ENTRY.size]
        return sorted(map(Entry._make, _ENTRY.iter_unpack(content)))
