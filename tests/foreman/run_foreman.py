"""`python -m tests.foreman.run_foreman JSON`: a foreman with fake workers, for tests to signal and to kill."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path
from typing import Any

from packhorse.core.settings import Settings
from packhorse.foreman import Foreman, foreman, processes, scaling, worker_handle
from packhorse.foreman.chores import all_chores
from packhorse.foreman.processes import Launch
from packhorse.foreman.worker_handle import WorkerHandle
from packhorse.storage import open_storage

scaling.TOLERATED = scaling.BROKEN_AFTER  # the seconds before that are counted in `test_backoff.py`
processes.YOUNG = foreman.YOUNG = 600.0  # a worker that should die immediately may take a while
worker_handle.STUCK = 2.0
FAKE_WORKER = Path(__file__).with_name("fake_worker.py")


class Count:
    """A chore that says each time that it runs, and fails every other time."""

    name = "count"
    interval = 0.05

    def __init__(self) -> None:
        self.number = 0

    def run(self) -> float | None:
        self.number += 1
        print(f"chore {self.number}", flush=True)
        if self.number % 2:
            raise ValueError("odd")
        return None


def main(asked: dict) -> int:
    logging.basicConfig(level="INFO", format="%(message)s")
    settings = Settings(url=asked["url"], **asked["settings"])
    command = [sys.executable, str(FAKE_WORKER), "--mode", asked["mode"]]
    storage = open_storage(settings.url)
    chores: dict[str, Any] = {
        "none": [],
        "failing": [Count()],
        "all": lambda trusted_time, end_worker, stuck_jobs: all_chores(
            storage, settings, trusted_time, end_worker=end_worker, stuck_jobs=stuck_jobs
        ),
    }
    options: dict[str, Any] = asked["options"]
    if options.pop("is_deaf", False):
        WorkerHandle.receive_message = lambda *args: None  # type: ignore[method-assign]
    launch = Launch("app:app", command, settings.url, settings.concurrency, options.pop("worker_arguments", ()))
    return Foreman(launch, settings, storage, chores[asked["chores"]], **options).run()


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
