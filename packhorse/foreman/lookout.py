"""The lookout: one look a second at what lies ahead, on behalf of all duties, so that an idle foreman asks its storage
next to nothing else. Each is told what was seen, and asks on only when there is something for it. While nothing happens
it looks less often.
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
_EVERY_WHEN_IDLE = 2.5
_IDLE_AFTER = 15.0
"""Seconds without a job, an order or a worker that comes, after which it looks less often."""


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
        self._order: str | None = None  # the last that the crew was told; who starts later asks the storage
        self._busy_at = boot_time()
        self._done = 0
        self.rests = False  # it looks less often
        self.duty = Duty("looking ahead", self.step, longest_retry=1.0)

    def step(self) -> float:
        """Look once, and tell everybody."""
        owners = [member.id for member in self._crew.members if member.is_online]
        foreman, sent = self._record.id, boot_time()
        try:
            outlook = self._storage.poll(foreman, owners, after=self._orders.look_after(foreman))
        except Exception:
            self._backlog.forget()
            raise
        self._heartbeat.heed(outlook, sent, boot_time())
        self._timetable.heed(outlook)
        self._backlog.heed(outlook)
        self._orders.heed(outlook, foreman)
        self._removal.heed(outlook, sent)
        if outlook.order != self._order:
            self._order = outlook.order
            self._crew.tell({"do": "order", "order": outlook.order})
        if outlook.queued or outlook.stops or outlook.ordered or not self._is_crew_idle():
            self._busy_at = sent
        self.rests = sent - self._busy_at >= _IDLE_AFTER
        return _EVERY_WHEN_IDLE if self.rests else _EVERY

    def stir(self) -> None:
        """A worker has begun a job: look, and more often from now on."""
        if self.rests:
            self.rests = False
            self.duty.wake()

    def _is_crew_idle(self) -> bool:
        """Are there workers, all of which wait for jobs? Where there is none, nobody else looks for jobs."""
        members = self._crew.members
        done = sum(member.report.get("done", 0) for member in members)
        is_same, self._done = done == self._done, done
        is_waiting = all(member.is_online and not member.report.get("busy") for member in members)
        return bool(members) and is_same and is_waiting
