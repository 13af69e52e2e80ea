"""`packhorse backup`, `restore` and `compact`: a copy of a SQLite storage, made while others use it; the way back; and
the space of what was removed. Servers have their own ways."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import click

from packhorse.cli.asking import is_sure
from packhorse.cli.failing import CommandError, ExitCode
from packhorse.cli.invocation import Invocation
from packhorse.cli.options import command
from packhorse.cli.output import escape, say
from packhorse.cli.putting_back import check_target, is_storage, is_whole, put_back, size_of
from packhorse.cli.target import open_for_writing
from packhorse.monitor.text import size_text
from packhorse.storage import Storage
from packhorse.storage.backup import NO_NEED, back_up
from packhorse.storage.backup import compact as written_anew

_OTHERS = "PostgreSQL has pg_dump, Redis BGSAVE; packhorse copy-store moves it to another storage"
_PATIENCE = 30.0  # seconds until others have ended what they write


@command(
    "backup", "packhorse backup monday.db", "packhorse backup /backups/jobs-$(date +%F).db --url sqlite:///jobs.db"
)
@click.argument("file", type=click.Path(path_type=Path))
def backup(invocation: Invocation, file: Path) -> None:
    """Write a copy of a SQLite storage, of one moment, while others use it. The copy is a storage of its own: use it by
    its address, or move it with copy-store. Jobs that run after it was made would run again on it."""
    if invocation.settings.url.startswith(("http://", "https://")):
        hint = "run it on the manager, or on its Storage page"
        raise CommandError("a storage behind a manager is not backed up from here", ExitCode.USAGE, hint=hint)
    source = _path_of(invocation.storage, "backed up", _OTHERS)
    if file.exists():
        raise CommandError(f"{file} is there already", ExitCode.REFUSED, hint="name another file; nothing was changed")
    try:
        size = back_up(source, file)
    except OSError as error:
        hint = "name a file in a directory that is there, and yours"
        raise CommandError(f"cannot write {file}", ExitCode.STORAGE, why=error.strerror, hint=hint) from error
    except sqlite3.Error as error:
        raise CommandError(f"cannot copy {source} to {file}", ExitCode.STORAGE, why=str(error)) from error
    if invocation.as_json:
        invocation.print_json({"file": str(file), "size": size})
    else:
        say(f"{escape(str(file))}: {size:,} bytes")


def _path_of(storage: Storage, done: str, hint: str) -> Path:
    """The file of a SQLite storage; a CommandError for every other."""
    path = getattr(storage, "path", None)
    if not isinstance(path, Path):
        raise CommandError(f"only a SQLite storage is {done} so", ExitCode.USAGE, hint=hint)
    return path


# --- the way back -----------------------------------------------------------------------------------------------------


@command("restore", "packhorse restore monday.db", "packhorse restore monday.db --url sqlite:///jobs.db --yes")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--yes", is_flag=True, help="Do not ask.")
def restore(invocation: Invocation, file: Path, yes: bool) -> None:
    """Put a backup in the place of a SQLite storage. What is there is kept in a file beside it. Not while workers run:
    stop them first. Jobs that have run since the backup was made run again."""
    storage = invocation.remembered(open_for_writing(invocation.settings))
    path = _path_of(storage, "restored", "PostgreSQL has pg_restore, Redis loads its dump.rdb when it starts")
    lease = invocation.settings.lease
    try:
        _check_backup(file, path)
        check_target(path, lease)
    except sqlite3.Error as error:
        what = f"cannot look into {file} and {path}"
        raise CommandError(what, ExitCode.STORAGE, why=str(error), hint="nothing was changed") from error
    if path.exists():
        what, refusal = f"put {file} in the place of {path}", f"will not replace {path} without being sure"
        if not yes and not is_sure(escape(what), escape(refusal)):
            raise CommandError("nothing was changed", ExitCode.REFUSED)
    storage.close()
    try:
        kept = put_back(file, path, lease)
        size = size_of(path)
    except (OSError, sqlite3.Error) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        what, hint = (
            f"cannot put {file} in the place of {path}",
            "nothing was lost; is the disk full, or the file locked?",
        )
        raise CommandError(what, ExitCode.STORAGE, why=why, hint=hint) from error
    if invocation.as_json:
        invocation.print_json({"file": str(path), "kept": kept and str(kept), "size": size})
        return
    say(f"{escape(str(path))} is as {escape(str(file))} was: {size_text(size)}")
    if kept:
        invocation.note(f"what was there is kept in {escape(str(kept))}")


def _check_backup(file: Path, path: Path) -> None:
    """A file that can be put back, and is another."""
    if not file.exists():
        raise CommandError(f"there is no file {file}", ExitCode.NOT_FOUND, hint="packhorse backup FILE makes one")
    if path.exists() and file.samefile(path):
        raise CommandError(f"{file} is the storage itself", ExitCode.USAGE, hint="name the backup")
    if not is_storage(file):
        hint = "packhorse backup FILE makes one; lines of JSON are read by packhorse import"
        raise CommandError(f"{file} is not a backup of a storage", ExitCode.USAGE, hint=hint)
    if not is_whole(file):
        raise CommandError(f"{file} is damaged", ExitCode.STORAGE, hint="take another backup; nothing was changed")


# --- the space of what was removed ------------------------------------------------------------------------------------


@command("compact", "packhorse compact", "packhorse prune --older-than 7d --yes && packhorse compact")
def compact(invocation: Invocation) -> None:
    """Write a SQLite storage anew, without the space of what was removed; the disk gets it back. Without this, new jobs
    use it. Who wants to write meanwhile waits: seconds for a GiB. It needs as much free space as the file has."""
    path = _path_of(invocation.storage, "compacted", NO_NEED)
    try:
        before, after = written_anew(path, _PATIENCE)
    except sqlite3.Error as error:
        hint = "others write to it, or the disk is full: packhorse storage tells; no job was lost"
        raise CommandError(f"cannot compact {path}", ExitCode.STORAGE, why=str(error), hint=hint) from error
    if invocation.as_json:
        invocation.print_json({"file": str(path), "before": before, "after": after})
    else:
        say(f"{escape(str(path))}: {size_text(before)} before, {size_text(after)} now")
