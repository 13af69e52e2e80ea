"""The race: in each lap every contender runs every measurement, so that a noisy machine disturbs all alike.

Called by `bench.__main__`. The first lap also measures what is measured once; the crashes follow it, several at a time
because they mostly wait. A contender that fails in one measurement continues with the next, and the page lists the
failure. A contender that cannot enqueue is excluded.
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
from bench.measurements import Figures
from bench.measurements.bare_loops import measure_bare_loops
from bench.measurements.crash import crash, lost_machine, lost_worker
from bench.measurements.drain import drain
from bench.measurements.enqueue import enqueue
from bench.measurements.idle import measure_idle
from bench.measurements.stress import stress
from bench.percentile import medians
from bench.plan import Plan
from bench.results import Row
from bench.storages.storage import NoServer, Storage
from bench.time_estimate import TimeEstimate, crash_seconds, lap_seconds, minutes

Measurement = Callable[[Contender, Storage, Plan], Figures]

_CRASHES = "crashes"
_FAILURES = (ArithmeticError, LookupError, OSError, RuntimeError, ValueError, subprocess.SubprocessError, NoServer)


class Race:
    """Runs the laps and collects their figures."""

    def __init__(self, contenders: Sequence[Contender], storages: Mapping[str, Storage], plan: Plan) -> None:
        self._contenders = contenders
        self._storages = storages
        self._plan = plan
        self._laps: defaultdict[str, list[Figures]] = defaultdict(list)
        self._limits: defaultdict[str, list[Figures]] = defaultdict(list)
        self._stress: defaultdict[str, list[Figures]] = defaultdict(list)
        self._errors: defaultdict[str, list[str]] = defaultdict(list)
        self._excluded: set[str] = set()
        self._estimate = TimeEstimate(self._parts())

    def run(self) -> None:
        _say(f"{len(self._contenders)} contenders: about {minutes(self._estimate.left())}")
        for lap in range(1, self._plan.laps + 1):
            for contender in self._contenders:
                self._part(_lap_of(contender, lap), partial(self._lap, contender, is_first=lap == 1))
            if lap == 1 and self._plan.crash_patience:
                self._part(_CRASHES, self._crashes)

    def _parts(self) -> dict[str, float]:
        """Every part of the run with its planned seconds."""
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
        self._estimate.note(name, seconds)
        left = self._estimate.left()
        _say(f"{name}, {seconds:.0f} s; {f'about {minutes(left)} left' if left else 'done'}")

    def rows(self) -> list[Row]:
        """Each contender with the medians of its laps."""
        return [
            Row(
                contender.peer,
                contender.storage,
                contender.title,
                contender.facts.versions,
                contender.facts.setting,
                medians(self._laps[contender.name]),
                self._errors[contender.name],
            )
            for contender in self._contenders
        ]

    def limits(self) -> dict[str, Figures]:
        """The figures of the bare loops, by storage."""
        return {storage: medians(laps) for storage, laps in self._limits.items() if any(laps)}

    def stress(self) -> dict[str, Figures]:
        """The figures of Packhorse under stress, by storage."""
        return {storage: medians(laps) for storage, laps in self._stress.items() if any(laps)}

    def _lap(self, contender: Contender, *, is_first: bool) -> None:
        if contender.name in self._excluded:
            return
        figures = self._try(enqueue, contender)
        if not figures:
            self._excluded.add(contender.name)
            return
        figures |= self._try(drain, contender)
        if contender.peer == "packhorse":
            self._run_bare_loops(contender)
            if is_first and self._plan.stress:
                self._stress[contender.storage].append(self._try(stress, contender))
        drained = figures.get("drain_one", contender.pace)
        figures |= self._try(partial(measure_idle, drained=drained, idles=is_first), contender)
        self._laps[contender.name].append(figures)

    def _run_bare_loops(self, contender: Contender) -> None:
        self._limits[contender.storage].append(self._try(measure_bare_loops, contender))

    def _crashes(self) -> None:
        """The crash of a single worker runs alone, because fractions of a second count. The others wait for leases."""
        racing = [contender for contender in self._contenders if contender.name not in self._excluded]
        ours = [contender for contender in racing if contender.peer == "packhorse"]
        for contender in ours:
            self._laps[contender.name].append(self._try(lost_worker, contender))
        trials = [(lost_machine, contender) for contender in ours] + [(crash, contender) for contender in racing]
        with ThreadPoolExecutor(self._plan.crashes_at_once) as threads:
            for (_, contender), figures in zip(trials, threads.map(self._crash, trials), strict=True):
                self._laps[contender.name].append(figures)

    def _crash(self, trial: tuple[Measurement, Contender]) -> Figures:
        measurement, contender = trial
        return self._try(partial(_on_private_server, measurement), contender)

    def _try(self, measurement: Measurement, contender: Contender) -> Figures:
        try:
            return measurement(contender, self._storages[contender.storage], self._plan)
        except _FAILURES as error:
            _say(str(error))
            self._errors[contender.name].append((str(error).splitlines() or [repr(error)])[0])
            return {}


def _on_private_server(measurement: Measurement, contender: Contender, storage: Storage, plan: Plan) -> Figures:
    """Run on a private server: each trial wipes the shared one."""
    with type(storage)() as own:
        return measurement(contender, own, plan)


def _lap_of(contender: Contender, lap: int) -> str:
    return f"lap {lap}, {contender.name}"


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
