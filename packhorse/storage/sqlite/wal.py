"""The write-ahead log and its index, which SQLite keeps beside a database file: do they still belong to that file?
And disk space for the log, allocated ahead of the commits that fill it.

SQLite finds both files by name. Moving a backup over an open file leaves the former file's log beside it, and a program
that opened that pair would mix pages of both. The database checks here before it opens a file.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from packhorse.core.errors import StorageUnavailable

FileId = tuple[int, int]
"""Identifies a file: its device and inode. The inode of a removed file may be used again."""

STEP = 1 << 20
"""Bytes. The log grows to a multiple of this when space is allocated; SQLite itself never leaves it at one."""
MOST = 64 * STEP
"""A checkpoint runs before the log is longer than this, and truncates it to this length."""


class WalFiles:
    """The log and index of the file that was opened last."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: FileId | None = None
        self._ours: frozenset[FileId] = frozenset()
        self._held_log: int | None = None

    def forget(self) -> None:
        """The file will not be opened again."""
        self._file = None
        self._ours = frozenset()
        self._release_log()

    __del__ = forget

    # --- identity -------------------------------------------------------------------------------------------------

    def note_file(self) -> None:
        """Called just before the file is opened, so that a replacement in the meantime is noticed."""
        self._file = _id_of(self._path)

    def note_wal(self) -> None:
        """The file is open, so the log and the index exist. While it is open no other file can have their inodes."""
        self._ours = frozenset(file for path in self._places() if (file := _id_of(path)) is not None)
        self._release_log()

    @contextmanager
    def closing(self, is_for_good: bool) -> Iterator[None]:
        """While the connections are closed. Another process may keep the log while we close for a moment, or the log
        may lie beside another file already. We must recognise it later, so an open descriptor keeps its inode from
        being reused. The index is not opened: closing it would release SQLite's locks on it."""
        log, _ = self._places()
        if self._held_log is None and (self.is_file_lost() or not is_for_good) and _id_of(log) in self._ours:
            with suppress(OSError):  # too many open files, for example
                self._held_log = os.open(log, os.O_RDONLY | os.O_CLOEXEC)
        yield
        found = _id_of(log)
        if found is not None and found == self._held() and (self.is_file_lost() or not is_for_good):
            self._ours = frozenset([found])
        else:  # we were the last to use it and SQLite has removed it; or it is not needed again
            self._ours = frozenset()
            self._release_log()

    def _held(self) -> FileId | None:
        if self._held_log is None:
            return None
        held = os.fstat(self._held_log)
        return held.st_dev, held.st_ino

    def _release_log(self) -> None:
        if self._held_log is not None:
            os.close(self._held_log)
            self._held_log = None

    # --- checks ---------------------------------------------------------------------------------------------------

    def is_file_lost(self) -> bool:
        """Whether the file was removed or replaced."""
        return _id_of(self._path) != self._file

    def refuse_mismatch(self) -> None:
        """Raise StorageUnavailable if another file, or none, lies beside our log and index."""
        if not self._ours or not self.is_file_lost():
            return
        log, index = self._places()
        if self._ours.isdisjoint((_id_of(log), _id_of(index))):
            return
        done = "removed" if _id_of(self._path) is None else "replaced by another"
        raise StorageUnavailable(
            f"{self._path} was {done} while it was in use",
            why=f"{log.name} and {index.name} are still those of the former file, and would damage the next",
            hint=f"stop what uses it, remove {log} and {index}, and start again; next time: packhorse restore FILE",
        )

    def _places(self) -> tuple[Path, Path]:
        return wal_paths(self._path)


def refuse_orphans(path: Path) -> None:
    """Raise StorageUnavailable if a log or an index lies there without its file, which was removed or moved. Programs
    may still use it; SQLite would apply the log to the file that it creates, or delete what is in the log. An empty
    log is harmless: a program leaves one if it was the last and only read, as a backup does."""
    log, _ = places = wal_paths(path)
    left = [beside for beside in places if beside.exists()]
    if not left or (log in left and _is_empty(log)) or path.exists():  # the file last: it is created before its log
        return
    names, whole = (" and ".join(map(str, each)) for each in ([beside.name for beside in left], left))
    raise StorageUnavailable(
        f"{path} was removed, and what SQLite keeps beside it was not",
        why=f"{names} would damage the next file; programs may still use the former",
        hint=f"stop what uses it, remove {whole}, and start again, or put a backup there: packhorse restore FILE",
        may_pass=False,
    )


def wal_paths(path: Path) -> tuple[Path, Path]:
    """The paths of the log and its index: beside the file itself, even if a link to it was opened."""
    real = os.path.realpath(path)
    return Path(real + "-wal"), Path(real + "-shm")


def allocate(log: Path) -> None:
    """Lengthen a log that has filled its space. Called with each commit, under the file's write lock.

    A commit that makes the log longer also writes the new length to the file system, and takes twice as long as one
    that overwrites. If the disk is full, the log grows with each commit."""
    with suppress(OSError):  # the commit reports a full disk
        length = log.stat().st_size
        if length % STEP and length < MOST:
            _append_zeros(log, STEP - length % STEP)


def _append_zeros(log: Path, number: int) -> None:
    """SQLite does not take zeros for a commit. Space that was only reserved would be as slow as none."""
    descriptor = os.open(log, os.O_WRONLY | os.O_APPEND)
    try:
        os.write(descriptor, bytes(number))
    finally:
        os.close(descriptor)


def _is_empty(path: Path) -> bool:
    try:
        return path.stat().st_size == 0
    except OSError:
        return False


def _id_of(path: Path) -> FileId | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino
