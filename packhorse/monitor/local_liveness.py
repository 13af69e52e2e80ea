"""Is the foreman on this machine, or in this container, alive? Answered by a small file, without the storage.

A foreman writes it every two seconds from its main loop and holds a lock on it, so a file that nobody has locked is of
one that is gone, whatever its process number means in another container. `packhorse check --local` reads it.
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
    """What a foreman says of itself. Times are seconds; `at` is by the machine's clock that nobody sets."""

    pid: int
    at: float
    limit: float  # seconds after which a loop that has not gone round is stuck
    storage_silent_for: float | None = None  # since the storage took a heartbeat; None: it has taken none yet

    def age(self) -> float:
        """Seconds since it was written."""
        return max(0.0, time.monotonic() - self.at)

    @property
    def is_stuck(self) -> bool:
        return self.age() > self.limit


class StatusFile:
    """The file of one foreman. That it cannot be written costs nobody a job, so it is no error."""

    def __init__(self, limit: float) -> None:
        self._limit = limit
        self._path = _directory() / f"{_PREFIX}{os.getuid()}-{os.getpid()}"
        self._file: int | None = None
        self._next_at = 0.0

    def begin(self) -> None:
        with suppress(OSError):
            self._path.unlink(missing_ok=True)  # of a former process with this number
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._file, fcntl.LOCK_EX)  # who looks holds another for a moment only
        _remove_leftovers()

    def tick(self, now: float, storage_silent_for: float | None) -> None:
        """The loop goes round."""
        if self._file is None or now < self._next_at:
            return
        self._next_at = now + EVERY
        text = msgspec.json.encode(ForemanStatus(os.getpid(), now, self._limit, storage_silent_for))
        with suppress(OSError):
            os.pwrite(self._file, text.ljust(256), 0)  # one length, so that nobody reads half of two

    def end(self) -> None:
        if self._file is not None:
            with suppress(OSError):
                self._path.unlink(missing_ok=True)
            os.close(self._file)
            self._file = None


def local_foremen() -> list[ForemanStatus]:
    """Of every foreman of this user that lives on this machine, or in this container."""
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
    """Files of foremen that were killed."""
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
    """Does its foreman live? Looked at with a lock that others who look may have, too."""
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False


def _directory() -> Path:
    return Path(tempfile.gettempdir())
