"""How the storage is: `packhorse storage`."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator

import msgspec

from packhorse.cli.failing import masked
from packhorse.cli.invocation import Invocation
from packhorse.cli.options import command
from packhorse.cli.output import escape, paint, print_pairs, say
from packhorse.cli.target import option_or_source
from packhorse.core.clock import SECOND
from packhorse.core.errors import StorageError
from packhorse.monitor.liveness import is_alive
from packhorse.monitor.serializers import HealthFields, health_fields
from packhorse.monitor.stats import ConnectionTotals, connection_totals
from packhorse.monitor.text import count_text, fact_text, significant, size_text
from packhorse.storage import Storage
from packhorse.storage.records import Health

_TRIES = 5


class StorageFields(HealthFields, kw_only=True):
    """The storage's health, and how long an empty write takes, in seconds; null: it takes none."""

    write_latency: float | None
    all_connections: ConnectionTotals


@command("storage", "packhorse storage", "packhorse storage --json | jq .problems", pages=True)
def storage(invocation: Invocation) -> None:
    """How the storage is: how quick, how large, how contended, and what an operator should know about it."""
    write = _write_latency(invocation.storage)
    health = invocation.storage.health()
    connections = _connections(invocation)
    if invocation.as_json:
        fields = msgspec.structs.asdict(health_fields(health))
        latency = None if write is None else write / SECOND
        invocation.print_json(StorageFields(**fields, write_latency=latency, all_connections=connections))
        return
    facts = list(_facts(health, write, option_or_source(invocation.settings, "url")))
    facts.append(("connections", _connections_text(connections)))
    print_pairs(facts, max(len(name) for name, _ in facts) + 1)
    for problem in health.problems:
        say(f"{paint('!', 'yellow')} {masked(escape(problem))}")
    if not health.problems:
        say(paint("Nothing is wrong with it.", "green"))
    for note in health.notes:
        say(f"note: {masked(escape(note))}")


def _connections(invocation: Invocation) -> ConnectionTotals:
    storage, lease = invocation.storage, invocation.settings.lease
    now = storage.now()
    alive = [worker for worker in storage.workers() if is_alive(worker, now, lease)]
    return connection_totals([storage.connections()], alive)


def _connections_text(totals: ConnectionTotals) -> str:
    processes = count_text(totals.processes, "process", "processes")
    return f"{totals.open} open, {totals.in_use} in use, of {processes} with this one"


def _write_latency(storage: Storage) -> int | None:
    """How long a write takes that changes nothing, in microseconds; None: it takes none."""
    took = []
    try:
        for _ in range(_TRIES):
            began = time.perf_counter()
            storage.beat({})
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
