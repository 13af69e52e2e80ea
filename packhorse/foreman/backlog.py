"""What waits for the crew: read once a second in a thread, for scaling, while the lookout sees jobs in line. Jobs of
queues that this crew does not serve do not count, nor those of a paused queue, but for the forced ones.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from packhorse.clock import SECOND
from packhorse.foreman.crew import Crew
from packhorse.foreman.duty import Duty
from packhorse.foreman.scaling import Need
from packhorse.job import QUEUED
from packhorse.storage.contract import Storage
from packhorse.storage.records import Filter, Outlook, QueueInfo

_FORCED_SEEN = 100
_FORCED = Filter(states=frozenset({QUEUED}), forced=True)


class Backlog:
    """The latest reading."""

    def __init__(self, storage: Storage, crew: Crew, wake: Callable[[], None]) -> None:
        self.need: Need | None = None  # None: unknown, because the storage does not answer
        self._storage = storage
        self._crew = crew
        self._wake = wake
        self.duty = Duty("reading the backlog", self.step, longest_retry=2.0)

    def heed(self, outlook: Outlook) -> None:
        """What the lookout has seen."""
        if outlook.queued:
            self.duty.wake()
        elif self.need != Need():
            self.need = Need()
            self._wake()

    def forget(self) -> None:
        """The storage does not answer."""
        self.need = None

    def step(self) -> None:
        """Read it once."""
        try:
            self.need = read_need(self._storage, self._crew.queues)
        except Exception:
            self.forget()
            raise
        self._wake()


def read_need(storage: Storage, served: Collection[str] | None) -> Need:
    """What waits in the queues that are served; None: in any."""
    queues = [queue for queue in storage.queues() if served is None or queue.name in served]
    waiting = {queue.name: queue for queue in queues if queue.counts.get(QUEUED)}
    if not waiting:
        return Need()
    forced = [job.queue for job in storage.find(_FORCED, limit=_FORCED_SEEN).jobs if job.queue in waiting]
    running = [queue for queue in waiting.values() if not queue.is_paused]
    past_pause = [waiting[name] for name in forced if waiting[name].is_paused]
    backlog = len(past_pause) + sum(queue.counts[QUEUED] for queue in running)
    return Need(backlog, _oldest_wait(storage, running + past_pause), len(forced))


def _oldest_wait(storage: Storage, queues: Collection[QueueInfo]) -> float:
    since = [queue.oldest_queued_at for queue in queues if queue.oldest_queued_at is not None]
    return max(0, storage.now() - min(since)) / SECOND if since else 0.0
