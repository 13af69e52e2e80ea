"""The file of a SQLite storage and the file system below it: creates the file, opens it, notices that it was removed or
replaced, and reports a file system or a SQLite library that cannot be trusted.

The database takes all its connections from here. SQLite finds a file by name only when it opens it, and would continue
to write into one that was removed; so the database asks `is_lost` before it uses an open connection.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

from packhorse.core.errors import StorageUnavailable
from packhorse.storage.sqlite import wal
from packhorse.storage.sqlite.wal import WalFiles, refuse_orphans

_MOUNTS = Path("/proc/self/mountinfo")

# File locks and shared memory, which let several processes write one file, do not reach other machines there.
_REMOTE = frozenset({"9p", "afs", "beegfs", "ceph", "cifs", "coda", "glusterfs", "gpfs", "lustre", "ncpfs", "smbfs"})
_REMOTE_PREFIXES = ("nfs", "smb", "fuse.")
_LOCAL_FUSE = frozenset({"fuse.fuseblk", "fuse.ext2fs", "fuse.ntfs-3g", "fuse.fuse-overlayfs", "fuse.lxcfs"})

_FIRST_WITH_WAL = (3, 7, 0)
_WAL_RESET_FIXED = (3, 51, 3)


class DatabaseFile:
    """The file at this path that was opened last."""

    def __init__(self, path: Path, synchronous: str, prepare: Callable[[sqlite3.Connection], None]) -> None:
        self.path = path
        self.log = path.with_name(path.name + "-wal")
        self._synchronous = synchronous
        self._prepare = prepare
        self._wal = WalFiles(path)

    # --- opening --------------------------------------------------------------------------------------------------

    def create(self) -> None:
        """Called just before the first connection: the file exists afterwards, though it may be empty."""
        self.refuse_mismatch()
        try:
            self._check_path()
        except OSError as error:
            hint = "check the path and its permissions"
            what = f"cannot open {self.path}"
            raise StorageUnavailable(what, why=error.strerror, hint=hint, may_pass=False) from error
        self._wal.note_file()

    def connect_writer(self) -> sqlite3.Connection:
        """Open the one connection that writes; creates the tables too. SQLite may be busy."""
        connection = self.connect()
        try:
            connection.execute("PRAGMA busy_timeout = 0")  # the database waits by itself
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute(f"PRAGMA synchronous = {self._synchronous}")
            # Foremen run checkpoints before the log is that long; see `Database.checkpoint`.
            connection.execute("PRAGMA wal_autocheckpoint = 16000")
            connection.execute(f"PRAGMA journal_size_limit = {wal.MOST}")
            # A batch of jobs that lie far apart changes more pages than the default cache of 2 MB holds.
            connection.execute("PRAGMA cache_size = -8000")
            self._prepare(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def connect(self) -> sqlite3.Connection:
        """Open another connection to the file that `create` found, and to no other."""
        connection = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False, cached_statements=256)
        if self.is_lost():  # SQLite has opened a file now, but opens its log only with the first statement
            connection.close()
            hint = "try again"
            raise StorageUnavailable(f"{self.path} was removed or replaced just now", hint=hint)
        return connection

    def note_wal(self) -> None:
        """The file is open, and its log exists."""
        self._wal.note_wal()

    def _check_path(self) -> None:
        if self.path.is_dir():
            hint = "name a file in it: sqlite:///jobs.db"
            raise StorageUnavailable(f"{self.path} is a directory", hint=hint, may_pass=False)
        if not self.path.parent.is_dir():
            what = f"cannot open {self.path}: there is no directory {self.path.parent}"
            raise StorageUnavailable(what, hint="make it first", may_pass=False)
        refuse_orphans(self.path)
        if not self.path.exists():
            # Jobs may carry addresses and names: only the owner may read a new file.
            try:
                os.close(os.open(self.path, os.O_CREAT | os.O_RDWR, 0o600))
            except OSError as error:
                hint = "check the permissions of the directory, or name a file in another one"
                what = f"cannot create {self.path}"
                raise StorageUnavailable(what, why=error.strerror, hint=hint, may_pass=False) from error

    # --- removed or replaced --------------------------------------------------------------------------------------

    def is_lost(self) -> bool:
        """Whether the file was removed or replaced."""
        return self._wal.is_file_lost()

    def refuse_mismatch(self) -> None:
        """Raise StorageUnavailable if the file there must not be opened, as the former file's log lies beside it."""
        self._wal.refuse_mismatch()

    def forget(self) -> None:
        """The file is lost and all connections to it are closed; the next one may be another file."""
        self._wal.forget()

    def closing(self, is_for_good: bool) -> AbstractContextManager[None]:
        """While the connections are closed, for good or for the moment of a fork."""
        return self._wal.closing(is_for_good)


# --- what `health` reports --------------------------------------------------------------------------------------------


def file_system_problem(path: Path, mounts: Path = _MOUNTS) -> str | None:
    """A sentence if this file is on a network file system, where SQLite's locks do not work."""
    kind = _file_system(path.absolute(), mounts)
    is_remote = kind in _REMOTE or (kind.startswith(_REMOTE_PREFIXES) and kind not in _LOCAL_FUSE)
    if not is_remote:
        return None
    return (
        f"{path} is on a network file system ({kind}), where SQLite's locks cannot be trusted and jobs may be lost:"
        " move it to a local disk, or use another storage"
    )


def library_note(version: tuple[int, ...] = sqlite3.sqlite_version_info) -> str | None:
    """A sentence if this SQLite has the bug by which a checkpoint during a commit can, very rarely, damage a file."""
    if not _FIRST_WITH_WAL <= version < _WAL_RESET_FIXED:
        return None
    return (
        f"SQLite {'.'.join(map(str, version))} has a fault that can, very rarely, damage a file which several processes"
        " write (the WAL-reset bug): keep backups until you have 3.51.3 or newer, which comes with a newer build of"
        " Python, or where Python uses the system's, with a newer libsqlite3"
    )


def _file_system(path: Path, mounts: Path) -> str:
    """The type of the file system that holds a path; empty if the system does not say."""
    try:
        lines = mounts.read_text(errors="replace").splitlines()
    except OSError:
        return ""
    depth, found = 0, ""
    for line in lines:
        place, _, rest = line.partition(" - ")
        mounted = Path(place.split()[4].replace("\\040", " "))  # an escaped space
        if path.is_relative_to(mounted) and len(mounted.parts) >= depth:  # a later mount hides one at the same place
            depth, found = len(mounted.parts), rest.split()[0]
    return found
