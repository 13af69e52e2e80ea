"""The log and its index, which SQLite keeps beside a file: do they still belong to the file that is there?

SQLite finds these two by name. Whoever moves a backup over a file that is open leaves the former file's beside it, and
whoever opened that pair would have pages of both in it. The database asks here before it opens one.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from packhorse.core.errors import StorageUnavailable

File = tuple[int, int]
"""What tells a file from all others: its device, and its number there. Who is gone may leave the number to another."""


class Companions:
    """Of the file that was opened last."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: File | None = None
        self._companions: frozenset[File] = frozenset()
        self._held_log: int | None = None

    def forget(self) -> None:
        """That file is left for good."""
        self._file = None
        self._companions = frozenset()
        self._release_log()

    __del__ = forget

    # --- which they are -------------------------------------------------------------------------------------------

    def expect_file(self) -> None:
        """Just before opening: if another comes meanwhile, that is noticed."""
        self._file = _file_at(self._path)

    def meet(self) -> None:
        """The file is open, and its companions are there. While it is open nobody else can have their numbers."""
        self._companions = frozenset(file for path in self._places() if (file := _file_at(path)) is not None)
        self._release_log()

    @contextmanager
    def closing(self, is_for_good: bool) -> Iterator[None]:
        """While our connections are closed. Others may keep the log when we close but for a moment, or it lies with
        another file already: then it has to be known again, and our hand on it keeps its number from another's log. The
        index is left alone, because letting go of it would undo the locks that SQLite has on it."""
        log, _ = self._places()
        if self._held_log is None and (self.is_file_lost() or not is_for_good) and _file_at(log) in self._companions:
            with suppress(OSError):  # too many open files, say
                self._held_log = os.open(log, os.O_RDONLY | os.O_CLOEXEC)
        yield
        found = _file_at(log)
        if found is not None and found == self._held() and (self.is_file_lost() or not is_for_good):
            self._companions = frozenset([found])
        else:  # nobody else had it, and SQLite has removed it; or we do not mean to come back
            self._companions = frozenset()
            self._release_log()

    def _held(self) -> File | None:
        if self._held_log is None:
            return None
        held = os.fstat(self._held_log)
        return held.st_dev, held.st_ino

    def _release_log(self) -> None:
        if self._held_log is not None:
            os.close(self._held_log)
            self._held_log = None

    # --- whether they are with their file -------------------------------------------------------------------------

    def is_file_lost(self) -> bool:
        """Is something else, or nothing, where the file was?"""
        return _file_at(self._path) != self._file

    def refuse_strangers(self) -> None:
        """Raise if another file, or none, lies with the companions of ours."""
        if not self._companions or not self.is_file_lost():
            return
        log, index = self._places()
        if self._companions.isdisjoint((_file_at(log), _file_at(index))):
            return
        done = "removed" if _file_at(self._path) is None else "replaced by another"
        raise StorageUnavailable(
            f"{self._path} was {done} while it was in use",
            why=f"{log.name} and {index.name} are still those of the former file, and would damage the next",
            hint=f"stop what uses it, remove {log} and {index}, and start again; next time: packhorse restore FILE",
        )

    def _places(self) -> tuple[Path, Path]:
        return places_beside(self._path)


def refuse_orphans(path: Path) -> None:
    """Raise if there is no file, but a log or an index of one: somebody removed or moved it without them. Programs may
    still use it; SQLite would take them for those of the file that it makes, or throw away what stands in the log. An
    empty log is what a program leaves that was the last and only read, as a backup does: it harms nobody."""
    log, _ = places = places_beside(path)
    left = [beside for beside in places if beside.exists()]
    if not left or (log in left and _is_empty(log)) or path.exists():  # it last: it is made before its log
        return
    names, whole = (" and ".join(map(str, each)) for each in ([beside.name for beside in left], left))
    raise StorageUnavailable(
        f"{path} was removed, and what SQLite keeps beside it was not",
        why=f"{names} would damage the next file; programs may still use the former",
        hint=f"stop what uses it, remove {whole}, and start again, or put a backup there: packhorse restore FILE",
        may_pass=False,
    )


def places_beside(path: Path) -> tuple[Path, Path]:
    """Where SQLite keeps the log and its index: beside the file itself, also if it was opened by a link to it."""
    real = os.path.realpath(path)
    return Path(real + "-wal"), Path(real + "-shm")


def _is_empty(path: Path) -> bool:
    try:
        return path.stat().st_size == 0
    except OSError:
        return False


def _file_at(path: Path) -> File | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino
