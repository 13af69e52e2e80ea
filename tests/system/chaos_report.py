"""The report of chaos: compares the storage and the run log with the faults that were dealt out, and says what became
of the jobs, how long it took to take them back, and whether anything happened that nothing explains."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence, Set
from typing import NamedTuple

from packhorse.conformance.builders import find_all
from packhorse.core.event import Event, Kind, Subject
from packhorse.core.job import ABORTED, DEAD, FINAL
from packhorse.storage.records import EventFilter
from tests.system.deployment import Deployment
from tests.system.run_log import Run
from tests.system.soundness import Stories, assert_sound, final_events, stories_of

TAKEN_BACK = frozenset({Kind.HALTED, Kind.READDED})
"""How a holding ends that came to nothing; with the worker that held the job."""
FATAL = frozenset({"kill a worker", "kill a foreman", "stop and restart"})
"""Faults after which nobody who was hit comes back: whatever was taken from them was lost by that, however late."""
AFTERWARDS = 10.0
"""Seconds for which any other fault may leave a process silent, counted from its end, with the usual lease."""


class Fault(NamedTuple):
    """One thing that was done on purpose."""

    kind: str
    at: float  # by `time.time`
    until: float  # the same, or when a freeze ended
    foreman: int  # the pid of the foreman
    owner: str | None  # the worker that was hit; None: the foreman was

    def explains(self, loss: Event, foreman: int | None, patience: int = 1) -> bool:
        """May it be the reason why a worker of this foreman lost a job? What somebody has seen may be told late, where
        the machine is busy; silence that comes late has another reason."""
        at, is_for_ever = loss.at / 1e6, self.kind in FATAL or not _is_silence(loss)
        is_near = self.at - 0.1 <= at <= (math.inf if is_for_ever else self.until + AFTERWARDS * patience)
        return is_near and (self.owner == loss.owner or (self.owner is None and self.foreman == foreman))


def _is_silence(loss: Event) -> bool:
    """Was the job taken away because nobody had heard of its worker?"""
    return "was silent" in str(loss.data)


class ChaosReport(NamedTuple):
    """What is to be told."""

    jobs: int
    aborted: int  # on purpose
    faults: Counter[str]
    lost: int
    twice: int
    refused: int  # results that came when the job had been taken away
    extra: int  # executions that came to nothing, so that there had to be another
    explained: int
    after_worker: list[float]  # seconds from the death of a worker until each of its jobs was taken back
    after_foreman: list[float]
    violations: list[str]
    silences: int  # those violations of which a worker is the reason that was not heard in time

    @property
    def is_too_busy(self) -> bool:
        """May it all be the machine's fault, which had no time for a worker for as long as its lease?"""
        return 0 < self.silences == len(self.violations)

    def table(self) -> Iterator[str]:
        """A table for people."""
        yield f"{'jobs':34}{self.jobs:>10,}"
        yield f"{'  aborted by an operator':34}{self.aborted:>10,}"
        yield f"{'faults':34}{self.faults.total():>10,}"
        for kind, number in sorted(self.faults.items()):
            yield f"  {kind:32}{number:>10,}"
        yield f"{'lost':34}{self.lost:>10,}"
        yield f"{'finished twice':34}{self.twice:>10,}"
        yield f"{'late results, refused':34}{self.refused:>10,}"
        yield f"{'extra executions':34}{self.extra:>10,}"
        yield f"{'  explained by a fault':34}{self.explained:>10,}"
        yield f"{'seconds until a job is taken back':34}{'p50':>10}{'p99':>8}{'max':>8}{'jobs':>8}"
        for name, seconds in (("worker", self.after_worker), ("foreman", self.after_foreman)):
            figures = "".join(f"{at:>8.2f}" for at in percentiles(seconds, 0.5, 0.99, 1.0))
            yield f"{f'  after the death of a {name}':36}{figures}{len(seconds):>8,}"
        for violation in self.violations:
            yield f"VIOLATION: {violation}"
        yield "unsound" if self.violations else "sound"


def percentiles(values: Sequence[float], *shares: float) -> list[float]:
    """The value below which this share of them lies, for each share; not a number where there are none."""
    ordered = sorted(values)
    places = [math.ceil(share * len(ordered)) - 1 for share in shares]
    return [ordered[max(0, place)] if ordered else math.nan for place in places]


