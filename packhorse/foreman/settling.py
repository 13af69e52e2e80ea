"""Settling: writes down what became of workers that have ended, in a thread, so that the foreman's loop never waits for
the storage. While that is away, the workers are remembered and tried again; others rescue them if we end before.
"""

from __future__ import annotations

import logging
import threading
from collections import deque

from packhorse.foreman.crew import Ended
from packhorse.foreman.duty import Duty
from packhorse.storage.contract import Storage

log = logging.getLogger("packhorse")


class Settling:
    """The workers whose end the storage does not know yet."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._ended: deque[Ended] = deque()
        self._is_done = threading.Event()
        self._is_done.set()
        self.rescued = 0
        self.duty = Duty("settling the end of a worker", self.step, longest_retry=1.0)

    def put(self, ended: Ended) -> None:
        """A worker has ended."""
        self._is_done.clear()
        self._ended.append(ended)
        self.duty.wake()

    def step(self) -> None:
        """Settle all there are."""
        while self._ended:
            ended = self._ended.popleft()
            try:
                self._settle(ended)
            except Exception:
                self._ended.append(ended)
                raise
        self._is_done.set()
        if self._ended:  # one came in between the last two lines
            self.duty.wake()

    def wait(self, seconds: float) -> bool:
        """True: all is settled."""
        return self._is_done.wait(seconds) and not self._ended

    def _settle(self, ended: Ended) -> None:
        if not ended.died:
            self._storage.leave(ended.owner, why=ended.why)
            return
        number = 0
        while taken := self._storage.rescue_owner(ended.owner, why=ended.why, ran=ended.ran):
            number += len(taken)
        self.rescued += number
        log.warning("%s; %s taken back", ended.why, "1 job was" if number == 1 else f"{number} jobs were")
