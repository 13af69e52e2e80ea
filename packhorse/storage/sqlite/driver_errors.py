"""SQLite's errors in our own words, with what to do about them."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from packhorse.core.errors import NotADatabase, StorageError, StorageFull, StorageReadOnly, StorageUnavailable


def translate(error: sqlite3.Error, path: Path) -> StorageError:
    """SQLite's error as one of ours, with what to do about it."""
    code = getattr(error, "sqlite_errorcode", None)
    primary = code & 0xFF if code is not None else None
    text = str(error)
    if primary == sqlite3.SQLITE_NOTADB:
        return NotADatabase(f"{path} is not a SQLite database", hint="name another file, or move this one away")
    if primary == sqlite3.SQLITE_CORRUPT:
        return StorageError(f"{path} is damaged", why=text, hint="restore a backup, or try: sqlite3 FILE .recover")
    if primary == sqlite3.SQLITE_FULL:
        return StorageFull(f"no room for {path}", why=text, hint="free some disk space; nothing was half-written")
    if primary == sqlite3.SQLITE_READONLY or primary == sqlite3.SQLITE_PERM:
        hint = "check the permissions of file and directory"
        return StorageReadOnly(f"cannot write to {path}", why=text, hint=hint, may_pass=False)
    if primary in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return StorageUnavailable(
            f"{path} is locked by another program",
            why=text,
            hint="find who holds it: an open sqlite3 shell, a backup, a transaction of this very program?",
        )
    if primary == sqlite3.SQLITE_CANTOPEN:
        hint = "check the path and its permissions"
        return StorageUnavailable(f"cannot open {path}", why=text, hint=hint, may_pass=False)
    if primary in (sqlite3.SQLITE_CONSTRAINT, sqlite3.SQLITE_MISMATCH, sqlite3.SQLITE_TOOBIG):
        return StorageError(f"{path} refused a value", why=text, hint="nothing was written; check what was passed in")
    if primary == sqlite3.SQLITE_IOERR:
        return StorageUnavailable(
            f"{path} cannot be read or written",
            why=text,
            hint="was it removed or replaced while programs use it? stop them all, then try again\n"
            "else look after the disk: the system's log may say more",
        )
    return StorageUnavailable(f"{path} does not answer as it should", why=text)
