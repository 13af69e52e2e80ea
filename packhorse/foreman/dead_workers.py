"""Records the exits of workers, and rescues the jobs of processes that died before this foreman started.

Recording runs in a thread of its own. While the storage is away, exits are kept and retried; if this foreman ends
first, other foremen rescue the jobs.
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
    """The exits that are not in the storage yet."""

    def __init__(self, storage: Storage, spool: Spool | None = None) -> None:
        self._storage = storage
        self._spool = spool or Spool(None)
        self._ended: deque[WorkerExit] = deque()  # only the thread removes them, once they are recorded
        self._changed = threading.Condition()
        self.rescued = 0
        self.loop = BackgroundLoop("recording the exit of a worker", self.step, longest_retry=1.0)

    def put(self, ended: WorkerExit) -> None:
        """Add the exit of a worker."""
        self._ended.append(ended)
        self.loop.wake()

    def step(self) -> None:
        """Record all exits."""
        while self._ended:
            try:
                self._record(self._ended[0])
            except Exception:
                self._ended.rotate(-1)  # try the next one first
                raise
            with self._changed:
                self._ended.popleft()
                self._changed.notify_all()

    def wait(self, seconds: float) -> bool:
        """Wait until all are recorded; return whether they are."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._ended, seconds)

    def _record(self, ended: WorkerExit) -> None:
        self._spool.deliver(self._storage, ended.owner)  # first, so that the storage no longer holds its finished jobs
        if ended.overruns:
            self._storage.finish(ended.overruns)
        if not ended.died:
            self._storage.leave(ended.owner, why=ended.why, ran=ended.ran)
            return
        number = 0
        while taken := self._storage.rescue_owner(ended.owner, why=ended.why, foreman=ended.foreman, ran=ended.ran):
            number += len(taken)
        self.rescued += number
        log.warning("%s; %s rescued", ended.why, "1 job was" if number == 1 else f"{number} jobs were")


# --- at start -----------------------------------------------------------------------------------------------------

PROCESS_SPACE = "process_space"
"""The key in a foreman's record for the processes that it can see."""


def process_space() -> str | None:
    """Identifies this boot of the machine and this container's view of its processes; None if the system does not
    say."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return None


def find_dead(
    workers: Iterable[WorkerInfo],
    *,
    host: str,
    space: str | None,
    is_alive: Callable[[int], bool] = process_tree.is_alive,
) -> list[WorkerInfo]:
    """The workers and foremen whose process ran here and is gone, unless their foreman lives."""
    known = {worker.id: worker for worker in workers}

    def is_dead(worker: WorkerInfo) -> bool:
        space_of_it = worker.info.get(PROCESS_SPACE)
        if space_of_it is None and worker.subject is Subject.WORKER and worker.foreman is None:
            return False  # a foreign worker: it may run in another container with the same host name
        is_here = worker.host == host and worker.pid > 0 and space_of_it in (None, space)
        return is_here and not is_alive(worker.pid)

    def is_orphaned(worker: WorkerInfo) -> bool:
        foreman = known.get(worker.foreman or "")
        # A living foreman records the exits of its own workers.
        return is_dead(worker) and (foreman is None or is_dead(foreman))

    return [worker for worker in known.values() if is_orphaned(worker)]


def rescue_dead_processes(storage: Storage, host: str | None = None) -> int:
    """Rescue the jobs of dead processes of this machine, to run before all others. Return their number."""
    dead = find_dead(storage.workers(), host=host or socket.gethostname(), space=process_space())
    number = 0
    for worker in dead:
        why = f"{worker.subject} {worker.pid} on {worker.host} was gone when a foreman started"
        # On behalf of its own foreman, which is dead too.
        while taken := storage.rescue_owner(worker.id, why=why, foreman=worker.foreman or worker.id, recovered=True):
            number += len(taken)
    if number:
        log.warning("rescued %d jobs of dead processes on this machine; they run first", number)
    return number
