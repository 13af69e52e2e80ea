"""Status directories that killed foremen have left behind: the next foreman on this machine removes them.

A board has a name only until its worker has opened it, so there are few. Whoever made one holds a lock on it for as
long as it lives, in whatever container: a board that can be locked has no owner.
"""

from __future__ import annotations

import fcntl
import os
import re
import tempfile
import time
from contextlib import suppress
from pathlib import Path

PREFIX = "packhorse-"
BOARD = "board"
_MADE = re.compile(re.escape(PREFIX) + "[a-z0-9_]{8}")
"""What `mkdtemp` calls them: other directories may be empty for a reason."""
_NEW = 60.0
"""Seconds within which its owner may not have locked a new one yet."""


def make_directory() -> Path:
    """A directory for the status of one worker."""
    return Path(tempfile.mkdtemp(prefix=PREFIX))


def remove_leftovers() -> int:
    """Remove the status directories whose owner is dead; answers how many there were."""
    number = 0
    for directory in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with suppress(OSError):  # another foreman is faster, or it is somebody else's
            number += _remove(directory)
    return number


def _remove(directory: Path) -> bool:
    status = directory.lstat()
    if status.st_uid != os.geteuid() or time.time() - status.st_mtime < _NEW or directory.is_symlink():
        return False
    board = directory / BOARD
    try:
        descriptor = os.open(board, os.O_RDWR | os.O_NOFOLLOW)
    except FileNotFoundError:  # a board is made, and removed, together with its directory: the owner died in between
        if _MADE.fullmatch(directory.name) is None:
            return False
        directory.rmdir()  # which fails if anything is in it
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        board.unlink()
        directory.rmdir()
    finally:
        os.close(descriptor)
    return True
