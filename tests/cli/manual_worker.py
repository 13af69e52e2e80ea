"""A worker by hand, in a thread: takes the jobs of some queues and ends each as it is told."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from packhorse.core.job import Job
from packhorse.core.outcome import Outcome
from packhorse.storage import Storage, open_storage
from packhorse.storage.records import WorkerInfo

Work = Callable[[Storage, Job], Outcome | None]


@contextmanager
def worker(url: str, work: Work, *queues: str) -> Iterator[None]:
    """Work for the length of the block; `work` gets each started job and answers its outcome."""
    storage = open_storage(url)
    storage.join(WorkerInfo("by-hand", queues=list(queues), concurrency=1))
    stop = threading.Event()

    def loop() -> None:
        while not stop.is_set():
            for job in storage.reserve("by-hand", dict.fromkeys(queues, 1), 1):
                storage.start([job.token])
                outcome = work(storage, job)
                if outcome is not None:
                    storage.finish([outcome])
            storage.wait(0.01)

    thread = threading.Thread(target=loop)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        storage.close()
