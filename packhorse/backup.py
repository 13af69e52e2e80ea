"""A copy of a SQLite storage, made while others use it: for the command and the page. Servers have their own ways."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from urllib.parse import quote

from packhorse.clock import to_datetime
from packhorse.errors import BadValue
from packhorse.storage import Storage

_OTHERS = "PostgreSQL has pg_dump, Redis BGSAVE; packhorse copy-store moves it to another storage"
BESIDE = ("", "-wal", "-shm", "-journal")
"""How the files of one database end."""


def file_of(storage: Storage) -> Path:
    """The file that can be copied; BadValue if this storage is none."""
    source = getattr(storage, "path", None)
    if not isinstance(source, Path):
        raise BadValue("only a SQLite storage is backed up so", hint=_OTHERS)
    return source


def beside(source: Path, now: int) -> Path:
    """Where a copy goes of which nobody has said where: beside the file, with its time in the name."""
    return source.with_name(f"{source.name}.{to_datetime(now):%Y%m%d-%H%M%S}.bak")


def back_up(source: Path, file: Path) -> int:
    """Write the copy; its size. Under another name first, so that half a copy is never taken for a whole. All pages in
    one step: a copy in parts would begin anew with every write of somebody else."""
    draft = file.with_name(f"{file.name}.{os.getpid()}.part")
    os.close(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    try:
        reader = sqlite3.connect(f"file:{quote(str(source))}?mode=ro", uri=True)
        writer = sqlite3.connect(draft)
        try:
            reader.backup(writer)
            (told,) = writer.execute("PRAGMA quick_check").fetchone()
        finally:
            reader.close()
            writer.close()
        if told != "ok":
            error = sqlite3.DatabaseError(told)
            error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
            raise error
        draft.rename(file)
    finally:
        for end in BESIDE:
            draft.with_name(draft.name + end).unlink(missing_ok=True)
    return file.stat().st_size
