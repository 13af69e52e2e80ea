"""The lookout: one look a second at what lies ahead, on behalf of all duties, so that an idle foreman asks its storage
next to nothing else. Each is told what was seen, and asks on only when there is something for it.
"""

from __future__ import annotations

from packhorse.foreman.backlog import Backlog
from packhorse.foreman.crew import Crew
from packhorse.foreman.duty import Duty
from packhorse.foreman.heartbeat import Heartbeat, boot_time
from packhorse.foreman.orders import Orders
from packhorse.foreman.pulse import Record
from packhorse.foreman.removal import Removal
from packhorse.foreman.timetable import Timetable
from packhorse.storage.contract import Storage

_EVERY = 1.0


class Lookout:
    """Looks for one foreman."""

    def __init__(
        self,
        storage: Storage,
        crew: Crew,
        record: Record,
        heartbeat: Heartbeat,
        backlog: Backlog,
        orders: Orders,
        timetable: Timetable,
    ) -> None:
        self._storage = storage
        self._crew = crew
        self._record = record
        self._heartbeat = heartbeat
        self._backlog = backlog
        self._orders = orders
        self._timetable = timetable
        self._removal = Removal(storage)
        self.duty = Duty("looking ahead", self.step, longest_retry=1.0)

    def step(self) -> float:
        """Look once, and tell everybody."""
        owners = [member.id for member in self._crew.members if member.is_online]
        sent = boot_time()
        try:
            outlook = self._storage.outlook(self._record.id, owners, after=self._orders.edge)
        except Exception:
            self._backlog.forget()
            raise
        self._heartbeat.heed(outlook, sent, boot_time())
        self._timetable.heed(outlook)
        self._backlog.heed(outlook)
        self._orders.heed(outlook)
        self._removal.heed(outlook, sent)
        return _EVERY
