"""Is the foreman on this machine, or in this container, alive? A small file answers that, without the storage.

A foreman writes it every two seconds from its main loop and holds a lock on it. So a file without a lock belongs to a
foreman that is gone, even if its pid means another process in another container. `packhorse check --local` reads it.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec

EVERY = 2.0
_PREFIX = "packhorse-foreman-"
_NEW = 60.0  # seconds within which the owner of a new file may not have locked it yet


class ForemanStatus(msgspec.Struct):
    """The status that a foreman writes. Times are seconds; `at` is from the monotonic clock."""

    pid: int
    at: float
    limit: float  # seconds without a tick after which the loop is stuck
    storage_silent_for: float | None = None  # seconds since the last stored heartbeat; None: there was none

    def age(self) -> float:
        """Seconds since it was written."""
        return max(0.0, time.monotonic() - self.at)

    @property
    def is_stuck(self) -> bool:
        return self.age() > self.limit


class StatusFile:
    """The file of one foreman. Failing to write it is no error: no job depends on it."""

    def __init__(self, limit: float) -> None:
        self._limit = limit
        self._path = _directory() / f"{_PREFIX}{os.getuid()}-{os.getpid()}"
        self._file: int | None = None
        self._next_at = 0.0

    def begin(self) -> None:
        with suppress(OSError):
            self._path.unlink(missing_ok=True)  # from an earlier process with this pid
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._file, fcntl.LOCK_EX)  # a reader holds its lock only for a moment
        _remove_leftovers()

    def tick(self, now: float, storage_silent_for: float | None) -> None:
        """Write the status: the main loop is running."""
        if self._file is None or now < self._next_at:
            return
        self._next_at = now + EVERY
        text = msgspec.json.encode(ForemanStatus(os.getpid(), now, self._limit, storage_silent_for))
        with suppress(OSError):
            os.pwrite(self._file, text.ljust(256), 0)  # a fixed length, so a reader never sees parts of two

    def end(self) -> None:
        if self._file is not None:
            with suppress(OSError):
                self._path.unlink(missing_ok=True)
            os.close(self._file)
            self._file = None


def local_foremen() -> list[ForemanStatus]:
    """Return the status of every foreman of this user on this machine, or in this container."""
    return list(_signs())


def _signs() -> Iterator[ForemanStatus]:
    for path in sorted(_directory().glob(f"{_PREFIX}{os.getuid()}-*")):
        with suppress(OSError, msgspec.DecodeError):
            file = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                if os.fstat(file).st_uid == os.getuid() and _is_held(file):
                    yield msgspec.json.decode(os.pread(file, 256, 0), type=ForemanStatus)
            finally:
                os.close(file)


def _remove_leftovers() -> None:
    """Remove the files of foremen that were killed."""
    for path in _directory().glob(f"{_PREFIX}{os.getuid()}-*"):
        with suppress(OSError):
            file = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                status = os.fstat(file)
                if status.st_uid == os.getuid() and time.time() - status.st_mtime > _NEW and not _is_held(file):
                    path.unlink()
            finally:
                os.close(file)


def _is_held(file: int) -> bool:
    """Is its foreman alive? The test takes a shared lock, so other readers do not interfere."""
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False


def _directory() -> Path:
    return Path(tempfile.gettempdir())
