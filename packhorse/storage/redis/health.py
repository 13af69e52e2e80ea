"""The health of a Redis: what the server reports, and problems that an operator should know of."""

from __future__ import annotations

import time
from typing import Any, Final

from packhorse.core.errors import StorageError
from packhorse.storage.records import Health
from packhorse.storage.redis.notifier import Notifier
from packhorse.storage.redis.server import LAYOUT, Server

_SLOW: Final = 20_000
"""Microseconds. A small read that takes longer is slow."""
_NEARLY: Final = 0.9
"""The share of a limit at which it is reported."""
_MANY_WAITS: Final = 0.01
"""The share of calls that wait for a connection at which it is reported."""

Facts = dict[str, str]

_NUMBERS = (
    "connected_clients",
    "blocked_clients",
    "maxclients",
    "used_memory",
    "maxmemory",
    "evicted_keys",
    "rdb_changes_since_last_save",
    "instantaneous_ops_per_sec",
)
_WORDS = ("role", "redis_mode", "maxmemory_policy", "mem_fragmentation_ratio", "save", "appendfsync")


def health_of(server: Server, notifier: Notifier) -> Health:
    """Measure and describe the server."""
    server.send("health", ("PING",))  # connects, so that the next one is not slower for it
    began_at = time.perf_counter()
    server.send("health", ("PING",))
    latency = round((time.perf_counter() - began_at) * 1e6)
    facts = _facts(server)
    opened, in_use = connections_of(server, notifier)
    used, limit = _number(facts, "used_memory"), _number(facts, "maxmemory")
    return Health(
        kind="redis",
        url=server.address.shown,
        version=_version(facts),
        schema=LAYOUT,
        latency=latency,
        size=used,
        free=max(0, limit - used) if limit else None,
        connections_open=opened,
        connections_in_use=in_use,
        busy_retries=server.meter.busy_retries,
        operations=server.meter.report(),
        facts=_report(server, facts),
        problems=[*_about_loss(facts), *_about_room(facts), *_about_speed(server, latency)],
    )


def _facts(server: Server) -> Facts:
    """What the server reports; and its configuration where that may be read, which hosted servers often forbid."""
    text: str = server.send("health", ("INFO",))[0].decode()
    facts = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    for name in ("save", "appendfsync", "maxclients"):
        try:
            answer = server.send("health", ("CONFIG", "GET", name))[0]
        except StorageError:
            break
        if answer:
            facts[name] = answer[1].decode()
    return facts


def _number(facts: Facts, name: str) -> int:
    return int(facts.get(name) or 0)


def _version(facts: Facts) -> str:
    if "valkey_version" in facts:
        return f"Valkey {facts['valkey_version']}"
    return f"Redis {facts.get('redis_version', '?')}"


def _report(server: Server, facts: Facts) -> dict[str, Any]:
    pool = server.pool
    return {
        "server": server.node_label,
        "prefix": server.prefix,
        "pool_size": pool.size,
        "connection_waits": pool.waits,
        "connection_wait_mean": round(pool.waited * 1e6 / max(1, pool.waits)),
        "lost_connections": server.losses,
        **{name: _number(facts, name) for name in _NUMBERS if name in facts},
        **{name: facts[name] for name in _WORDS if name in facts},
        "appendonly": facts.get("aof_enabled") == "1",
        "replicas": _number(facts, "connected_slaves"),
    }


def _about_loss(facts: Facts) -> list[str]:
    """What may lose jobs."""
    problems = []
    policy = facts.get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        problems.append(f"maxmemory-policy is {policy}: a server that is full deletes jobs; set it to noeviction")
    if _number(facts, "evicted_keys"):
        problems.append(f"the server has evicted {_number(facts, 'evicted_keys'):,} keys because its memory was full")
    if facts.get("aof_enabled") != "1":
        problems.append(f"{_without_append_only_file(facts)}; set appendonly yes")
    elif facts.get("appendfsync") == "no":
        problems.append("appendfsync is no: a power cut may lose up to half a minute; set it to everysec or always")
    for name, what in (("aof_last_write_status", "append-only file"), ("rdb_last_bgsave_status", "snapshot")):
        if facts.get(name, "ok") != "ok":
            problems.append(f"the last write of the {what} failed; check the log of the server")
    return problems


def _without_append_only_file(facts: Facts) -> str:
    if "save" not in facts:  # hosted servers do not report it
        return "no append-only file is written: a crash of the server may lose jobs"
    if not facts["save"]:
        return "nothing is saved to disk: a restart of the server loses every job"
    changes = _number(facts, "rdb_changes_since_last_save")
    return f"only snapshots are saved to disk: a crash of the server loses what came later ({changes:,} changes)"


def _about_room(facts: Facts) -> list[str]:
    """What has almost reached its limit."""
    problems = []
    for name, limit_name, what in (
        ("used_memory", "maxmemory", "bytes of its memory"),
        ("connected_clients", "maxclients", "connections that it allows"),
    ):
        used, limit = _number(facts, name), _number(facts, limit_name)
        if limit and used >= _NEARLY * limit:
            problems.append(f"the server uses {used:,} of the {limit:,} {what}; raise {limit_name}")
    return problems


def _about_speed(server: Server, latency: int) -> list[str]:
    """What makes callers wait."""
    problems = []
    if latency > _SLOW:
        problems.append(f"a small read took {latency / 1000:.0f} ms; check SLOWLOG GET, LATENCY DOCTOR and the network")
    pool = server.pool
    calls = sum(one.calls for one in server.meter.report())
    if calls >= 1_000 and pool.waits > _MANY_WAITS * calls:
        problems.append(
            f"{pool.waits:,} of {calls:,} calls of this process waited for one of its {pool.size} connections;"
            f" raise ?connections="
        )
    return problems


def connections_of(server: Server, notifier: Notifier) -> tuple[int, int]:
    """(open, in use) connections of this process, also those of the notifier."""
    opened, in_use = server.pool.counts()
    waiting, blocked = notifier.connections()
    return opened + waiting, in_use + blocked
