"""The race: lap by lap everybody runs every discipline, so that a noisy machine disturbs all alike; medians count.

Called by `bench.__main__`. A contender that fails in a discipline goes on with the next, and the page tells; one that
cannot even enqueue is out.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from bench.contender import Contender
from bench.disciplines import Figures
from bench.disciplines.crash import crash, lost_machine, lost_worker
from bench.disciplines.drain import drain
from bench.disciplines.enqueue import enqueue
from bench.disciplines.limits import limits
from bench.disciplines.presence import presence
from bench.disciplines.strain import strain
from bench.percentile import medians
from bench.plan import Plan
from bench.results import Row
from bench.storages.storage import Storage

_FAILURES = (RuntimeError, TimeoutError, ValueError, subprocess.SubprocessError)

Discipline = Callable[[Contender, Storage, Plan], Figures]


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
                    self._lap(contender, is_first=lap == 1)
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
        """What the bare loops reach, by storage."""
        return {storage: medians(laps) for storage, laps in self._limits.items() if any(laps)}

    def strains(self) -> dict[str, Figures]:
        """What Packhorse reaches under strain, by storage."""
        return {storage: medians(laps) for storage, laps in self._strains.items() if any(laps)}

    def _lap(self, contender: Contender, *, is_first: bool) -> None:
        figures = self._try(enqueue, contender)
        if not figures:
            self._out.add(contender.name)
            return
        figures |= self._try(drain, contender)
        if contender.peer == "packhorse":
            self._beside_bare_loops_and_strained(contender)
        drained = figures.get("drain_one", contender.pace)
        figures |= self._try(partial(presence, drained=drained), contender)
        if is_first and self._plan.crash_patience:
            figures |= self._crashes(contender)
        self._laps[contender.name].append(figures)

    def _beside_bare_loops_and_strained(self, contender: Contender) -> None:
        self._limits[contender.storage].append(self._try(limits, contender))
        if self._plan.strain:
            self._strains[contender.storage].append(self._try(strain, contender))

    def _crashes(self, contender: Contender) -> Figures:
        figures = self._try(crash, contender)
        if contender.peer == "packhorse":
            figures |= self._try(lost_worker, contender) | self._try(lost_machine, contender)
        return figures

    def _try(self, discipline: Discipline, contender: Contender) -> Figures:
        try:
            return discipline(contender, self._storages[contender.storage], self._plan)
        except _FAILURES as error:
            _say(str(error))
            self._troubles[contender.name].append(str(error).splitlines()[0])
            return {}


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
