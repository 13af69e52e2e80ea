"""Whereabouts: which server has our keys now. One fixed server, the master that sentinels name, or a cluster's node.

The server asks before it connects, and says `forget` when it turned out to be the wrong one. All keys carry one hash
tag, so even in a cluster one server has them all.
"""

from __future__ import annotations

import binascii
import threading
import time
from collections.abc import Callable
from typing import Any

from packhorse.storage.redis.address import Address, Node, shown_nodes
from packhorse.storage.redis.connection import Connection, Lost, Refusal

_SLOTS = 16_384
_QUICK = 1.0  # seconds for one sentinel or node to answer, before the next is asked
_OFTEN = 1.0  # seconds between two looks at what the sentinels say


class Whereabouts:
    """Where the server of this address is. The answer is remembered until `forget`."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._quick = address._replace(timeout=min(_QUICK, address.timeout))
        self._nodes = list(address.nodes)
        self._found: Node | None = None
        self._lock = threading.Lock()
        self.is_fixed = address.scheme in ("redis", "rediss")
        self._scout: Connection | None = None  # to a sentinel
        self._next_look = 0.0

    def find(self) -> Node:
        """The server to speak to; raises `Lost` when nobody can tell."""
        if self.is_fixed:
            return self._nodes[0]
        with self._lock:
            if self._found is None:
                ask = self._ask_sentinel if self._address.service else self._ask_cluster
                self._found = self._first_answer(ask)
            return self._found

    def has_moved(self) -> bool:
        """Do the sentinels name another master by now? One thread asks, about once a second: a master that was
        replaced may go on taking writes for seconds, and all of them will be lost."""
        if not self._address.service or time.monotonic() < self._next_look or not self._lock.acquire(blocking=False):
            return False
        try:
            self._next_look = time.monotonic() + _OFTEN
            return self._found is not None and self._look() not in (None, self._found)
        finally:
            self._lock.release()

    def _look(self) -> Node | None:
        """What one sentinel says, if it can be heard at once."""
        try:
            if self._scout is None:
                self._scout = Connection(self._nodes[0], self._quick, as_sentinel=True)
            return self._ask_sentinel(self._scout, self._scout.node)
        except (Lost, Refusal):
            self._dismiss_scout()
            self._nodes.append(self._nodes.pop(0))  # another the next time
            return None

    def _dismiss_scout(self) -> None:
        if self._scout is not None:
            self._scout.close()
            self._scout = None

    def forget(self, node: Node | None = None) -> None:
        """It is not there (any more), or not the master."""
        with self._lock:
            if node is None or node == self._found:
                self._found = None

    def close(self) -> None:
        """Hang up."""
        with self._lock:
            self._dismiss_scout()

    def part_ways(self) -> None:
        """In a forked child: another thread of the parent may have held the lock."""
        self._lock = threading.Lock()
        self._dismiss_scout()

    def is_right(self, connection: Connection) -> bool:
        """Has this server the role for which it was looked for?"""
        return self.is_fixed or connection.role == "master"

    def _first_answer(self, ask: Callable[[Connection, Node], Node | None]) -> Node:
        """Ask one after the other. The one that knew is asked first the next time."""
        complaints = []
        for node in list(self._nodes):
            try:
                connection = Connection(node, self._quick, as_sentinel=bool(self._address.service))
                try:
                    found = ask(connection, node)
                finally:
                    connection.close()
            except (Lost, Refusal) as error:
                complaints.append(f"{shown_nodes([node])}: {error}")
                continue
            if found is None:
                complaints.append(f"{shown_nodes([node])}: does not know")
                continue
            self._nodes.remove(node)
            self._nodes.insert(0, node)
            return found
        raise Lost("; ".join(complaints))

    def _ask_sentinel(self, connection: Connection, node: Node) -> Node | None:
        reply = connection.call("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self._address.service)
        return (reply[0].decode(), int(reply[1])) if reply else None

    def _ask_cluster(self, connection: Connection, node: Node) -> Node | None:
        slot = slot_of(self._address.prefix)
        slots: list[list[Any]] = connection.call("CLUSTER", "SLOTS")
        masters = [((master[0] or b"").decode() or node[0], int(master[1])) for _, _, master, *_ in slots]
        self._nodes += [each for each in dict.fromkeys(masters) if each not in self._nodes]
        for (first, last, *_), master in zip(slots, masters, strict=True):
            if first <= slot <= last:
                return master
        return None


def slot_of(tag: str) -> int:
    """In which of a cluster's slots the keys with this hash tag are."""
    return binascii.crc_hqx(tag.encode(), 0) % _SLOTS
