"""The queues that a worker serves: those of its tasks, and others that hold jobs of a task it knows.

The latter are found in the storage's tallies: when the worker starts, when it is woken and finds nothing, and when its
foreman has seen one; without a foreman it looks every few seconds. A queue that has held no such job for a while is
left again.
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
"""Seconds for which a queue is served after it was last seen with jobs; longer than programs remember its name, so that
whoever brings the next job after that wakes those who may serve it."""
LOOK_AGAIN = 0.25
"""Seconds between two looks at the tallies by a worker that is woken for nothing again and again."""
LOOK_ALONE = 5.0
"""Seconds between two looks by a worker, idle or not, that has no foreman to tell it."""
STAY_AWAY = 10.0
"""Seconds for which a worker leaves a queue of others in which it has met a job that it cannot run."""


class ServedQueues:
    """Of one worker. `own` are the queues of its tasks and those that were named."""

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
        self._lock = threading.Lock()  # the foreman's messages come in on another thread than the loop's
        self._others: dict[str, int] = {}
        self._seen_at: dict[str, float] = {}
        self._away_until: dict[str, float] = {}
        self._looked_at = float("-inf")
        self.has_more = choice is None or any(is_pattern(word) for word in choice)  # than its own
        self._queues: dict[str, int] = {}
        self._to_wait_for: dict[str, int] = {}
        self._put_together()

    @property
    def queues(self) -> dict[str, int]:
        """All, with their weights, as `reserve` takes them."""
        self._come_back()
        return self._queues

    @property
    def to_wait_for(self) -> dict[str, int]:
        """The same for `wait`."""
        self._come_back()
        return self._to_wait_for

    @property
    def told(self) -> list[str]:
        """What the worker's record says."""
        return [EVERY_QUEUE] if self.choice is None else list(self.choice)

    def should_look(self, every: float = LOOK_AGAIN) -> bool:
        """Is it worth to read the tallies again, after so many seconds?"""
        now = self._now()
        if not self.has_more or now < self._looked_at + every:
            return False
        self._looked_at = now
        return True

    def look_into(self, tallies: Iterable[Tally]) -> bool:
        """Serve what the tallies show, and leave what has been empty for long. True: there is another queue now."""
        return self.add(queues_to_serve(tallies, self._tasks, self.choice))

    def add(self, found: Mapping[str, Collection[str]]) -> bool:
        """Serve these queues, which hold jobs of these tasks. True: there is another one now."""
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
            self._put_together()
            return not before.keys() >= self._queues.keys()

    def is_of_others(self, queue: str) -> bool:
        """Is this a queue that no task here names, and that was not asked for by name?"""
        return queue in self._others

    def waits_in(self, queue: str, tallies: Iterable[Tally]) -> bool:
        """Is a job of a task that is known here in line in this queue?"""
        return any(
            tally.queue == queue and tally.state is QUEUED and tally.number > 0 and tally.task in self._tasks
            for tally in tallies
        )

    def met_unknown(self, queue: str) -> None:
        """A job in this queue is of a task that is not known here, and nothing is to be gained by going on: jobs of
        other programs must not be handed back and forth."""
        with self._lock:
            if queue in self._others:
                self._away_until[queue] = self._now() + STAY_AWAY
                self._put_together()

    def _come_back(self) -> None:
        """To the queues that were left for a while, when it is over."""
        if self._away_until:  # hardly ever
            with self._lock:
                self._put_together()

    def _put_together(self) -> None:
        now = self._now()
        self._away_until = {queue: until for queue, until in self._away_until.items() if until > now}
        others = {queue: weight for queue, weight in self._others.items() if queue not in self._away_until}
        queues = {**self.own, **others}
        if queues == self._queues:
            return
        self._queues = queues
        self._to_wait_for = {**queues, OTHER_QUEUES: 1} if self.has_more else queues
