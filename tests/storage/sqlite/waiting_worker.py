"""A worker that waits for jobs, and reports when it woke up for each.

Run by `test_notifier.py`; the arguments are the file and how many jobs to wait for.
"""

from __future__ import annotations

import sys
import time

from packhorse.storage.records import WorkerInfo
from packhorse.storage.sqlite import SQLite


def main(path: str, rounds: int) -> None:
    storage = SQLite(path)
    storage.join(WorkerInfo(id="waiter"))
    for _ in range(rounds):
        while not (jobs := storage.reserve("waiter", {"mail": 1}, 1)):
            storage.wait(20)
        print(jobs[0].id, time.monotonic(), flush=True)  # one clock for all processes


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
