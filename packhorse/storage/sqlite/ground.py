"""What a SQLite file stands on: the file system below it and the library that writes it. `health` asks, and tells an
operator in a sentence when one of them cannot be relied upon.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

_MOUNTS = Path("/proc/self/mountinfo")

# Locks and shared memory, by which several processes may write one file, do not reach other machines there.
_REMOTE = frozenset({"9p", "afs", "beegfs", "ceph", "cifs", "coda", "glusterfs", "gpfs", "lustre", "ncpfs", "smbfs"})
_REMOTE_BEGINNINGS = ("nfs", "smb", "fuse.")
_LOCAL_FUSE = frozenset({"fuse.fuseblk", "fuse.ext2fs", "fuse.ntfs-3g", "fuse.fuse-overlayfs", "fuse.lxcfs"})

_FIRST_WITH_WAL = (3, 7, 0)
_WAL_RESET_MENDED = (3, 51, 3)


def doubts(path: Path) -> list[str]:
    """What is wrong with the ground, in sentences; none: nothing is known to be."""
    return [doubt for doubt in (about_file_system(path),) if doubt is not None]


def notes() -> list[str]:
    """What is good to know of the ground and can wait, in sentences."""
    return [note for note in (about_library(),) if note is not None]


def about_file_system(path: Path, mounts: Path = _MOUNTS) -> str | None:
    """Whether this file lies on another machine."""
    kind = _file_system(path.absolute(), mounts)
    is_remote = kind in _REMOTE or (kind.startswith(_REMOTE_BEGINNINGS) and kind not in _LOCAL_FUSE)
    if not is_remote:
        return None
    return (
        f"{path} is on a network file system ({kind}), where SQLite's locks cannot be trusted and jobs may be lost:"
        " move it to a local disk, or use another storage"
    )


def about_library(version: tuple[int, ...] = sqlite3.sqlite_version_info) -> str | None:
    """Whether this SQLite has the fault by which a checkpoint that meets a commit can, very rarely, damage a file in
    WAL mode."""
    if not _FIRST_WITH_WAL <= version < _WAL_RESET_MENDED:
        return None
    return (
        f"SQLite {'.'.join(map(str, version))} has a fault that can, very rarely, damage a file which several processes"
        " write (the WAL-reset bug): keep backups until you have 3.51.3 or newer, which comes with a newer build of"
        " Python, or where Python uses the system's, with a newer libsqlite3"
    )


def _file_system(path: Path, mounts: Path) -> str:
    """The kind of file system below a path; empty where the system does not tell."""
    try:
        lines = mounts.read_text(errors="replace").splitlines()
    except OSError:
        return ""
    depth, found = 0, ""
    for line in lines:
        place, _, rest = line.partition(" - ")
        mounted = Path(place.split()[4].replace("\\040", " "))  # that is how a blank is written
        if path.is_relative_to(mounted) and len(mounted.parts) >= depth:  # a later mount hides one at the same place
            depth, found = len(mounted.parts), rest.split()[0]
    return found
