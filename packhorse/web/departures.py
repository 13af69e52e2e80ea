"""Departures: workers and foremen that have ended in the last day, why, and what became of the jobs that were taken
from them.

The glance reads them for the Workers page, for all viewers at once; one reading looks at a bounded number of events.
"""

from __future__ import annotations

from typing import NamedTuple

from packhorse.core.clock import DAY
from packhorse.core.event import Event, Kind, Subject
from packhorse.storage import Storage
from packhorse.storage.records import EventFilter
from packhorse.web.looking_back import look_back, newest_id, stretches

_FIRST, _LOOKS = 100_000, 10  # events: those of workers are few among them, and found by an index
_MOST = 30
_STARTS = 500
_WHO = (Subject.WORKER, Subject.FOREMAN)
_MOST_DIED = 10  # workers of whom it is told what became of their jobs
_NEAR = 1_000  # events before a death among which its jobs are looked for: all were written at once
_TAKEN = frozenset({Kind.HALTED, Kind.READDED, Kind.BROKEN})


class Departure(NamedTuple):
    """A worker's or foreman's end, its beginning if that is known, and of each job that was taken from it, what
    became of that."""

    ended: Event
    began: Event | None
    jobs: list[Event]


def departures(storage: Storage) -> list[Departure]:
    """The latest first."""
    since = storage.now() - DAY
    ended = [event for kind in (Kind.DIED, Kind.KILLED) for event in _of_kind(storage, kind, _MOST) if event.at > since]
    ended = sorted(ended, key=lambda event: -event.at)[:_MOST]
    began = {event.owner: event for event in _of_kind(storage, Kind.STARTED, _STARTS)} if ended else {}
    died = [each.id for each in ended if each.kind is Kind.DIED and each.subject is Subject.WORKER][:_MOST_DIED]
    return [
        Departure(event, began.get(event.owner), _taken_from(storage, event) if event.id in died else [])
        for event in ended
    ]


def _of_kind(storage: Storage, kind: Kind, limit: int) -> list[Event]:
    """The newest of workers and of foremen, so many of each."""
    top, found = newest_id(storage) + 1, list[Event]()
    for subject in _WHO:
        where = EventFilter(subject=subject, kind=kind)
        found += look_back(storage, where, top, limit, stretches(storage, _LOOKS, _FIRST))[0]
    return found


def _taken_from(storage: Storage, death: Event) -> list[Event]:
    first = max(0, death.id - _NEAR * storage.event_stride)
    where = EventFilter(subject=Subject.JOB, kinds=_TAKEN, after=first, before=death.id)
    found = storage.events(where, limit=_NEAR, newest_first=True)
    why = (death.data or {}).get("why")  # of its jobs that ended before, or that it handed back, there is another
    return [event for event in found if event.owner == death.owner and (event.data or {}).get("why") == why][::-1]