def look_at(deployment: Deployment, faults: Sequence[Fault], asked: Set[str], patience: int = 1) -> ChaosReport:
    """End the deployment and judge it. `asked` are the jobs that an operator wanted to end; the lease was `patience`
    times the usual one."""
    violations: list[str] = []
    try:
        assert_sound(deployment)
    except AssertionError as error:
        violations.append(str(error))
    jobs = {job.id: job for job in find_all(deployment.storage, limit=1_000)}
    stories = stories_of(deployment.storage)
    foreman_of = foremen_of(deployment)
    taken = _taken_back(deployment, stories)
    unexplained = [
        event
        for _, event in taken
        if not any(fault.explains(event, foreman_of.get(event.owner or ""), patience) for fault in faults)
    ]
    violations += [
        f"an execution too many, and no fault explains it: {event.job_id} was taken from {event.owner}"
        f" at {event.at / 1e6:.3f}: {event.data}"
        for event in unexplained
    ]
    aborted = {job.id for job in jobs.values() if job.state is ABORTED}
    violations += [f"{job.id} is dead: {job.error}" for job in jobs.values() if job.state is DEAD]
    violations += [f"{job_id} is aborted, and nobody had asked for it" for job_id in aborted - asked]
    return ChaosReport(
        jobs=len(deployment.acknowledged),
        aborted=len(aborted),
        faults=Counter(fault.kind for fault in faults),
        lost=sum(job_id not in jobs or jobs[job_id].state not in FINAL for job_id in deployment.acknowledged),
        twice=sum(len(final_events(events)) > 1 for events in stories.values()),
        refused=len(_late(deployment, taken)),
        extra=len(taken),
        explained=len(taken) - len(unexplained),
        after_worker=_after_workers(stories, faults),
        after_foreman=_after_foremen(stories, faults, foreman_of),
        violations=violations,
        silences=sum(map(_is_silence, unexplained)),
    )


def foremen_of(deployment: Deployment) -> dict[str, int]:
    """The pid of the foreman of each worker, as they said when they started: one that lived for a moment counts too."""
    pids: dict[str, int] = {}
    for foreman in _started(deployment, Subject.FOREMAN):
        pids[foreman.owner or ""] = (foreman.data or {})["pid"]
    workers = _started(deployment, Subject.WORKER)
    return {worker.owner or "": pids[(worker.data or {})["object"]["foreman"]] for worker in workers}


def _started(deployment: Deployment, subject: Subject) -> list[Event]:
    found: list[Event] = []
    last = 0
    while page := deployment.storage.events(EventFilter(subject=subject, kind=Kind.STARTED, after=last), limit=1_000):
        last = page[-1].id
        found += page
    return found


def _taken_back(deployment: Deployment, stories: Stories) -> list[tuple[Run, Event]]:
    """The executions after which the job was in line again, each with the event that put it there."""
    ends = {(event.job_id, event.fence): event for event in _losses(stories)}
    return [(line, ends[line.run]) for line in deployment.run_log.begun() if line.run in ends]


def _losses(stories: Stories) -> Iterator[Event]:
    for events in stories.values():
        yield from (event for event in events if event.kind in TAKEN_BACK and event.owner)


def _late(deployment: Deployment, taken: Sequence[tuple[Run, Event]]) -> list[Run]:
    """The executions that came to their end when the job had been taken from them."""
    taken_at = {line.run: event.at for line, event in taken}
    return [line for line in deployment.run_log.ended() if line.at > taken_at.get(line.run, math.inf)]


def _after_workers(stories: Stories, faults: Sequence[Fault]) -> list[float]:
    """Of those workers whose foreman was there to see it."""
    found = []
    for death in (fault for fault in faults if fault.kind == "kill a worker"):
        for event in _losses(stories):
            at = event.at / 1e6
            if event.owner == death.owner and at >= death.at and not _is_disturbed(death, at, faults):
                found.append(at - death.at)
    return found


def _is_disturbed(death: Fault, at: float, faults: Sequence[Fault]) -> bool:
    """Was something done to the foreman before it could do its duty?"""
    of_foreman = [fault for fault in faults if fault.owner is None and fault.foreman == death.foreman]
    return any(fault.at <= at and fault.until >= death.at for fault in of_foreman)


def _after_foremen(stories: Stories, faults: Sequence[Fault], foreman_of: dict[str, int]) -> list[float]:
    deaths = {fault.foreman: fault.at for fault in faults if fault.kind == "kill a foreman"}
    found = []
    for event in _losses(stories):
        died_at = deaths.get(foreman_of.get(event.owner or "", 0), math.inf)
        if event.at / 1e6 >= died_at:
            found.append(event.at / 1e6 - died_at)
    return found
