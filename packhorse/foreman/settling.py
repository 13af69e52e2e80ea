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
from packhorse.worker.spool import Spool

log = logging.getLogger("packhorse")


class Settling:
    """The workers whose end the storage does not know yet."""

    def __init__(self, storage: Storage, spool: Spool | None = None) -> None:
        self._storage = storage
        self._spool = spool or Spool(None)
        self._ended: deque[Ended] = deque()  # each stays in it until the storage knows; the thread alone takes them out
        self._changed = threading.Condition()
        self.rescued = 0
        self.duty = Duty("settling the end of a worker", self.step, longest_retry=1.0)

    def put(self, ended: Ended) -> None:
        """A worker has ended."""
        self._ended.append(ended)
        self.duty.wake()

    def step(self) -> None:
        """Settle all there are."""
        while self._ended:
            try:
                self._settle(self._ended[0])
            except Exception:
                self._ended.rotate(-1)  # the next one may have more luck
                raise
            with self._changed:
                self._ended.popleft()
                self._changed.notify_all()

    def wait(self, seconds: float) -> bool:
        """True: all is settled."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._ended, seconds)

    def _settle(self, ended: Ended) -> None:
        self._spool.deliver(self._storage, ended.owner)  # first: then its jobs are not held any more
        if ended.overruns:
            self._storage.finish(ended.overruns)
        if not ended.died:
            self._storage.leave(ended.owner, why=ended.why, ran=ended.ran)
            return
        number = 0
        while taken := self._storage.rescue_owner(ended.owner, why=ended.why, foreman=ended.foreman, ran=ended.ran):
            number += len(taken)
        self.rescued += number
        log.warning("%s; %s taken back", ended.why, "1 job was" if number == 1 else f"{number} jobs were")
