"""A trial: one contender on an empty storage with an empty ledger. Everything it started is killed when it closes."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any, Self

from bench import environment, family, ledger, peers
from bench.contender import Contender
from bench.ledger import Ledger
from bench.storages.storage import Storage
from bench.waiting import wait_until

_ENDING_SECONDS = 10
_BLINK_SECONDS = 0.01  # a process that is just becoming another program shows no environment for a moment


class Trial:
    """Feeds a contender, starts and kills its workers, and counts what has run."""

    def __init__(self, contender: Contender, storage: Storage, **variables: str) -> None:
        self.contender = contender
        self.storage = storage
        self._temporary = tempfile.TemporaryDirectory(prefix="packhorse-bench-", ignore_cleanup_errors=True)
        self._folder = Path(self._temporary.name)
        self.ledger = Ledger(self._folder / "ledger")
        self._variables = {
            peers.VARIABLE: storage.fresh(self._folder),
            ledger.VARIABLE: str(self.ledger.path),
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
        """See `bench.feed.Producer`."""
        return self.contender.ask(self._variables, what, *numbers)

    def start(self, processes: int) -> float:
        """Start its workers; answers when."""
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
        """Its living processes, the oldest first."""
        return family.members(ledger.VARIABLE, self.ledger.path)

    def kill(self) -> None:
        """Kill all its processes, and see that they are gone."""

        def is_over() -> bool:
            family.kill(self.processes())
            time.sleep(_BLINK_SECONDS)
            return not self.processes()

        wait_until(is_over, _ENDING_SECONDS, f"killing {self.contender.name}")
        for root in self._roots:
            root.wait()
        self._roots.clear()

    def wait_for(self, entries: int, seconds: float) -> None:
        """Until the ledger has so many entries. If it takes longer, or nobody is left to write them: TimeoutError."""

        def is_there() -> bool:
            if all(root.poll() is not None for root in self._roots):
                raise TimeoutError("its workers have ended")
            return len(self.ledger) >= entries

        try:
            wait_until(is_there, seconds, "waiting")
        except TimeoutError as error:
            missing = f"{len(self.ledger):,} of {entries:,} entries are there"
            raise TimeoutError(f"{self.contender.name}: {missing}, {error}\n{self._log()}") from None

    def _log(self) -> str:
        path = self._folder / "log"
        return path.read_text(errors="replace")[-2_000:] if path.exists() else ""
