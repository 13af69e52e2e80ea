"""The health of a Redis: what it says of itself, and what an operator should know. Read by `Redis.health`."""

from __future__ import annotations

import time
from typing import Any, Final

from packhorse.core.errors import StorageError
from packhorse.storage.records import Health
from packhorse.storage.redis.bell import Bell
from packhorse.storage.redis.layout import LAYOUT
from packhorse.storage.redis.server import Server

_SLOW: Final = 20_000
"""Microseconds that one small read may take."""
_NEARLY: Final = 0.9
"""The share of a limit at which it is time to do something."""
_OFTEN: Final = 0.01
"""The share of calls that may wait for a connection."""

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


def health_of(server: Server, bell: Bell) -> Health:
    """Ask the server how it is."""
    server.ask("health", ("PING",))  # so that the next one does not pay for the connection
    began_at = time.perf_counter()
    server.ask("health", ("PING",))
    latency = round((time.perf_counter() - began_at) * 1e6)
    facts = _facts(server)
    opened, in_use = connections_of(server, bell)
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
        facts=_told(server, facts),
        problems=[*_about_loss(facts), *_about_room(facts), *_about_speed(server, latency)],
    )


def _facts(server: Server) -> Facts:
    """What the server says of itself; the configuration where it may be read, which hosted servers often forbid."""
    text: str = server.ask("health", ("INFO",))[0].decode()
    facts = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    for name in ("save", "appendfsync", "maxclients"):
        try:
            answer = server.ask("health", ("CONFIG", "GET", name))[0]
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


def _told(server: Server, facts: Facts) -> dict[str, Any]:
    pool = server.pool
    return {
        "server": server.shown_node,
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
        problems.append(
            f"maxmemory-policy is {policy}: when its memory is full, the server throws jobs away; set it to noeviction"
        )
    if _number(facts, "evicted_keys"):
        problems.append(f"the server has thrown {_number(facts, 'evicted_keys'):,} keys away for want of memory")
    if facts.get("aof_enabled") != "1":
        problems.append(f"{_without_append_only_file(facts)}; set appendonly yes")
    elif facts.get("appendfsync") == "no":
        problems.append("appendfsync is no: a power cut may lose up to half a minute; set it to everysec or always")
    for name, what in (("aof_last_write_status", "append-only file"), ("rdb_last_bgsave_status", "snapshot")):
        if facts.get(name, "ok") != "ok":
            problems.append(f"the last write of the {what} failed; see the server's log")
    return problems


def _without_append_only_file(facts: Facts) -> str:
    if "save" not in facts:  # hosted servers do not tell
        return "no append-only file is written: a crash of the server may lose jobs"
    if not facts["save"]:
        return "nothing is saved to disk: a restart of the server loses every job"
    changes = _number(facts, "rdb_changes_since_last_save")
    return (
        f"only snapshots are saved to disk: a crash of the server loses what came after the last ({changes:,} changes)"
    )


def _about_room(facts: Facts) -> list[str]:
    """What is nearly used up."""
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
        problems.append(f"one small read took {latency / 1000:.0f} ms; see SLOWLOG GET, LATENCY DOCTOR and the network")
    pool = server.pool
    calls = sum(one.calls for one in server.meter.report())
    if calls >= 1_000 and pool.waits > _OFTEN * calls:
        problems.append(
            f"{pool.waits:,} of {calls:,} calls of this process waited for one of its {pool.size} connections;"
            f" raise ?connections="
        )
    return problems


def connections_of(server: Server, bell: Bell) -> tuple[int, int]:
    """How many connections this process has open, and how many are in use; those that sleep among them."""
    opened, in_use = server.pool.counts()
    sleepers, sleeping = bell.connections()
    return opened + sleepers, in_use + sleeping
