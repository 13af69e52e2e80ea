"""Writes down what became of workers that have ended, in a thread, so that the foreman's loop never waits for
the storage. While that is away, the workers are remembered and tried again; others rescue them if we end before.
"""

from __future__ import annotations

import logging
import socket
import threading
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path

from packhorse.core.event import Subject
from packhorse.foreman import process_tree
from packhorse.foreman.background import BackgroundLoop
from packhorse.foreman.processes import WorkerExit
from packhorse.storage.contract import Storage
from packhorse.storage.records import WorkerInfo
from packhorse.worker.spool import Spool

log = logging.getLogger("packhorse")


class ExitRecorder:
    """The workers whose end the storage does not know yet."""

    def __init__(self, storage: Storage, spool: Spool | None = None) -> None:
        self._storage = storage
        self._spool = spool or Spool(None)
        self._ended: deque[WorkerExit] = (
            deque()
        )  # each stays in it until the storage knows; the thread alone takes them out
        self._changed = threading.Condition()
        self.rescued = 0
        self.loop = BackgroundLoop("settling the end of a worker", self.step, longest_retry=1.0)

    def put(self, ended: WorkerExit) -> None:
        """A worker has ended."""
        self._ended.append(ended)
        self.loop.wake()

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

    def _settle(self, ended: WorkerExit) -> None:
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


# --- at start -----------------------------------------------------------------------------------------------------

PROCESS_SPACE = "process_space"
"""Where a foreman's record says which processes it sees."""


def process_space() -> str | None:
    """Names this boot of the machine and this container's view of processes; None: the system does not tell."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return None


def surely_dead(
    workers: Iterable[WorkerInfo],
    *,
    host: str,
    space: str | None,
    is_alive: Callable[[int], bool] = process_tree.is_alive,
) -> list[WorkerInfo]:
    """Those among these workers and foremen whose process was here and is gone, and whose foreman is gone too."""
    known = {worker.id: worker for worker in workers}

    def is_dead(worker: WorkerInfo) -> bool:
        told = worker.info.get(PROCESS_SPACE)
        if told is None and worker.subject is Subject.WORKER and worker.foreman is None:
            return False  # of another language: it may live in a container that bears this name, too
        is_here = worker.host == host and worker.pid > 0 and told in (None, space)
        return is_here and not is_alive(worker.pid)

    def is_former(worker: WorkerInfo) -> bool:
        foreman = known.get(worker.foreman or "")
        # A worker whose foreman lives is that one's to settle.
        return is_dead(worker) and (foreman is None or is_dead(foreman))

    return [worker for worker in known.values() if is_former(worker)]


def rescue_former(storage: Storage, host: str | None = None) -> int:
    """Take back the jobs of former processes; they are the first to be run again. Answers how many there were."""
    dead = surely_dead(storage.workers(), host=host or socket.gethostname(), space=process_space())
    number = 0
    for worker in dead:
        why = f"{worker.subject} {worker.pid} on {worker.host} was gone when a foreman started"
        # In the place of its own foreman, which is dead too.
        while taken := storage.rescue_owner(worker.id, why=why, foreman=worker.foreman or worker.id, recovered=True):
            number += len(taken)
    if number:
        log.warning("%d jobs of former processes on this machine were taken back and go first", number)
    return number
