"""Presence: who of the foremen and workers that a storage knows is there. Pure; the web, the API and the command line
ask it, so that all say the same.

The record of a process that was killed stays until a foreman takes its jobs back, and there may be none. So who has
been silent for its lease and a grace is gone: listed no more, and told apart with what it held. One that was only
frozen is back with its next heartbeat, for nothing is remembered here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from packhorse.amounts import count_text
from packhorse.event import Subject
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
