"""Back up a SQLite storage while others use it, and give back free space: for the commands and the web page. Servers
have their own tools."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

from packhorse.core.clock import to_datetime
from packhorse.core.errors import BadValue
from packhorse.storage import Storage

_OTHERS = "PostgreSQL has pg_dump, Redis BGSAVE; packhorse copy-store moves it to another storage"
NO_NEED = "PostgreSQL and MariaDB reuse space by themselves, Redis gives it back"
BESIDE = ("", "-wal", "-shm", "-journal")
"""The endings of the files of one database."""


def file_of(storage: Storage, done: str = "backed up", hint: str = _OTHERS) -> Path:
    """The file of this storage; `BadValue` if it has none."""
    source = getattr(storage, "path", None)
    if not isinstance(source, Path):
        raise BadValue(f"only a SQLite storage is {done} so", hint=hint)
    return source


def beside(source: Path, now: int) -> Path:
    """The default file for a copy: beside the source, with the time in its name."""
    return source.with_name(f"{source.name}.{to_datetime(now):%Y%m%d-%H%M%S}.bak")


def back_up(source: Path, file: Path) -> int:
    """Write the copy and return its size. First under another name, so that half a copy never looks complete. All pages
    in one step: a copy in parts starts again whenever another process writes."""
    draft = file.with_name(f"{file.name}.{os.getpid()}.part")
    os.close(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    try:
        reader = sqlite3.connect(f"file:{quote(str(source))}?mode=ro", uri=True)
        writer = sqlite3.connect(draft)
        try:
            reader.backup(writer)
            (result,) = writer.execute("PRAGMA quick_check").fetchone()
        finally:
            reader.close()
            writer.close()
        if result != "ok":
            error = sqlite3.DatabaseError(result)
            error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
            raise error
        draft.rename(file)
    finally:
        for end in BESIDE:
            draft.with_name(draft.name + end).unlink(missing_ok=True)
    return file.stat().st_size


def compact(path: Path, patience: float) -> tuple[int, int]:
    """Rewrite the file without its free space. Return the size before and after, with the files beside it. Other
    writers wait; this waits up to `patience` seconds for those that write now. Raises sqlite3.Error."""
    before = size_of(path)
    with closing(sqlite3.connect(path, timeout=patience, isolation_level=None)) as connection:
        connection.execute("VACUUM")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return before, size_of(path)


def size_of(path: Path) -> int:
    """The size of the file and those beside it."""
    files = (path.with_name(path.name + end) for end in ("", "-wal"))
    return sum(file.stat().st_size for file in files if file.exists())
