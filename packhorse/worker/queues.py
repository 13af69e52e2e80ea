"""The queues that a worker serves: those of its tasks, and others that hold jobs of a task it knows.

The others are found in the storage's tallies: when the worker starts, when it is woken and finds nothing, and when its
foreman names one; without a foreman the worker reads them every few seconds. A queue that has held no such job for a
while is dropped.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping

from packhorse.core.job import QUEUED
from packhorse.core.task import RegisteredTask, weights_of
from packhorse.monitor.served_queues import EVERY_QUEUE, QueuePatterns, is_pattern, matches_patterns, queues_to_serve
from packhorse.storage.contract import OTHER_QUEUES
from packhorse.storage.records import Tally

KEEP = 600.0
"""Seconds that a queue is served after it last held jobs. Clients forget its name sooner: the first job after that
wakes every worker that may serve it."""
LOOK_AGAIN = 0.25
"""Seconds between two reads of the tallies by a worker that is woken again and again without a job."""
LOOK_ALONE = 5.0
"""Seconds between two reads by a worker without a foreman, idle or not."""
STAY_AWAY = 10.0
"""Seconds for which a worker does not serve a queue of others in which it found a job of an unknown task."""


class ServedQueues:
    """Of one worker. `own` are the queues of its tasks and those named on the command line."""

    def __init__(
        self, tasks: Iterable[RegisteredTask], choice: QueuePatterns = None, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._tasks = {task.name: task for task in tasks}
        self.choice = choice
        self._now = now
        self.own = {queue: 1 for queue in choice or () if not is_pattern(queue)}
        self.own |= {
            queue: weight
            for queue, weight in weights_of(self._tasks.values()).items()
            if matches_patterns(queue, choice)
        }
        self._lock = threading.Lock()  # the foreman's messages come in on a thread of their own
        self._others: dict[str, int] = {}
        self._seen_at: dict[str, float] = {}
        self._away_until: dict[str, float] = {}
        self._read_at = float("-inf")
        self.has_more = choice is None or any(is_pattern(word) for word in choice)  # than its own
        self._queues: dict[str, int] = {}
        self._to_wait_for: dict[str, int] = {}
        self._update()

    @property
    def queues(self) -> dict[str, int]:
        """All, with their weights, as `reserve` takes them."""
        self._return_to_queues()
        return self._queues

    @property
    def to_wait_for(self) -> dict[str, int]:
        """The same for `wait`."""
        self._return_to_queues()
        return self._to_wait_for

    @property
    def description(self) -> list[str]:
        """What the worker's record says about its queues."""
        return [EVERY_QUEUE] if self.choice is None else list(self.choice)

    def should_look(self, every: float = LOOK_AGAIN) -> bool:
        """Is it time to read the tallies again, after so many seconds?"""
        now = self._now()
        if not self.has_more or now < self._read_at + every:
            return False
        self._read_at = now
        return True

    def look_into(self, tallies: Iterable[Tally]) -> bool:
        """Serve the queues that the tallies show, and drop those that have been empty for long. True: there is a new
        one."""
        return self.add(queues_to_serve(tallies, self._tasks, self.choice))

    def add(self, found: Mapping[str, Collection[str]]) -> bool:
        """Serve these queues, which hold jobs of these tasks. True: there is a new one."""
        with self._lock:
            now, before = self._now(), self._queues
            for queue, tasks in found.items():
                known = [self._tasks[task] for task in tasks if task in self._tasks]
                if queue not in self.own and known and self.has_more:
                    self._others[queue] = max(task.options.weight for task in known)
                    self._seen_at[queue] = now
            for queue, at in list(self._seen_at.items()):
                if now - at > KEEP:
                    del self._others[queue], self._seen_at[queue]
            self._update()
            return not before.keys() >= self._queues.keys()

    def is_of_others(self, queue: str) -> bool:
        """Is this a queue that neither a task nor the command line names?"""
        return queue in self._others

    def waits_in(self, queue: str, tallies: Iterable[Tally]) -> bool:
        """Does a job of a known task wait in this queue?"""
        return any(
            tally.queue == queue and tally.state is QUEUED and tally.number > 0 and tally.task in self._tasks
            for tally in tallies
        )

    def leave(self, queue: str) -> None:
        """Do not serve this queue for a while: its jobs belong to other programs."""
        with self._lock:
            if queue in self._others:
                self._away_until[queue] = self._now() + STAY_AWAY
                self._update()

    def _return_to_queues(self) -> None:
        """Serve the queues again that were left for a while, when that is over."""
        if self._away_until:  # rare
            with self._lock:
                self._update()

    def _update(self) -> None:
        now = self._now()
        self._away_until = {queue: until for queue, until in self._away_until.items() if until > now}
        others = {queue: weight for queue, weight in self._others.items() if queue not in self._away_until}
        queues = {**self.own, **others}
        if queues == self._queues:
            return
        self._queues = queues
        self._to_wait_for = {**queues, OTHER_QUEUES: 1} if self.has_more else queues
