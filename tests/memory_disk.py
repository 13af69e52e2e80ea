"""Directories on a disk in memory, if there is one: for files of tests that prove nothing by reaching a real disk."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

_RAM = Path("/dev/shm")


def new_directory(purpose: str, room: int = 2 << 30) -> Path:
    """A directory in memory if that much space is free there, else among the temporary files."""
    has_room = os.access(_RAM, os.W_OK) and shutil.disk_usage(_RAM).free > room
    return Path(tempfile.mkdtemp(prefix=f"packhorse-{purpose}-", dir=_RAM if has_room else None))
