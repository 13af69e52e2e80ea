"""What waits for the crew: read once a second in a thread, for scaling, while the lookout sees jobs in line. Jobs of
queues that this crew does not serve do not count, nor those of a paused queue, but for the forced ones. A queue that
holds jobs of a task of theirs is served, whatever its name: the workers are told of it.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Collection, Mapping

from packhorse.core.clock import SECOND
from packhorse.core.job import QUEUED
from packhorse.foreman.crew import Crew
from packhorse.foreman.duty import Duty
from packhorse.foreman.member import Serving
from packhorse.foreman.scaling import Need
from packhorse.monitor.served_queues import queues_to_serve
from packhorse.storage.contract import Storage
from packhorse.storage.records import Filter, PollResult, QueueInfo

Others = dict[str, list[str]]
"""Queues with the tasks whose jobs they hold."""

_FORCED_SEEN = 100
_TELL_AGAIN = 5.0
_MOST_TOLD = 1_000
_FORCED = Filter(states=frozenset({QUEUED}), forced=True)


class Backlog:
    """The latest reading."""

    def __init__(self, storage: Storage, crew: Crew, wake: Callable[[], None]) -> None:
        self.need: Need | None = None  # None: unknown, because the storage does not answer
        self._storage = storage
        self._crew = crew
        self._wake = wake
        self._told: Others = {}
        self._tell_again = 0.0
        self.duty = Duty("reading the backlog", self.step, longest_retry=2.0)

    def heed(self, outlook: PollResult) -> None:
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
            self.need, others = read_need(self._storage, self._crew.serving)
            self._tell(others, time.monotonic())
            if self.need.backlog:
                self._crew.wake_idle()
        except Exception:
            self.forget()
            raise
        self._wake()

    def _tell(self, others: Others, now: float) -> None:
        """Have the workers serve these queues; those that have left one meanwhile are told again after a while."""
        if others and (others.keys() != self._told.keys() or now >= self._tell_again):
            self._told, self._tell_again = others, now + _TELL_AGAIN
            self._crew.tell({"do": "serve", "queues": dict(itertools.islice(others.items(), _MOST_TOLD))})


def read_need(storage: Storage, serving: Serving | None) -> tuple[Need, Others]:
    """What waits in the queues that are served, None: in any; and those of them that are not the workers' own."""
    waiting = {queue.name: queue for queue in storage.queues() if queue.counts.get(QUEUED)}
    others: Others = {}
    if serving is not None:
        if serving.choice and not waiting.keys() <= serving.queues:
            found = queues_to_serve(storage.tallies(), serving.tasks, serving.choice)
            others = {name: sorted(tasks) for name, tasks in found.items() if name not in serving.queues}
        waiting = {name: queue for name, queue in waiting.items() if name in serving.queues or name in others}
    return _need_of(storage, waiting), others


def _need_of(storage: Storage, waiting: Mapping[str, QueueInfo]) -> Need:
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
