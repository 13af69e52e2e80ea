"""Groups of Redis servers: a master with a replica and sentinels, or a cluster."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from packhorse.storage.redis.connection import ConnectionLost, ErrorReply
from tests.children import until
from tests.redis_server import RedisServer

SERVICE = "jobs"


class Watched:
    """A master, its replica and three sentinels. On a busy machine the sentinels are patient until `kill_master`; then
    they replace the master within about two seconds."""

    def __init__(self, directory: Path) -> None:
        self.master = RedisServer(_made(directory / "first"), "--repl-diskless-sync-delay", "0")
        self.replica = RedisServer(
            _made(directory / "second"),
            *("--replicaof", "127.0.0.1", str(self.master.port), "--repl-diskless-sync-delay", "0"),
        )
        self.sentinels = [self._sentinel(_made(directory / f"sentinel-{number}")) for number in range(3)]

    @property
    def url(self) -> str:
        return f"redis+sentinel://{','.join(f'127.0.0.1:{one.port}' for one in self.sentinels)}/{SERVICE}"

    def _sentinel(self, directory: Path) -> RedisServer:
        configuration = directory / "sentinel.conf"
        lines = [
            f"monitor {SERVICE} 127.0.0.1 {self.master.port} 2",
            f"down-after-milliseconds {SERVICE} 30000",
            f"failover-timeout {SERVICE} 3000",
        ]
        configuration.write_text("".join(f"sentinel {line}\n" for line in lines), "utf-8")
        return RedisServer(directory, "--sentinel", words=(str(configuration),))

    def start(self) -> None:
        for server in (self.master, self.replica):
            server.start()
        until(lambda: self.replica.info("master_link_status") == "up", "the replica follows")
        for sentinel in self.sentinels:
            sentinel.start()
        until(lambda: all(map(_knows_all, self.sentinels)), "the sentinels know each other and the replica")

    def kill_master(self) -> None:
        self.master.kill()
        for sentinel in self.sentinels:
            sentinel.command("SENTINEL", "SET", SERVICE, "down-after-milliseconds", 300)

    def until_replicated(self) -> None:
        """Wait until the replica has everything that the master has now."""
        offset = int(self.master.info("master_repl_offset"))
        until(lambda: int(self.replica.info("slave_repl_offset")) >= offset, "the replica has it")

    def named(self) -> int:
        """The port of the master according to the first sentinel."""
        _, port = self.sentinels[0].command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE)
        return int(port)

    def end(self) -> None:
        for server in (*self.sentinels, self.replica, self.master):
            server.kill()


def _knows_all(sentinel: RedisServer) -> bool:
    reply = sentinel.command("SENTINEL", "MASTER", SERVICE)
    facts = dict(zip(reply[::2], reply[1::2], strict=True))
    return facts[b"num-other-sentinels"] == b"2" and facts[b"num-slaves"] == b"1" and facts[b"flags"] == b"master"


class Cluster:
    """Three masters that share the slots."""

    def __init__(self, directory: Path) -> None:
        options = ("--cluster-enabled", "yes", "--cluster-node-timeout", "15000")
        self.nodes = [RedisServer(_made(directory / str(number)), *options) for number in range(3)]

    @property
    def url(self) -> str:
        """The URL names one node; the client discovers the others."""
        return f"redis+cluster://127.0.0.1:{self.nodes[0].port}"

    def start(self) -> None:
        for node in self.nodes:
            node.start()
        for number, node in enumerate(self.nodes):
            first, last = number * 16384 // 3, (number + 1) * 16384 // 3 - 1
            node.command("CLUSTER", "ADDSLOTS", *range(first, last + 1))
            node.command("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
            self.nodes[0].command("CLUSTER", "MEET", "127.0.0.1", node.port)
        until(lambda: all(map(_is_whole, self.nodes)), "the cluster is whole")

    def owner(self, slot: int) -> RedisServer:
        return next(node for number, node in enumerate(self.nodes) if slot <= (number + 1) * 16384 // 3 - 1)

    def end(self) -> None:
        for node in self.nodes:
            node.kill()


def _is_whole(node: RedisServer) -> bool:
    with contextlib.suppress(ConnectionLost, ErrorReply):
        info = node.command("CLUSTER", "INFO")
        return b"cluster_state:ok" in info and b"cluster_known_nodes:3" in info
    return False


def _made(directory: Path) -> Path:
    directory.mkdir(parents=True)
    return directory


@contextlib.contextmanager
def watched(directory: Path) -> Iterator[Watched]:
    group = Watched(directory)
    try:
        group.start()
        yield group
    finally:
        group.end()


@contextlib.contextmanager
def cluster(directory: Path) -> Iterator[Cluster]:
    group = Cluster(directory)
    try:
        group.start()
        yield group
    finally:
        group.end()
