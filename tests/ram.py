"""A disk in memory, where this machine has one: for files of tests that nobody will miss, where waiting until a real
disk has written would prove nothing."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

_RAM = Path("/dev/shm")


def new_directory(purpose: str, room: int = 2 << 30) -> Path:
    """In memory if so many bytes are free there; else where temporary files are."""
    has_room = os.access(_RAM, os.W_OK) and shutil.disk_usage(_RAM).free > room
    return Path(tempfile.mkdtemp(prefix=f"packhorse-{purpose}-", dir=_RAM if has_room else None))
