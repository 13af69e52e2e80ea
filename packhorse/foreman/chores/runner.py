"""Runs the chores of a foreman, one after the other in one thread. Predictable ones run when the poller sees that they
are due.

A chore that fails is logged and runs again later; it affects neither the others nor the foreman.
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
from packhorse.storage.records import PollResult

log = logging.getLogger("packhorse")

_JITTER = 0.2
_LONGEST_FIRST = 1.0  # seconds before a chore's first run
_SHORTEST = 0.001  # seconds between two runs, at least


class _Entry:
    """A chore, and the time of its next run."""

    __slots__ = ("at", "chore")

    def __init__(self, chore: Chore, at: float) -> None:
        self.chore = chore
        self.at = at


class ChoreRunner:
    """Chores with the times of their next runs."""

    def __init__(self, chores: Iterable[Chore], now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._failing: set[str] = set()
        self._lock = threading.Lock()  # guards the times of the entries
        # Spread the chores of foremen that started together.
        self._entries = [
            _Entry(chore, now() + random.uniform(0, min(chore.interval, _LONGEST_FIRST))) for chore in chores
        ]
        self.loop = BackgroundLoop("running the chores", self.step)

    def on_poll(self, result: PollResult) -> None:
        """Apply the poller's result: some chores run sooner. None runs later, because a chore may know more by now; one
        that runs too early finds nothing to do."""
        now, is_sooner = self._now(), False
        with self._lock:
            for entry in self._entries:
                due_in = entry.chore.due_in(result) if isinstance(entry.chore, PredictableChore) else None
                if due_in is not None and now + due_in / SECOND < entry.at:
                    entry.at = now + due_in / SECOND
                    is_sooner = True
        if is_sooner:
            self.loop.wake()

    def adjust(self, settings: Settings) -> None:
        """Apply settings that were read again."""
        now = self._now()
        for entry in self._entries:
            if isinstance(entry.chore, AdjustableChore):
                entry.chore.adjust(settings)
                with self._lock:
                    entry.at = min(entry.at, now + entry.chore.interval)
        self.loop.wake()

    def step(self) -> float | None:
        """Run the chores that are due; return the seconds until the next one."""
        while not self.loop.is_stopped and (entry := self._take()) is not None:
            pause = self._run(entry.chore)
            if pause is None:
                pause = entry.chore.interval * random.uniform(1 - _JITTER, 1 + _JITTER)
            with self._lock:
                entry.at = min(entry.at, self._now() + max(_SHORTEST, pause))
        return max(0.0, min(entry.at for entry in self._entries) - self._now()) if self._entries else None

    def _take(self) -> _Entry | None:
        """The entry that is due, postponed until it has run or the poller makes it due again."""
        with self._lock:
            entry = min(self._entries, key=lambda entry: entry.at, default=None)
            if entry is None or entry.at > self._now():
                return None
            entry.at = math.inf
            return entry

    def _run(self, chore: Chore) -> float | None:
        try:
            pause = chore.run()
        except Exception as error:  # noqa: BLE001 - an error of a chore must not end the runner
            self._log_failure(chore, error)
            return None
        if chore.name in self._failing:
            self._failing.remove(chore.name)
            log.info("the chore %s works again", chore.name)
        return pause

    def _log_failure(self, chore: Chore, error: Exception) -> None:
        """Log the first error until the chore works again: some chores run four times a second."""
        if chore.name not in self._failing:
            self._failing.add(chore.name)
            trace = None if isinstance(error, PackhorseError) else error
            log.warning("the chore %s failed: %s", chore.name, error, exc_info=trace)
