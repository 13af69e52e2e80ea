"""At start: take back what former processes of this machine held, if they are surely dead, without waiting for a lease.

Surely dead means that the process number is gone. That says something only to somebody who sees the same numbers:
containers may share a host name and not their processes, so foremen write into their record where they live. Workers of
ours live where their foreman does; those in other languages rarely tell, and are left to their lease then.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Iterable
from pathlib import Path

from packhorse.core.event import Subject
from packhorse.foreman import death
from packhorse.storage.contract import Storage
from packhorse.storage.records import WorkerInfo

log = logging.getLogger("packhorse")

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
    is_alive: Callable[[int], bool] = death.is_alive,
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
