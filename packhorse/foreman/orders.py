"""The orders that operators leave in the storage for this foreman: read in a thread when the poller has seen one, and
followed by the main loop. Each is followed once.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator

from msgspec.structs import replace

from packhorse.core.event import Event, ForemanOrder, Kind, Subject
from packhorse.foreman.background import BackgroundLoop
from packhorse.foreman.heartbeat import ForemanRecord
from packhorse.storage.contract import Storage
from packhorse.storage.records import EventFilter, Outlook

log = logging.getLogger("packhorse")

_PAGE = 100
_LONGEST_WRITE = 120.0
"""Seconds that no storage takes to write an order."""


class Orders:
    """Those that have come in. `wake` wakes the foreman's loop."""

    def __init__(self, storage: Storage, record: ForemanRecord, wake: Callable[[], None]) -> None:
        self.taken: int | None = None  # the id of the one that is being followed
        self.followed: int | None = None  # the id of the last one that was, by which operators see that it was
        self._storage = storage
        self._record = record
        self._wake = wake
        self._waiting: deque[tuple[int, ForemanOrder | None]] = deque()
        self._id: str | None = None
        self.edge = 0  # the id behind which orders may still come
        self._looked_for, self._looked_to = "", 0  # how far the poller has come, where nothing is seen late
        self._seen: set[int] = set()  # the orders behind the edge that were taken
        self._next_edge = (0, 0.0)  # an event about foremen, and when it was the newest
        self.loop = BackgroundLoop("looking for orders", self.step, longest_retry=2.0)

    def look_after(self, foreman: str) -> int:
        """The event behind which the poller looks for orders to this foreman. Where events may come to be seen late,
        it is the edge, so that it sees an order for as long as another one may come that was written before."""
        return self._looked_to if foreman == self._looked_for else self.edge

    def on_poll(self, outlook: Outlook, foreman: str) -> None:
        """What the poller has seen when it looked for this foreman."""
        is_set_back = 0 < outlook.looked_to < self.look_after(foreman)  # a server has lost what it had told last
        if outlook.looked_to:
            self._looked_for, self._looked_to = foreman, outlook.looked_to
        if outlook.ordered or is_set_back or self._id != self._record.id:
            self.loop.wake()

    def step(self) -> float:
        """Read once."""
        owner = self._record.id
        if owner != self._id:
            self.edge, self._id = self._newest(EventFilter(kind=Kind.STARTED, owner=owner)), owner
            self._next_edge = (self.edge, time.monotonic())
            self._seen.clear()
        found = [event for event in self._behind_edge(owner) if event.id not in self._seen]
        for event in found:
            self._seen.add(event.id)
            self._waiting.append((event.id, ForemanOrder.of(event)))
        self._move_edge()
        if found:
            self._wake()
        return _LONGEST_WRITE

    def _behind_edge(self, owner: str) -> list[Event]:
        """The orders that are there, the oldest first. Asked for from the newest back: whoever asks on from the last
        one is shown nothing beside which somebody else still writes, for as long as he does."""
        found: list[Event] = []
        before: int | None = None
        while True:
            where = EventFilter(subject=Subject.FOREMAN, kind=Kind.ORDERED, owner=owner, after=self.edge, before=before)
            page = self._storage.events(where, limit=_PAGE, newest_first=True)
            found += page
            if len(page) < _PAGE:
                return found[::-1]
            before = page[-1].id

    def _move_edge(self) -> None:
        """So long after an event has come, none that was written before it can still come; what is there was read."""
        number, seen_at = self._next_edge
        if time.monotonic() - seen_at >= _LONGEST_WRITE:
            self.edge = number
            self._seen = {order for order in self._seen if order > number}
            self._next_edge = (self._newest(EventFilter()), time.monotonic())

    def _newest(self, where: EventFilter) -> int:
        """The newest event about foremen that is like this; 0: there is none."""
        found = self._storage.events(replace(where, subject=Subject.FOREMAN), limit=1, newest_first=True)
        return found[0].id if found else 0

    def take(self) -> Iterator[ForemanOrder]:
        """Those not followed yet, the oldest first. One counts as followed when the next is asked for."""
        while self._waiting:
            self.taken, order = self._waiting.popleft()
            if order is None:
                log.warning("an operator has left an order that this version does not know")
            else:
                yield order
            # Not before: whoever reads it looks at what the order has changed.
            self.followed = max(self.taken, self.followed or 0)
