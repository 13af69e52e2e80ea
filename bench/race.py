"""The race: lap by lap everybody runs every discipline, so that a noisy machine disturbs all alike; medians count.

Called by `bench.__main__`. A contender that fails in a discipline goes on with the next, and the page tells; one that
cannot even enqueue is out.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from bench import environment
from bench.bare import has_bare
from bench.contender import Contender
from bench.disciplines import Figures
from bench.disciplines.crash import crash, lost_machine, lost_worker
from bench.disciplines.drain import drain
from bench.disciplines.enqueue import enqueue
from bench.disciplines.presence import presence
from bench.percentile import medians
from bench.plan import Plan
from bench.results import Row
from bench.storages.storage import Storage
from bench.strain import strain

_LIMITS = {
    "bare_single": "single",
    "bare_many": "many",
    "bare_drain": "many",
    "threads": "single",
    "coroutines": "single",
    "exchange": "many",
}
"""The figures of `bench.limits`, and with which number of the plan each is measured."""
_LIMITS_OF_REDIS = _LIMITS | {"shared": "single"}

_FAILURES = (RuntimeError, TimeoutError, ValueError, subprocess.SubprocessError)


class Race:
    """Everybody's laps."""

    def __init__(self, contenders: Sequence[Contender], storages: Mapping[str, Storage], plan: Plan) -> None:
        self._contenders = contenders
        self._storages = storages
        self._plan = plan
        self._laps: defaultdict[str, list[Figures]] = defaultdict(list)
        self._limits: defaultdict[str, list[Figures]] = defaultdict(list)
        self._strains: defaultdict[str, list[Figures]] = defaultdict(list)
        self._troubles: defaultdict[str, list[str]] = defaultdict(list)
        self._out: set[str] = set()

    def run(self) -> None:
        for lap in range(1, self._plan.laps + 1):
            for contender in self._contenders:
                if contender.name not in self._out:
                    began = time.monotonic()
                    self._lap(contender, lap)
                    _say(f"lap {lap} of {self._plan.laps}: {contender.name}, {time.monotonic() - began:.0f} s")

    def rows(self) -> list[Row]:
        """The median laps."""
        return [
            Row(
                contender.peer,
                contender.storage,
                contender.title,
                contender.facts.versions,
                contender.facts.setting,
                medians(self._laps[contender.name]),
                self._troubles[contender.name],
            )
            for contender in self._contenders
        ]

    def limits(self) -> dict[str, Figures]:
        return {storage: medians(laps) for storage, laps in self._limits.items()}

    def strains(self) -> dict[str, Figures]:
        return {storage: medians(laps) for storage, laps in self._strains.items()}

    def _lap(self, contender: Contender, lap: int) -> None:
        storage, plan = self._storages[contender.storage], self._plan
        figures = self._try(contender, lambda: enqueue(contender, storage, plan))
        if not figures:
            self._out.add(contender.name)
            return
        figures |= self._try(contender, lambda: drain(contender, storage, plan))
        drained = figures.get("drain_one", contender.pace)
        figures |= self._try(contender, lambda: presence(contender, storage, plan, drained))
        if plan.crash_patience and lap == 1:
            figures |= self._try(contender, lambda: crash(contender, storage, plan))
        if contender.peer == "packhorse":
            figures |= self._ours(contender, storage, lap)
        self._laps[contender.name].append(figures)

    def _ours(self, contender: Contender, storage: Storage, lap: int) -> Figures:
        """What only Packhorse does: next to the bare loops, under strain, losing a worker, losing a machine."""
        plan = self._plan
        if has_bare(storage.name):
            self._limits[storage.name].append(self._try(contender, lambda: _limits(contender, storage, plan)))
        if plan.strain:
            self._strains[storage.name].append(self._try(contender, lambda: strain(contender, storage, plan)))
        if plan.crash_patience and lap == 1:
            figures = self._try(contender, lambda: lost_worker(contender, storage, plan))
            return figures | self._try(contender, lambda: lost_machine(contender, storage, plan))
        return {}

    def _try(self, contender: Contender, measure: Callable[[], Figures]) -> Figures:
        try:
            return measure()
        except _FAILURES as error:
            _say(str(error))
            self._troubles[contender.name].append(str(error).splitlines()[0])
            return {}


def _limits(contender: Contender, storage: Storage, plan: Plan) -> Figures:
    figures = {}
    around = {**os.environ, "PYTHONPATH": str(environment.ROOT)}
    limits = _LIMITS_OF_REDIS if storage.name == "redis" else _LIMITS
    for name, size in limits.items():
        with tempfile.TemporaryDirectory(prefix="packhorse-bench-") as folder:
            words = ["-m", "bench.limits", storage.fresh(Path(folder)), name, str(getattr(plan, size))]
            done = subprocess.run([contender.python, *words], env=around, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{contender.name}, {name}: {done.stderr.strip()[-2_000:]}")
        figures[name] = float(done.stdout)
    return figures


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
