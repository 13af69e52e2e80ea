"""The commands that the storage sends: none walks over all keys, none is without an end, none leaves its slot. Other
users of the server must not suffer."""

from __future__ import annotations

import re
from importlib import resources

import pytest

from packhorse.conformance.builders import new_jobs
from packhorse.storage.contract import BATCH
from packhorse.storage.redis import Redis
from packhorse.storage.redis.server import load_scripts
from tests.redis_server import RedisServer
from tests.storage.redis.monitor import Command, recorded
from tests.storage.redis.tour import take_tour

WALKS = {"KEYS", "SCAN", "HSCAN", "SSCAN", "ZSCAN", "RANDOMKEY", "SORT", "FLUSHALL", "FLUSHDB", "DBSIZE", "DEBUG"}
MOST = BATCH + 1
"""Elements that one command may read."""

# Read as a whole: these grow with the names of queues and tasks, with processes, or with the subscribers of a job. The
# jobs that a client subscribed to are counted first.
_BY_NAME = re.compile(
    r"\}:(queues|pause_ends|open|tally|total|tasks|workers|reports|beats|clients|client_beats|schedules|holders|meta"
    r"|m:\w+:\d+|failure:\w+|subs?:.*)$"
)


@pytest.fixture
def commands(own_server: RedisServer) -> list[Command]:
    """All commands of a tour through the whole contract."""
    storage = Redis.from_url(own_server.url)
    with recorded(own_server) as commands:
        take_tour(storage)
        storage.enqueue(new_jobs(BATCH))
        storage.now()
    storage.close()
    assert len(commands) > 500
    return commands


def test_no_operation_walks_over_all_keys(own_server: RedisServer, commands: list[Command]) -> None:
    used = {line.partition(":")[0] for line in own_server.command("INFO", "commandstats").decode().splitlines()}

    assert not {one.name for one in commands} & WALKS
    assert not {f"cmdstat_{name.lower()}" for name in WALKS} & used


def test_every_range_has_an_end(commands: list[Command]) -> None:
    endless = {one for one in commands if not _has_an_end(one)}

    assert not endless, sorted(endless)


def _has_an_end(one: Command) -> bool:
    words = [word.upper() for word in one.words]
    match one.name:
        case "ZRANGE" | "ZREVRANGE" | "LRANGE":
            start, stop = int(words[1]), int(words[2])
            is_from_one_end = start >= 0 or stop < 0  # from the first on, or up to the last
            return (is_from_one_end and start <= stop < start + MOST) or _is_by_name(one)
        case "ZRANGEBYSCORE" | "ZREVRANGEBYSCORE":
            return _named(words, "LIMIT", 2) <= MOST or words[1] == words[2]
        case "XRANGE" | "XREVRANGE":
            return _named(words, "COUNT", 1) <= MOST or words[1] == words[2]
        case "HGETALL" | "HKEYS" | "HVALS" | "SMEMBERS":
            return _is_by_name(one)
        case "MGET" | "HMGET" | "MSET" | "ZADD" | "ZREM" | "DEL":
            return len(words) <= 2 * MOST + 1
    return True


def _named(words: list[str], name: str, offset: int) -> float:
    return int(words[words.index(name) + offset]) if name in words else float("inf")


def _is_by_name(one: Command) -> bool:
    return _BY_NAME.search(one.words[0]) is not None


def test_all_keys_lie_in_one_slot(own_server: RedisServer) -> None:
    storage = Redis.from_url(f"{own_server.url}?prefix=stable")

    take_tour(storage)

    stored = own_server.command("KEYS", "*")
    assert len(stored) > 50
    assert {key.partition(b"}")[0] for key in stored} == {b"{stable"}


def test_polling_for_all_workers_of_a_foreman_is_one_call(own_server: RedisServer) -> None:
    storage = Redis.from_url(own_server.url)
    owners = [f"worker {number}" for number in range(100)]
    storage.heartbeat({})
    storage.abort_requests(owners)

    with recorded(own_server) as commands:
        storage.heartbeat({})
        storage.abort_requests(owners)

    assert [one.name for one in commands if one.name in ("EVALSHA", "SCRIPT")] == ["EVALSHA"] * 2
    storage.close()


@pytest.mark.parametrize("with_flags", [False, True])
def test_no_script_reads_an_undefined_name(with_flags: bool) -> None:
    """The clock comes from `TIME` or the test, the names of keys from the prefix, and nothing is left to chance."""
    for script in load_scripts(with_flags=with_flags).values():
        text = re.sub(rb"--.*", b"", script.text)
        assert not re.search(rb"os\.|math\.random|cjson\.encode|KEYS\[[^1]|SRANDMEMBER|RANDOMKEY", text), script.name
        assert text.count(b"'TIME'") == 1


def test_every_script_is_used() -> None:
    package = resources.files("packhorse.storage.redis")
    python = "".join(one.read_text("utf-8") for one in package.iterdir() if one.name.endswith(".py"))

    unused = [name for name in load_scripts(with_flags=True) if f'"{name}"' not in python]

    assert not unused
