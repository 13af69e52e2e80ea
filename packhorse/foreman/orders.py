"""The orders that operators leave in the storage for this foreman: read once a second in a thread, followed by the main
loop. Each is followed once.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator

from packhorse.event import Kind, Subject
from packhorse.foreman.duty import Duty
from packhorse.foreman.pulse import Record
from packhorse.order import Order
from packhorse.storage.contract import Storage
from packhorse.storage.records import EventFilter

log = logging.getLogger("packhorse")

_EVERY = 1.0


class Orders:
    """Those that have come in. `wake` wakes the foreman's loop."""

    def __init__(self, storage: Storage, record: Record, wake: Callable[[], None]) -> None:
        self.followed: int | None = None  # the id of the last one that was taken, by which operators see that it was
        self._storage = storage
        self._record = record
        self._wake = wake
        self._waiting: deque[tuple[int, Order | None]] = deque()
        self._id: str | None = None
        self._last = 0
        self.duty = Duty("looking for orders", self.step, longest_retry=2.0)

    def step(self) -> float:
        """Look once."""
        owner = self._record.id
        if owner != self._id:
            self._last, self._id = self._joined_at(owner), owner
        found = self._storage.events(
            EventFilter(subject=Subject.FOREMAN, kind=Kind.ORDERED, owner=owner, after=self._last)
        )
        for event in found:
            self._last = event.id
            self._waiting.append((event.id, Order.of(event)))
        if found:
            self._wake()
        return _EVERY

    def _joined_at(self, owner: str) -> int:
        """The event with which this foreman began: none of its orders is older, and so none of those is looked at."""
        where = EventFilter(subject=Subject.FOREMAN, kind=Kind.STARTED, owner=owner)
        began = self._storage.events(where, limit=1, newest_first=True)
        return began[0].id if began else 0

    def take(self) -> Iterator[Order]:
        """Those that have not been followed yet, the oldest first."""
        while self._waiting:
            number, order = self._waiting.popleft()
            self.followed = number
            if order is None:
                log.warning("an operator has left an order that this version does not know")
            else:
                yield order
