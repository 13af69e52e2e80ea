"""Bringing the storage's tables up to date, or showing what that would take."""

from __future__ import annotations

import click

from packhorse.cli.failing import CommandError, ExitCode
from packhorse.cli.invocation import Invocation
from packhorse.cli.options import command
from packhorse.cli.output import escape, escape_lines, say
from packhorse.cli.target import open_for_writing
from packhorse.storage.contract import Storage
from packhorse.storage.records import Migration


@command("migrate", "packhorse migrate", "packhorse migrate --plan", "packhorse migrate --sql > for-the-dba.sql")
@click.option("--plan", is_flag=True, help="Only say which migrations are missing.")
@click.option("--sql", is_flag=True, help="Only print the SQL that would be run.")
def migrate(invocation: Invocation, plan: bool, sql: bool) -> int:
    """Bring the storage's tables up to date. Safe to run from many hosts at once, and while workers of the version
    before are running. A storage that is empty is made ready."""
    if plan and sql:
        raise CommandError("--plan and --sql exclude each other", ExitCode.USAGE)
    storage = open_for_writing(invocation.settings)
    try:
        _show(invocation, storage.pending_migrations(), sql) if plan or sql else _do(invocation, storage)
    finally:
        storage.close()
    return ExitCode.OK


def _show(invocation: Invocation, pending: list[Migration], as_sql: bool) -> None:
    if invocation.as_json:
        invocation.print_json([{"name": step.name, "sql": step.sql} for step in pending])
    elif as_sql:
        if pending:
            say(escape_lines("\n".join(["BEGIN;", *(f"-- {step.name}\n{step.sql}" for step in pending), "COMMIT;"])))
    elif pending:
        for step in pending:
            say(escape(step.name))
    else:
        invocation.note("nothing to do: the tables are up to date")


def _do(invocation: Invocation, storage: Storage) -> None:
    applied = storage.migrate()
    if invocation.as_json:
        invocation.print_json({"applied": applied})
    elif applied:
        for name in applied:
            say(f"applied {escape(name)}")
    else:
        invocation.note("nothing to do: the tables are up to date")
