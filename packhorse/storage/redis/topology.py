"""Topology: which server holds our keys. A fixed server, the master that the sentinels name, or a node of a cluster.

`server.py` asks before it connects, and calls `forget` when the answer was wrong. All keys carry one hash tag, so even
in a cluster one server holds all of them.
"""

from __future__ import annotations

import binascii
import threading
import time
from collections.abc import Callable
from typing import Any

from packhorse.storage.redis.address import Address, Node, format_nodes
from packhorse.storage.redis.connection import Connection, ConnectionLost, ErrorReply

_SLOTS = 16_384
_QUERY_TIMEOUT = 1.0  # seconds for one sentinel or node to answer, before the next is tried
_CHECK_INTERVAL = 1.0  # seconds between two checks of which master the sentinels name


class Topology:
    """Find the server of an address, and remember it until `forget`."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._query_address = address._replace(timeout=min(_QUERY_TIMEOUT, address.timeout))
        self._nodes = list(address.nodes)
        self._found: Node | None = None
        self._lock = threading.Lock()
        self.is_fixed = address.scheme in ("redis", "rediss")
        self._sentinel: Connection | None = None
        self._next_check = 0.0

    def find(self) -> Node:
        """The server to connect to. Raises `ConnectionLost` if no node knows it."""
        if self.is_fixed:
            return self._nodes[0]
        with self._lock:
            if self._found is None:
                self._found = self._first_answer(self._query_sentinel if self._address.service else self._query_cluster)
            return self._found

    def has_moved(self) -> bool:
        """Do the sentinels name another master by now? One thread checks, about once a second: a replaced master may
        accept writes for some seconds, and all of them are lost."""
        if not self._address.service or time.monotonic() < self._next_check or not self._lock.acquire(blocking=False):
            return False
        try:
            self._next_check = time.monotonic() + _CHECK_INTERVAL
            return self._found is not None and self._named_master() not in (None, self._found)
        finally:
            self._lock.release()

    def _named_master(self) -> Node | None:
        """The master that one sentinel names. None: the sentinel does not answer."""
        try:
            if self._sentinel is None:
                self._sentinel = Connection(self._nodes[0], self._query_address, as_sentinel=True)
            return self._query_sentinel(self._sentinel, self._sentinel.node)
        except (ConnectionLost, ErrorReply):
            self._close_sentinel()
            self._nodes.append(self._nodes.pop(0))  # ask another the next time
            return None

    def _close_sentinel(self) -> None:
        if self._sentinel is not None:
            self._sentinel.close()
            self._sentinel = None

    def forget(self, node: Node | None = None) -> None:
        """The server is not there any more, or is not the master."""
        with self._lock:
            if node is None or node == self._found:
                self._found = None

    def close(self) -> None:
        with self._lock:
            self._close_sentinel()

    def after_fork(self) -> None:
        """In a forked child: another thread of the parent may have held the lock."""
        self._lock = threading.Lock()
        self._close_sentinel()

    def is_right(self, connection: Connection) -> bool:
        """Has this server the role that we need?"""
        return self.is_fixed or connection.role == "master"

    def _first_answer(self, query: Callable[[Connection, Node], Node | None]) -> Node:
        """Query the nodes in turn. The one that answers is queried first the next time."""
        failures = []
        for node in list(self._nodes):
            try:
                connection = Connection(node, self._query_address, as_sentinel=bool(self._address.service))
                try:
                    found = query(connection, node)
                finally:
                    connection.close()
            except (ConnectionLost, ErrorReply) as error:
                failures.append(f"{format_nodes([node])}: {error}")
                continue
            if found is None:
                failures.append(f"{format_nodes([node])}: does not know")
                continue
            self._nodes.remove(node)
            self._nodes.insert(0, node)
            return found
        raise ConnectionLost("; ".join(failures))

    def _query_sentinel(self, connection: Connection, node: Node) -> Node | None:
        reply = connection.call("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self._address.service)
        return (reply[0].decode(), int(reply[1])) if reply else None

    def _query_cluster(self, connection: Connection, node: Node) -> Node | None:
        slot = slot_of(self._address.prefix)
        slots: list[list[Any]] = connection.call("CLUSTER", "SLOTS")
        masters = [((master[0] or b"").decode() or node[0], int(master[1])) for _, _, master, *_ in slots]
        self._nodes += [each for each in dict.fromkeys(masters) if each not in self._nodes]
        for (first, last, *_), master in zip(slots, masters, strict=True):
            if first <= slot <= last:
                return master
        return None


def slot_of(tag: str) -> int:
    """The slot of a cluster that holds the keys with this hash tag."""
    return binascii.crc_hqx(tag.encode(), 0) % _SLOTS
