"""The orders that operators leave in the storage for this foreman: read once a second in a thread, followed by the main
loop. Each is followed once.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator

from packhorse.event import Event, Kind, Subject
from packhorse.foreman.duty import Duty
from packhorse.foreman.pulse import Record
from packhorse.order import Order
from packhorse.storage.contract import Storage
from packhorse.storage.records import EventFilter

log = logging.getLogger("packhorse")

_EVERY = 1.0
_PAGE = 100
_LONGEST_WRITE = 120.0
"""Seconds that no storage takes to write an order."""


class Orders:
    """Those that have come in. `wake` wakes the foreman's loop."""

    def __init__(self, storage: Storage, record: Record, wake: Callable[[], None]) -> None:
        self.followed: int | None = None  # the id of the last one that was taken, by which operators see that it was
        self._storage = storage
        self._record = record
        self._wake = wake
        self._waiting: deque[tuple[int, Order | None]] = deque()
        self._id: str | None = None
        self._edge = 0  # the id behind which orders may still come
        self._seen: dict[int, float] = {}  # when those behind the edge were seen
        self.duty = Duty("looking for orders", self.step, longest_retry=2.0)

    def step(self) -> float:
        """Look once."""
        owner = self._record.id
        if owner != self._id:
            self._edge, self._id = self._joined_at(owner), owner
            self._seen.clear()
        found = [event for event in self._behind_edge(owner) if event.id not in self._seen]
        for event in found:
            self._seen[event.id] = time.monotonic()
            self._waiting.append((event.id, Order.of(event)))
        self._move_edge()
        if found:
            self._wake()
        return _EVERY

    def _behind_edge(self, owner: str) -> list[Event]:
        """The orders that are there, the oldest first. Asked for from the newest back: whoever asks on from the last
        one is shown nothing beside which somebody else still writes, for as long as he does."""
        found: list[Event] = []
        before: int | None = None
        while True:
            where = EventFilter(
                subject=Subject.FOREMAN, kind=Kind.ORDERED, owner=owner, after=self._edge, before=before
            )
            page = self._storage.events(where, limit=_PAGE, newest_first=True)
            found += page
            if len(page) < _PAGE:
                return found[::-1]
            before = page[-1].id

    def _move_edge(self) -> None:
        """So long after an order has come, none that was written before it can still come."""
        now = time.monotonic()
        for number in sorted(self._seen):
            if now - self._seen[number] < _LONGEST_WRITE:
                break
            self._edge = number
            del self._seen[number]

    def _joined_at(self, owner: str) -> int:
        """The event with which this foreman began: none of its orders is older, and so none of those is looked at."""
        where = EventFilter(subject=Subject.FOREMAN, kind=Kind.STARTED, owner=owner)
        began = self._storage.events(where, limit=1, newest_first=True)
        return began[0].id if began else 0

    def take(self) -> Iterator[Order]:
        """Those that have not been followed yet, the oldest first."""
        while self._waiting:
            number, order = self._waiting.popleft()
            self.followed = max(number, self.followed or 0)
            if order is None:
                log.warning("an operator has left an order that this version does not know")
            else:
                yield order
