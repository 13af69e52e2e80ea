"""`packhorse backup`: a copy of a SQLite storage, made while others use it. Servers have their own ways."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from urllib.parse import quote

import click

from packhorse.cli.failing import CommandError, ExitCode
from packhorse.cli.invocation import Invocation
from packhorse.cli.options import command
from packhorse.cli.output import escape, say

_OTHERS = "PostgreSQL has pg_dump, Redis BGSAVE; packhorse copy-store moves it to another storage"


@command(
    "backup", "packhorse backup monday.db", "packhorse backup /backups/jobs-$(date +%F).db --url sqlite:///jobs.db"
)
@click.argument("file", type=click.Path(path_type=Path))
def backup(invocation: Invocation, file: Path) -> None:
    """Write a copy of a SQLite storage, of one moment, while others use it. The copy is a storage of its own: use it by
    its address, or move it with copy-store. Jobs that run after it was made would run again on it."""
    source = getattr(invocation.storage, "path", None)
    if not isinstance(source, Path):
        raise CommandError("only a SQLite storage is backed up so", ExitCode.USAGE, hint=_OTHERS)
    if file.exists():
        raise CommandError(f"{file} is there already", ExitCode.REFUSED, hint="name another file; nothing was changed")
    try:
        _back_up(source, file)
    except OSError as error:
        hint = "name a file in a directory that is there, and yours"
        raise CommandError(f"cannot write {file}", ExitCode.STORAGE, why=error.strerror, hint=hint) from error
    except sqlite3.Error as error:
        raise CommandError(f"cannot copy {source} to {file}", ExitCode.STORAGE, why=str(error)) from error
    size = file.stat().st_size
    if invocation.as_json:
        invocation.print_json({"file": str(file), "size": size})
    else:
        say(f"{escape(str(file))}: {size:,} bytes")


def _back_up(source: Path, file: Path) -> None:
    """Under another name first, so that half a copy is never taken for a whole. All pages in one step: a copy in parts
    would begin anew with every write of somebody else."""
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
            raise sqlite3.DatabaseError(told)
        draft.rename(file)
    finally:
        draft.unlink(missing_ok=True)
