"""The race: lap by lap everybody runs every discipline, so that a noisy machine disturbs all alike; medians count.

Called by `bench.__main__`. What is measured once is measured in the first lap, or right behind it: the crashes, which
mostly wait, several at a time. A contender that fails in a discipline goes on with the next, and the page tells; one
that cannot even enqueue is out.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from bench.contender import Contender
from bench.disciplines import Figures
from bench.disciplines.crash import crash, lost_machine, lost_worker
from bench.disciplines.drain import drain
from bench.disciplines.enqueue import enqueue
from bench.disciplines.limits import limits
from bench.disciplines.presence import presence
from bench.disciplines.strain import strain
from bench.forecast import Forecast, crash_seconds, lap_seconds, minutes
from bench.percentile import medians
from bench.plan import Plan
from bench.results import Row
from bench.storages.storage import NoServer, Storage

Discipline = Callable[[Contender, Storage, Plan], Figures]

_CRASHES = "crashes"
_FAILURES = (ArithmeticError, LookupError, OSError, RuntimeError, ValueError, subprocess.SubprocessError, NoServer)


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
        self._forecast = Forecast(self._parts())

    def run(self) -> None:
        _say(f"{len(self._contenders)} contenders: about {minutes(self._forecast.left())}")
        for lap in range(1, self._plan.laps + 1):
            for contender in self._contenders:
                self._part(_lap_of(contender, lap), partial(self._lap, contender, is_first=lap == 1))
            if lap == 1 and self._plan.crash_patience:
                self._part(_CRASHES, self._crashes)

    def _parts(self) -> dict[str, float]:
        """What will be done, and the seconds that it should take."""
        laps = range(1, self._plan.laps + 1)
        parts = {
            _lap_of(contender, lap): lap_seconds(contender, self._plan, is_first=lap == 1)
            for lap in laps
            for contender in self._contenders
        }
        if self._plan.crash_patience:
            parts[_CRASHES] = crash_seconds(self._contenders, self._plan)
        return parts

    def _part(self, name: str, work: Callable[[], None]) -> None:
        began = time.monotonic()
        work()
        seconds = time.monotonic() - began
        self._forecast.note(name, seconds)
        left = self._forecast.left()
        _say(f"{name}, {seconds:.0f} s; {f'about {minutes(left)} left' if left else 'done'}")

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
        if contender.name in self._out:
            return
        figures = self._try(enqueue, contender)
        if not figures:
            self._out.add(contender.name)
            return
        figures |= self._try(drain, contender)
        if contender.peer == "packhorse":
            self._beside_bare_loops(contender)
            if is_first and self._plan.strain:
                self._strains[contender.storage].append(self._try(strain, contender))
        drained = figures.get("drain_one", contender.pace)
        figures |= self._try(partial(presence, drained=drained, idles=is_first), contender)
        self._laps[contender.name].append(figures)

    def _beside_bare_loops(self, contender: Contender) -> None:
        self._limits[contender.storage].append(self._try(limits, contender))

    def _crashes(self) -> None:
        """Where fractions of a second count, nobody else is at work. The others wait for leases and timeouts."""
        racing = [contender for contender in self._contenders if contender.name not in self._out]
        ours = [contender for contender in racing if contender.peer == "packhorse"]
        for contender in ours:
            self._laps[contender.name].append(self._try(lost_worker, contender))
        trials = [(lost_machine, contender) for contender in ours] + [(crash, contender) for contender in racing]
        with ThreadPoolExecutor(self._plan.crashes_at_once) as threads:
            for (_, contender), figures in zip(trials, threads.map(self._crash, trials), strict=True):
                self._laps[contender.name].append(figures)

    def _crash(self, trial: tuple[Discipline, Contender]) -> Figures:
        discipline, contender = trial
        return self._try(partial(_on_its_own, discipline), contender)

    def _try(self, discipline: Discipline, contender: Contender) -> Figures:
        try:
            return discipline(contender, self._storages[contender.storage], self._plan)
        except _FAILURES as error:
            _say(str(error))
            self._troubles[contender.name].append((str(error).splitlines() or [repr(error)])[0])
            return {}


def _on_its_own(discipline: Discipline, contender: Contender, storage: Storage, plan: Plan) -> Figures:
    """On a server of its own: what is on the others' is wiped for each trial."""
    with type(storage)() as own:
        return discipline(contender, own, plan)


def _lap_of(contender: Contender, lap: int) -> str:
    return f"lap {lap}, {contender.name}"


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
