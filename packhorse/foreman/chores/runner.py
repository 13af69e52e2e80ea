"""The chores' chore_runner: gives each chore its time, one after the other in one thread, on every foreman alike. Those
that can be foreseen come when the poller has seen something for them to do.

A chore that fails is logged and comes round again; it harms neither the others nor the foreman.
"""

from __future__ import annotations

import logging
import math
import random
import threading
import time
from collections.abc import Callable, Iterable

from packhorse.core.clock import SECOND
from packhorse.core.errors import PackhorseError
from packhorse.core.settings import Settings
from packhorse.foreman.background import BackgroundLoop
from packhorse.foreman.chores.chore import AdjustableChore, Chore, PredictableChore
from packhorse.storage.records import Outlook

log = logging.getLogger("packhorse")

_JITTER = 0.2
_LONGEST_FIRST = 1.0  # seconds before a chore's first run
_SHORTEST = 0.001  # seconds between two runs, whatever it asks for


class _Entry:
    """A chore, and when it is its turn."""

    __slots__ = ("at", "chore")

    def __init__(self, chore: Chore, at: float) -> None:
        self.chore = chore
        self.at = at


class ChoreRunner:
    """Chores by when they are due."""

    def __init__(self, chores: Iterable[Chore], now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._failing: set[str] = set()
        self._lock = threading.Lock()  # guards the times of entries, for moments
        # Foremen that were started together shall not come with every chore together.
        self._entries = [
            _Entry(chore, now() + random.uniform(0, min(chore.interval, _LONGEST_FIRST))) for chore in chores
        ]
        self.loop = BackgroundLoop("the chores' timetable", self.step)

    def on_poll(self, outlook: Outlook) -> None:
        """What the poller has seen: some chores come sooner. None comes later, for it may have found out more itself
        in the meantime; one that comes too early finds nothing to do, and knows when to come again."""
        now, is_sooner = self._now(), False
        with self._lock:
            for entry in self._entries:
                due_in = entry.chore.due_in(outlook) if isinstance(entry.chore, PredictableChore) else None
                if due_in is not None and now + due_in / SECOND < entry.at:
                    entry.at = now + due_in / SECOND
                    is_sooner = True
        if is_sooner:
            self.loop.wake()

    def adjust(self, settings: Settings) -> None:
        """The settings were read again."""
        now = self._now()
        for entry in self._entries:
            if isinstance(entry.chore, AdjustableChore):
                entry.chore.adjust(settings)
                with self._lock:
                    entry.at = min(entry.at, now + entry.chore.interval)
        self.loop.wake()

    def step(self) -> float | None:
        """Run what is due; answers how long nothing is."""
        while not self.loop.is_stopped and (entry := self._take()) is not None:
            pause = self._run(entry.chore)
            if pause is None:
                pause = entry.chore.interval * random.uniform(1 - _JITTER, 1 + _JITTER)
            with self._lock:
                entry.at = min(entry.at, self._now() + max(_SHORTEST, pause))
        return max(0.0, min(entry.at for entry in self._entries) - self._now()) if self._entries else None

    def _take(self) -> _Entry | None:
        """The entry whose turn it is. It is put off until it has run, unless the poller says something meanwhile."""
        with self._lock:
            entry = min(self._entries, key=lambda entry: entry.at, default=None)
            if entry is None or entry.at > self._now():
                return None
            entry.at = math.inf
            return entry

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
