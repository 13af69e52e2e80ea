"""`packhorse backup`: a copy of a SQLite storage, made while others use it. Servers have their own ways."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import click

from packhorse.backup import back_up, file_of
from packhorse.cli.failing import CommandError, ExitCode
from packhorse.cli.invocation import Invocation
from packhorse.cli.options import command
from packhorse.cli.output import escape, say


@command(
    "backup", "packhorse backup monday.db", "packhorse backup /backups/jobs-$(date +%F).db --url sqlite:///jobs.db"
)
@click.argument("file", type=click.Path(path_type=Path))
def backup(invocation: Invocation, file: Path) -> None:
    """Write a copy of a SQLite storage, of one moment, while others use it. The copy is a storage of its own: use it by
    its address, or move it with copy-store. Jobs that run after it was made would run again on it."""
    source = file_of(invocation.storage)
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
