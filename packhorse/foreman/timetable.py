"""The chores' timetable: gives each chore its time, one after the other in one thread, on every foreman alike.

A chore that fails is logged and comes round again; it harms neither the others nor the foreman.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import random
import time
from collections.abc import Callable, Iterable

from packhorse.chores.chore import Chore
from packhorse.errors import PackhorseError
from packhorse.foreman.duty import Duty

log = logging.getLogger("packhorse")

_JITTER = 0.2
_LONGEST_FIRST = 1.0  # seconds before a chore's first run
_SHORTEST = 0.001  # seconds between two runs, whatever it asks for


class Timetable:
    """Chores by when they are due."""

    def __init__(self, chores: Iterable[Chore], now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._order = itertools.count()
        self._failing: set[str] = set()
        # Foremen that were started together shall not come with every chore together.
        self._due = [
            (now() + random.uniform(0, min(chore.interval, _LONGEST_FIRST)), next(self._order), chore)
            for chore in chores
        ]
        heapq.heapify(self._due)
        self.duty = Duty("the chores' timetable", self.step)

    def step(self) -> float | None:
        """Run what is due; answers how long nothing is."""
        while self._due and self._due[0][0] <= self._now() and not self.duty.is_stopped:
            _, _, chore = heapq.heappop(self._due)
            pause = self._run(chore)
            if pause is None:
                pause = chore.interval * random.uniform(1 - _JITTER, 1 + _JITTER)
            heapq.heappush(self._due, (self._now() + max(_SHORTEST, pause), next(self._order), chore))
        return max(0.0, self._due[0][0] - self._now()) if self._due else None

    def _run(self, chore: Chore) -> float | None:
        try:
            pause = chore.run()
        except Exception as error:  # noqa: BLE001 - a chore's failure is never the foreman's
            self._tell(chore, error)
            return None
        if chore.name in self._failing:
            self._failing.remove(chore.name)
            log.info("the chore %s works again", chore.name)
        return pause

    def _tell(self, chore: Chore, error: Exception) -> None:
        """Once until it works again: some chores come round four times a second."""
        if chore.name not in self._failing:
            self._failing.add(chore.name)
            trace = None if isinstance(error, PackhorseError) else error
            log.warning("the chore %s failed: %s", chore.name, error, exc_info=trace)
