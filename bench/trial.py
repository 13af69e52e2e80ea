"""A trial: one contender on an empty storage with an empty run log. Closing it kills all its processes."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any, Self

from bench import environment, peers, processes, run_log
from bench.contender import Contender
from bench.run_log import RunLog
from bench.storages.storage import Storage
from bench.wait import wait_until

_ENDING_SECONDS = 10
_BLINK_SECONDS = 0.01  # a process in the middle of exec shows no environment for a moment


class Trial:
    """Enqueues jobs, starts and kills workers, and waits for jobs to run."""

    def __init__(self, contender: Contender, storage: Storage, **variables: str) -> None:
        self.contender = contender
        self.storage = storage
        self._temporary = tempfile.TemporaryDirectory(prefix="packhorse-bench-", ignore_cleanup_errors=True)
        self._folder = Path(self._temporary.name)
        self.run_log = RunLog(self._folder / "run_log")
        self._variables = {
            peers.VARIABLE: storage.fresh(self._folder),
            run_log.VARIABLE: str(self.run_log.path),
            **variables,
        }
        self._roots: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        if self.contender.facts.has_tables:
            self.feed("prepare")
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self._temporary.cleanup()

    def feed(self, what: str, *numbers: float) -> Any:
        """See `bench.producer.Producer`."""
        return self.contender.ask(self._variables, what, *numbers)

    def start(self, processes: int) -> float:
        """Start its workers; return when."""
        commands = self.feed("work", processes)
        began = time.monotonic()
        with (self._folder / "log").open("ab") as log:
            for words in commands:
                self._roots.append(
                    subprocess.Popen(
                        [self.contender.python, *words],
                        cwd=self._folder,
                        env={**os.environ, "PYTHONPATH": str(environment.ROOT), **self._variables},
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=log,
                        start_new_session=True,
                    )
                )
        return began

    def processes(self) -> list[int]:
        """Its living processes, oldest first."""
        return processes.members(run_log.VARIABLE, self.run_log.path)

    def kill(self) -> None:
        """Kill all its processes and wait until they are gone."""

        def is_over() -> bool:
            processes.kill(self.processes())
            time.sleep(_BLINK_SECONDS)
            return not self.processes()

        wait_until(is_over, _ENDING_SECONDS, f"killing {self.contender.name}")
        for root in self._roots:
            root.wait()
        self._roots.clear()

    def wait_for(self, entries: int, seconds: float) -> None:
        """Wait until the run log has this many entries. Raise TimeoutError if it takes longer or all workers ended."""

        def is_there() -> bool:
            if all(root.poll() is not None for root in self._roots):
                raise TimeoutError("its workers have ended")
            return len(self.run_log) >= entries

        try:
            wait_until(is_there, seconds, "waiting")
        except TimeoutError as error:
            missing = f"{len(self.run_log):,} of {entries:,} entries are there"
            raise TimeoutError(f"{self.contender.name}: {missing}, {error}\n{self._log()}") from None

    def _log(self) -> str:
        path = self._folder / "log"
        return path.read_text(errors="replace")[-2_000:] if path.exists() else ""
