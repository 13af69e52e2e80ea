"""Soundness: what must be true of a deployment when all is over, whatever was killed, stopped or locked in between."""

from __future__ import annotations

import math
import signal
import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from packhorse.conformance.builders import find_all
from packhorse.core.event import Event, Kind, Subject
from packhorse.core.job import FINAL
from packhorse.storage.contract import Storage
from packhorse.storage.records import EventFilter
from tests.storage.invariants import check_history, check_job, check_tallies
from tests.system.deployment import Deployment, until
from tests.system.run_log import RunLog

FINAL_KINDS = frozenset({Kind.COMPLETED, Kind.BROKEN, Kind.ABORTED})
CUT = frozenset({Kind.HALTED, Kind.READDED, Kind.BROKEN, Kind.ABORTED})
"""How an attempt ends that was cut short, perhaps before the first line of its task."""
_AT_ONCE = 10_000

Stories = dict[str, list[Event]]
"""The events of each job."""


def assert_sound(deployment: Deployment, *, is_timed: bool = True) -> None:
    """End the deployment, and see that nothing was lost, nothing ended twice, and nothing is left over. Not `is_timed`:
    the clock was set meanwhile, and times cannot be compared."""
    deployment.end()
    stories = stories_of(deployment.storage)
    assert_nothing_lost(deployment.storage, deployment.acknowledged, stories)
    assert_ledger_agrees(deployment.run_log, stories, is_timed=is_timed)
    assert_attempts_agree(deployment, stories)
    assert_nobody_left(deployment)
    if deployment.is_file:
        assert_intact(deployment.path)


def stories_of(storage: Storage) -> Stories:
    """All events of jobs, by job."""
    stories: Stories = {}
    last = 0
    while events := storage.events(EventFilter(subject=Subject.JOB, after=last), limit=_AT_ONCE):
        last = events[-1].id
        for event in events:
            stories.setdefault(event.job_id or "", []).append(event)
    return stories


def assert_nothing_lost(storage: Storage, acknowledged: Sequence[str], stories: Mapping[str, list[Event]]) -> None:
    """Every acknowledged job is there and final, ended once, and all that is counted of it agrees with its events."""
    jobs = {job.id: job for job in find_all(storage, limit=1_000)}
    lost = set(acknowledged) - jobs.keys()
    assert not lost, f"jobs are lost: {lost}"
    open_ones = {job.id: job.state for job in jobs.values() if job.state not in FINAL}
    assert not open_ones, f"jobs are not final: {open_ones}"
    for job in jobs.values():
        check_job(job)  # no owner on a job that nobody holds
        check_history(job, stories[job.id])  # as often reserved as handed back or ended
        assert len(final_events(stories[job.id])) == 1, f"{job.id} ended more than once, or never"
    check_tallies(storage.tallies(), jobs.values())


def final_events(events: Iterable[Event]) -> list[Event]:
    return [event for event in events if event.kind in FINAL_KINDS]


def assert_ledger_agrees(run_log: RunLog, stories: Stories, *, is_timed: bool = True) -> None:
    """No handing-over ran twice, none ran that never was, and a worker that completed a job had run it to its end by
    then: a late result of another run was never taken for its own."""
    events = {kind: list(_of_kind(kind, stories)) for kind in (Kind.RESERVED, Kind.COMPLETED)}
    begun = Counter(line.run for line in run_log.begun())
    twice = [run for run, number in begun.items() if number > 1]
    assert not twice, f"begun twice under one token: {twice}"
    strange = begun.keys() - {_run_of(event) for event in events[Kind.RESERVED]}
    assert not strange, f"run by a worker that did not hold it: {strange}"
    ended = {line.run: line.at if is_timed else 0 for line in run_log.ended()}
    early = [event for event in events[Kind.COMPLETED] if ended.get(_run_of(event), math.inf) > event.at]
    assert not early, f"completed without having run to its end: {early}"


def assert_attempts_agree(deployment: Deployment, stories: Stories) -> None:
    """Each execution that began is an attempt that began, as events show, and the other way round; and one that came
    to its end was not handed back.

    Where the foreman is gone or frozen, too, nobody is left who knows what had begun at the last moment. And one that
    is killed may have been about to write its first line.
    """
    begun = {line.run for line in deployment.run_log.begun()}
    ended = {line.run: line.at for line in deployment.run_log.ended()}
    started = Counter(_run_of(event) for event in _of_kind(Kind.STARTED, stories))
    owners = {_run_of(event): event.owner for event in _of_kind(Kind.RESERVED, stories)}
    unheard = {event.owner for event in _deaths(deployment) if _is_unheard(event)}
    twice = [run for run, number in started.items() if number > 1]
    assert not twice, f"said to have begun twice: {twice}"
    unrecorded = {run for run in begun - started.keys() if owners[run] not in unheard}
    assert not unrecorded, f"ran, and no event shows that they began: {unrecorded}"
    cut = {_run_of(event): event for kind in CUT for event in _of_kind(kind, stories) if event.owner}
    idle = started.keys() - begun - cut.keys()
    assert not idle, f"said to have begun, and did not: {idle}"
    returned = [event for run, event in cut.items() if _is_handed_back(event) and ended.get(run, math.inf) < event.at]
    assert not returned, f"came to their end, and were handed back: {returned}"


def _deaths(deployment: Deployment) -> list[Event]:
    return deployment.storage.events(EventFilter(subject=Subject.WORKER, kind=Kind.DIED), limit=_AT_ONCE)


def _is_unheard(death: Event) -> bool:
    """Was it missed by others, and not seen to die by its own foreman?"""
    why = str((death.data or {}).get("why"))
    return "was silent" in why or "was gone" in why


def _is_handed_back(event: Event) -> bool:
    """Unharmed: its worker was neither killed nor lost. What a worker that is killed had not written down yet is lost
    with it, and the event says that it was killed."""
    data = event.data or {}
    return event.kind is Kind.READDED and "losses" not in data and "was killed" not in str(data.get("why"))


def _of_kind(kind: Kind, stories: Stories) -> Iterator[Event]:
    return (event for events in stories.values() for event in events if event.kind is kind)


def _run_of(event: Event) -> tuple[str, int]:
    return event.job_id or "", event.fence or 0


def assert_nobody_left(deployment: Deployment) -> None:
    """No record of a worker or a foreman, and no process is left."""
    codes = {foreman.pid: foreman.process.returncode for foreman in deployment.foremen}
    # Killed; stopped in order; stopped immediately; or stopped while Python was still loading it.
    expected = {-signal.SIGKILL, 0, 128 + signal.SIGTERM, -signal.SIGTERM}
    assert set(codes.values()) <= expected, f"exit codes of foremen: {codes}"
    records = deployment.storage.workers()
    assert records == [], f"records of processes are left: {records}"
    until(lambda: not deployment.processes(), f"no process is left over: {deployment.processes()}")


def assert_intact(path: Path) -> None:
    """SQLite's own word that the file is sound, if there is one."""
    if not path.exists():
        return
    connection = sqlite3.connect(path)
    told = connection.execute("PRAGMA integrity_check").fetchall()
    connection.close()
    assert told == [("ok",)], f"the file is damaged: {told}"
