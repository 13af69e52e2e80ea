"""Presence: who of the foremen and workers that a storage knows is there. Pure; the web, the API and the command line
ask it, so that all say the same.

The record of a process that was killed stays until a foreman takes its jobs back, and there may be none. So who has
been silent for its lease and a grace is gone: listed no more, and told apart with what it held. One that was only
frozen is back with its next heartbeat, for nothing is remembered here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from packhorse.core.event import Subject
from packhorse.core.job import Job
from packhorse.monitor.served_queues import serves
from packhorse.monitor.text import count_text
from packhorse.storage.records import WorkerInfo

_GRACE = 5  # the part of a lease that somebody who has just fallen silent is still listed for


class Presence(NamedTuple):
    """Who is there, and who is gone without a word."""

    here: list[WorkerInfo]
    gone: list[WorkerInfo]


class Lost(NamedTuple):
    """A foreman that is gone with its workers; or a worker alone, without any."""

    chief: WorkerInfo
    crew: list[WorkerInfo]

    @property
    def silent_since(self) -> int:
        """The last sign of life of any of them."""
        return max(each.beat_at for each in self.everybody)

    @property
    def everybody(self) -> list[WorkerInfo]:
        return [self.chief, *self.crew]

    def held(self, holds: Mapping[str | None, int]) -> int:
        """How many jobs are in their hands, of those in everybody's."""
        return sum(holds.get(each.id, 0) for each in self.everybody)


def is_alive(process: WorkerInfo, now: int, lease: int) -> bool:
    """Has it given a sign of life within its lease? `lease` is that of whoever looks, which counts if it is longer."""
    return now - process.beat_at <= process.lease_for(lease)


def busy_slots(workers: Iterable[WorkerInfo], *, running: int, held: int) -> int:
    """How many slots of these are busy, which hold so many jobs, of which the storage knows that so many run.

    They say so themselves with their heartbeats: of short jobs nobody else knows that they run. That may be a few
    seconds old, so it counts no more than they hold."""
    slots, told = 0, 0
    for worker in workers:
        busy = worker.report.get("busy")
        slots += worker.concurrency
        told += min(busy, worker.concurrency) if isinstance(busy, int) else worker.concurrency
    return min(slots, held, max(running, told))


def begun_in(workers: Iterable[WorkerInfo]) -> set[str]:
    """The jobs that ran in these when they last gave a sign of life."""
    told = [entry for worker in workers for entry in _list_of(worker.report.get("running"))]
    return {entry["job_id"] for entry in told if isinstance(entry, dict) and isinstance(entry.get("job_id"), str)}


def _list_of(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def is_gone(process: WorkerInfo, now: int, lease: int) -> bool:
    """Has it been silent for so long that nobody should count on it?"""
    lease = process.lease_for(lease)
    return now - process.beat_at > lease + lease // _GRACE


def presence_of(workers: Iterable[WorkerInfo], now: int, lease: int) -> Presence:
    """Those who are there, silent for a moment or not, and those who are gone."""
    found = Presence([], [])
    for each in workers:
        (found.gone if is_gone(each, now, lease) else found.here).append(each)
    return found


def crews_lost(gone: Sequence[WorkerInfo]) -> list[Lost]:
    """Those who are gone, each foreman with its workers; who fell silent last comes first."""
    lost = {each.id: Lost(each, []) for each in gone if each.subject is Subject.FOREMAN}
    for each in gone:
        if each.id in lost:
            continue
        if each.foreman in lost:
            lost[each.foreman].crew.append(each)
        else:
            lost[each.id] = Lost(each, [])
    return sorted(lost.values(), key=lambda each: (-each.silent_since, each.chief.id))


def lost_text(lost: Lost) -> str:
    """Who they are: "the foreman mule:11 and its 2 workers"."""
    crew = f" and its {count_text(len(lost.crew), 'worker')}" if len(lost.crew) > 1 else " and its worker"
    return f"the {lost.chief.subject} {lost.chief.host}:{lost.chief.pid}{crew if lost.crew else ''}"


def has_free_slot(here: Iterable[WorkerInfo], job: Job) -> bool:
    """Had one of these workers, of those that serve the job's queue, a free slot when it told of itself last?"""
    return any(_is_free(worker) for worker in here if serves(worker, job.queue, (job.task,)))


def _is_free(worker: WorkerInfo) -> bool:
    busy, state = worker.report.get("busy", 0), worker.report.get("state", "working")
    return state == "working" and isinstance(busy, int) and busy < worker.concurrency
