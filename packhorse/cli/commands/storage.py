"""The storage: `packhorse storage` shows how it is, `packhorse migrate` updates its tables."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator

import click
import msgspec

from packhorse.cli.context import CommandContext
from packhorse.cli.errors import CommandError, ExitCode, masked
from packhorse.cli.options import command
from packhorse.cli.output import escape, escape_lines, paint, print_pairs, say
from packhorse.cli.target import open_for_writing, option_or_source
from packhorse.core.clock import SECOND
from packhorse.core.errors import StorageError
from packhorse.monitor.liveness import is_alive
from packhorse.monitor.serializers import HealthFields, health_fields
from packhorse.monitor.stats import ConnectionTotals, connection_totals
from packhorse.monitor.text import count_text, fact_text, significant, size_text
from packhorse.storage import Storage
from packhorse.storage.records import Health, Migration

_TRIALS = 5


class StorageFields(HealthFields, kw_only=True):
    """The storage's health, and how long an empty write takes, in seconds; null: it takes no writes."""

    write_latency: float | None
    all_connections: ConnectionTotals


@command("storage", "packhorse storage", "packhorse storage --json | jq .problems", pages=True)
def storage(context: CommandContext) -> None:
    """The storage: its speed, size and connections, and its problems."""
    write = _write_latency(context.storage)
    health = context.storage.health()
    connections = _connections(context)
    if context.as_json:
        fields = msgspec.structs.asdict(health_fields(health))
        latency = None if write is None else write / SECOND
        context.print_json(StorageFields(**fields, write_latency=latency, all_connections=connections))
        return
    facts = list(_facts(health, write, option_or_source(context.settings, "url")))
    facts.append(("connections", _connections_text(connections)))
    print_pairs(facts, max(len(name) for name, _ in facts) + 1)
    for problem in health.problems:
        say(f"{paint('!', 'yellow')} {masked(escape(problem))}")
    if not health.problems:
        say(paint("No problems.", "green"))
    for note in health.notes:
        say(f"note: {masked(escape(note))}")


def _connections(context: CommandContext) -> ConnectionTotals:
    storage, lease = context.storage, context.settings.lease
    now = storage.now()
    alive = [worker for worker in storage.workers() if is_alive(worker, now, lease)]
    return connection_totals([storage.connections()], alive)


def _connections_text(totals: ConnectionTotals) -> str:
    processes = count_text(totals.processes, "process", "processes")
    return f"{totals.open} open, {totals.in_use} in use, of {processes} with this one"


def _write_latency(storage: Storage) -> int | None:
    """How long an empty write takes, in microseconds; None: it takes no writes."""
    took = []
    try:
        for _ in range(_TRIALS):
            began = time.perf_counter()
            storage.heartbeat({})
            took.append(time.perf_counter() - began)
    except StorageError:
        return None
    return round(statistics.median(took) * SECOND)


def _facts(health: Health, write: int | None, source: str) -> Iterator[tuple[str, str]]:
    yield "storage", f"{masked(health.url)}  ({source})"
    version = health.version if health.version[:1].isalpha() else f"{health.kind} {health.version}"
    yield "kind", f"{version}, tables of version {health.schema}"
    yield "small read", _milliseconds(health.latency)
    yield "empty write", "refused" if write is None else _milliseconds(write)
    if health.size is not None:
        yield "size", size_text(health.size)
    if health.free is not None:
        yield "free", size_text(health.free)
    for name, value in health.facts.items():
        if value is None:
            continue
        yield name.replace("_", " "), fact_text(name, value)


def _milliseconds(duration: int) -> str:
    return f"{significant(duration / 1_000, 2)} ms"


@command("migrate", "packhorse migrate", "packhorse migrate --plan", "packhorse migrate --sql > for-the-dba.sql")
@click.option("--plan", is_flag=True, help="Only list the missing migrations.")
@click.option("--sql", is_flag=True, help="Only print their SQL.")
def migrate(context: CommandContext, plan: bool, sql: bool) -> int:
    """Update the storage's tables. It is safe to run on many hosts at the same time, and while workers of the version
    before run. It prepares an empty storage."""
    if plan and sql:
        raise CommandError("--plan and --sql exclude each other", ExitCode.USAGE)
    storage = open_for_writing(context.settings)
    try:
        _show_migrations(context, storage.pending_migrations(), sql) if plan or sql else _migrate(context, storage)
    finally:
        storage.close()
    return ExitCode.OK


def _show_migrations(context: CommandContext, pending: list[Migration], as_sql: bool) -> None:
    if context.as_json:
        context.print_json([{"name": step.name, "sql": step.sql} for step in pending])
    elif as_sql:
        if pending:
            say(escape_lines("\n".join(["BEGIN;", *(f"-- {step.name}\n{step.sql}" for step in pending), "COMMIT;"])))
    elif pending:
        for step in pending:
            say(escape(step.name))
    else:
        context.note("nothing to do: the tables are up to date")


def _migrate(context: CommandContext, storage: Storage) -> None:
    applied = storage.migrate()
    if context.as_json:
        context.print_json({"applied": applied})
    elif applied:
        for name in applied:
            say(f"applied {escape(name)}")
    else:
        context.note("nothing to do: the tables are up to date")
