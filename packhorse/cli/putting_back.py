"""Putting a backup in the place of a SQLite storage, so that nothing is lost whenever it ends: called by `restore`.

The storage is copied aside, then overwritten in one transaction, under whose lock it is seen that nobody works and that
nobody wrote in between. Only a storage that is damaged is moved aside as it is.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

from packhorse.cli.failing import CommandError, ExitCode
from packhorse.core.clock import now
from packhorse.monitor.liveness import is_alive
from packhorse.monitor.text import count_text
from packhorse.storage.backup import BESIDE, back_up
from packhorse.storage.records import WorkerInfo

_PATIENCE = 30.0  # seconds until others have ended what they write
_TRIES = 5  # copies that somebody may outrun by writing
_PAGES = 256  # that are copied in one step


def put_back(file: Path, path: Path, lease: int) -> Path | None:
    """Copy a backup over the storage, which is kept under the name that is answered. It stays the same file, so that
    whoever only looks at it sees the new content; what is damaged is moved aside. Raises OSError, sqlite3.Error and
    CommandError; the storage is as it was then."""
    for _ in range(_TRIES):
        kept = _free_name(path)
        if not path.exists():
            return _swap(file, path, kept)
        with closing(_reader(path)) as onlooker:
            before = _kept_at(onlooker, path, kept)
            if before is not None and _copy_over(file, path, kept, onlooker, before, lease):
                return kept
        if before is None:
            return _swap(file, path, kept)
    hint = "stop what enqueues or steers jobs, then try again; nothing was changed"
    raise CommandError(f"others write to {path} all the time", ExitCode.REFUSED, hint=hint)


def _kept_at(onlooker: sqlite3.Connection, path: Path, kept: Path) -> int | None:
    """Copy the storage aside. The version of what was copied, or of what was before; None if it is damaged."""
    try:
        before = _version(onlooker)
        back_up(path, kept)
    except sqlite3.DatabaseError as error:
        if is_damage(error):
            return None
        raise  # a full disk, say: no reason to touch what is there
    return before


def _copy_over(file: Path, path: Path, kept: Path, onlooker: sqlite3.Connection, before: int, lease: int) -> bool:
    """Overwrite the storage, in one transaction. False: somebody wrote since it was kept, and nothing was changed."""

    def is_right() -> bool:
        check_nobody_works(onlooker, lease)
        return _version(onlooker) == before

    try:
        return _copied(file, path, is_right)
    finally:
        if _version(onlooker) == before:  # nothing was changed, and the copy is of no use
            kept.unlink()


def _copied(file: Path, path: Path, is_right: Callable[[], bool]) -> bool:
    is_asked = False

    def ask(status: int, left: int, total: int) -> None:
        nonlocal is_asked
        if status & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            raise sqlite3.OperationalError("it is locked by another program")  # it would be tried for ever
        if not is_asked and not is_right():  # from the first page on nobody else can write
            raise InterruptedError("it was written to")
        is_asked = True

    with closing(_reader(file)) as reader, closing(sqlite3.connect(path, timeout=_PATIENCE)) as writer:
        (total,) = reader.execute("PRAGMA page_count").fetchone()
        try:
            reader.backup(writer, pages=max(1, min(_PAGES, total // 2)), progress=ask)
        except InterruptedError:
            return False
    return True


def _swap(file: Path, path: Path, kept: Path) -> Path | None:
    """Put a copy where nothing is, or something damaged, which is moved aside. The copy is whole before anything is
    moved. A log that has lost its file goes along: it would be taken for the log of the new one."""
    fresh, was_there = path.with_name(f"{path.name}.{os.getpid()}.new"), path.exists()
    back_up(file, fresh)
    try:
        for end in BESIDE:
            if (beside := path.with_name(path.name + end)).exists():
                beside.rename(kept.with_name(kept.name + end))
        fresh.rename(path)
    finally:
        fresh.unlink(missing_ok=True)
    return kept if was_there else None


# --- what is there ----------------------------------------------------------------------------------------------------


def is_damage(error: sqlite3.Error) -> bool:
    """Is the file itself broken? A full disk, a lock or a missing permission is another matter."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def is_storage(file: Path) -> bool:
    """Has this file our tables?"""
    try:
        with closing(_reader(file)) as reader:
            return _has(reader, "packhorse_job")
    except sqlite3.Error:
        return False


def is_whole(file: Path) -> bool:
    """Can all of this file be read?"""
    try:
        with closing(_reader(file)) as reader:
            (told,) = reader.execute("PRAGMA quick_check(1)").fetchone()
            return str(told) == "ok"
    except sqlite3.DatabaseError as error:
        if is_damage(error):
            return False
        raise


def size_of(path: Path) -> int:
    """In bytes, with what stands in the log and is not in the file yet."""
    with closing(_reader(path)) as reader:
        (pages,), (page_size,) = (reader.execute(f"PRAGMA {name}").fetchone() for name in ("page_count", "page_size"))
        return int(pages * page_size)


def check_target(path: Path, lease: int) -> None:
    """Nothing, a storage of ours that nobody works on, an empty file, or a damaged one; else a CommandError."""
    if not path.exists():
        return
    try:
        with closing(_reader(path)) as reader:
            is_empty = reader.execute("SELECT 1 FROM sqlite_schema").fetchone() is None
            if not is_empty and not _has(reader, "packhorse_job"):
                why, hint = "it is a database of something else", "name the storage by --url; nothing was changed"
                raise CommandError(f"will not write over {path}", ExitCode.REFUSED, why=why, hint=hint)
            check_nobody_works(reader, lease)
    except sqlite3.DatabaseError as error:
        if not is_damage(error):
            raise


def check_nobody_works(reader: sqlite3.Connection, lease: int) -> None:
    """Raises CommandError if foremen or workers have given a sign of life of late. Read without the storage, which
    would bring an older file up to date, and refuse a newer one."""
    if not _has(reader, "packhorse_worker"):
        return
    rows = reader.execute("SELECT info, beat_at FROM packhorse_worker").fetchall()
    processes = [WorkerInfo("", info=json.loads(info), beat_at=beat_at) for info, beat_at in rows]
    alive = sum(is_alive(each, now(), lease) for each in processes)
    if alive:
        what = f"{count_text(alive, 'foreman or worker uses', 'foremen and workers use')} this storage"
        raise CommandError(what, ExitCode.REFUSED, hint="stop them first: packhorse stop --all")


def _has(reader: sqlite3.Connection, table: str) -> bool:
    return reader.execute("SELECT 1 FROM sqlite_schema WHERE name = ?", (table,)).fetchone() is not None


def _version(onlooker: sqlite3.Connection) -> int:
    """A number that changes when others have written."""
    (number,) = onlooker.execute("PRAGMA data_version").fetchone()
    return int(number)


def _reader(file: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"file:{quote(str(file))}?mode=ro", uri=True, timeout=_PATIENCE)


def _free_name(path: Path) -> Path:
    """A name beside the file that nothing has, nor its log: one that was left would be taken for that of the new."""
    number = 1
    while any(path.with_name(f"{path.name}.before-{number}{end}").exists() for end in BESIDE):
        number += 1
    return path.with_name(f"{path.name}.before-{number}")
