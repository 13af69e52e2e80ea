"""Looking through events for a web request: a short look first, then ever longer ones, as long as those are quick.

The history and the glance ask. A thousand events may lie in one row of the storage, or in a row each, so what a stretch
of them costs is only known when it has been looked through; no request looks for much longer than our patience.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from msgspec.structs import replace

from packhorse.core.clock import DAY
from packhorse.core.errors import JobNotFound
from packhorse.core.event import Event, Kind, Subject
from packhorse.monitor.event_objects import with_objects
from packhorse.monitor.served_queues import SERVES, strings_in
from packhorse.storage import Storage
from packhorse.storage.records import EventFilter
from packhorse.web.security.operator import Operator
from packhorse.web.security.redaction import Redaction

WINDOW = 5_000  # events that the first look goes over
LOOKS = 4  # that are taken for one page, where little was done
_GROWTH = 4  # times as many as the look before
_PATIENCE = 0.05  # seconds that the next look may take, judging by the last


def scan_widths(storage: Storage, looks: int | None = None, first: int | None = None) -> Iterator[int]:
    """Over how many ids of events each look goes. Whoever asks for the next has done the last one meanwhile."""
    width = (first or WINDOW) * storage.event_stride
    for _ in range(looks or LOOKS):
        began_at = time.monotonic()
        yield width
        if _GROWTH * (time.monotonic() - began_at) > _PATIENCE:
            return
        width *= _GROWTH


def newest_id(storage: Storage, before: int | None = None) -> int:
    """Of the newest event, or of the newest before another; 0: there is none."""
    newest = storage.events(EventFilter(before=before), limit=1, newest_first=True)
    return newest[0].id if newest else 0


def scan_back(
    storage: Storage, where: EventFilter, top: int, limit: int, widths: Iterator[int]
) -> tuple[list[Event], int | None]:
    """Events that fit and came before `top`, the newest first; and before which one to go on, None at the beginning."""
    found: list[Event] = []
    for width in widths:
        edge = max(0, top - width)
        asked = replace(where, after=edge, before=top)
        found += storage.events(asked, limit=limit - len(found), newest_first=True)
        if len(found) == limit:
            return found, found[-1].id
        if not edge:
            return found, None
        top = edge + 1
    return found, top


_FIRST, _LOOKS = 100_000, 10  # events: those of workers are few among them, and found by an index
_MOST = 30
_STARTS = 500
_WHO = (Subject.WORKER, Subject.FOREMAN)
_MOST_DIED = 10  # workers of whom it is told what became of their jobs
_NEAR = 1_000  # events before a death among which its jobs are looked for: all were written at once
_TAKEN = frozenset({Kind.HALTED, Kind.READDED, Kind.BROKEN})


class ExitedWorker(NamedTuple):
    """A worker's or foreman's end, its beginning if that is known, and of each job that was taken from it, what
    became of that."""

    ended: Event
    began: Event | None
    jobs: list[Event]


def exited_workers(storage: Storage) -> list[ExitedWorker]:
    """The latest first."""
    since = storage.now() - DAY
    ended = [event for kind in (Kind.DIED, Kind.KILLED) for event in _of_kind(storage, kind, _MOST) if event.at > since]
    ended = sorted(ended, key=lambda event: -event.at)[:_MOST]
    began = {event.owner: event for event in _of_kind(storage, Kind.STARTED, _STARTS)} if ended else {}
    died = [each.id for each in ended if each.kind is Kind.DIED and each.subject is Subject.WORKER][:_MOST_DIED]
    return [
        ExitedWorker(event, began.get(event.owner), _taken_from(storage, event) if event.id in died else [])
        for event in ended
    ]


def _of_kind(storage: Storage, kind: Kind, limit: int) -> list[Event]:
    """The newest of workers and of foremen, so many of each."""
    top, found = newest_id(storage) + 1, list[Event]()
    for subject in _WHO:
        where = EventFilter(subject=subject, kind=kind)
        found += scan_back(storage, where, top, limit, scan_widths(storage, _LOOKS, _FIRST))[0]
    return found


def _taken_from(storage: Storage, death: Event) -> list[Event]:
    first = max(0, death.id - _NEAR * storage.event_stride)
    where = EventFilter(subject=Subject.JOB, kinds=_TAKEN, after=first, before=death.id)
    found = storage.events(where, limit=_NEAR, newest_first=True)
    why = (death.data or {}).get("why")  # of its jobs that ended before, or that it handed back, there is another
    return [event for event in found if event.owner == death.owner and (event.data or {}).get("why") == why][::-1]


_AT_ONCE = 1_000
# What only operators do, or what says who did it: these events make the audit.
_JOB_ACTIONS = frozenset(
    (
        *(Kind.ABORT_ASKED, Kind.ABORTED, Kind.FORCE_STARTED),
        *(Kind.PRIORITY_CHANGED, Kind.QUEUE_CHANGED, Kind.RETRIED, Kind.DELETED),
    )
)
_OTHER_SUBJECTS = (Subject.QUEUE, Subject.SCHEDULE, Subject.FAILURE)


class EventSlice(list[Event]):
    """Events. `last` is where to continue forward, `before` where to continue back: None at the beginning."""

    last: int = 0
    before: int | None = None


class History:
    """What one operator may know of what happened."""

    def __init__(self, storage: Storage, redaction: Redaction, operator: Operator) -> None:
        self._storage = storage
        self._redaction = redaction
        self._operator = operator

    # --- events ---------------------------------------------------------------------------------------------------

    def of_job(self, job_id: str, limit: int, after: int = 0) -> EventSlice:
        """A job's events, the oldest first; JobNotFound if it is of a queue that does not concern them. A job may be
        there although none are left: they are kept for a while only, and a broken record may not lead to them."""
        first = self._storage.events(EventFilter(job_id=job_id), limit=1)
        about = first[0] if first else self._storage.get(job_id)
        if about is None or not self._operator.sees(about.queue):
            raise JobNotFound(job_id)
        found = self._storage.events(EventFilter(job_id=job_id, after=after), limit=limit)
        return self._slice(found, found[-1].id if found else after, None)

    def since(self, where: EventFilter, limit: int) -> EventSlice:
        """Events that fit and came after `where.after`, the oldest first."""
        after = where.after or 0
        found: list[Event] = []
        for width in scan_widths(self._storage):
            edge = after + width
            asked = replace(where, after=after, before=edge + 1)
            found += self._storage.events(asked, limit=limit - len(found))
            if len(found) == limit:
                return self._slice(found, found[-1].id, None)
            # Only when one beyond the edge can be seen are all before it sure to be there.
            beyond = self._storage.events(EventFilter(after=edge), limit=1)
            if not beyond:
                return self._slice(found, max(after, found[-1].id if found else 0), None)
            after = beyond[0].id - 1
        return self._slice(found, after, None)

    def latest(self, where: EventFilter, limit: int) -> EventSlice:
        """Events that fit and came before `where.before`, the newest first."""
        top = newest_id(self._storage, where.before) + 1
        found, before = scan_back(self._storage, where, top, limit, scan_widths(self._storage))
        return self._slice(found, found[0].id if found else top - 1, before)

    def with_objects(self, events_slice: EventSlice) -> EventSlice:
        """The same with the job or the worker of each event, as it was after that."""
        shown = EventSlice(self._with_shown_object(event) for event in with_objects(self._storage, events_slice))
        shown.last, shown.before = events_slice.last, events_slice.before
        return shown

    def _with_shown_object(self, event: Event) -> Event:
        if event.object is None or event.subject is not Subject.JOB:
            return event
        return replace(event, object=self._redaction.object(event.object))

    # --- the audit ------------------------------------------------------------------------------------------------

    def audit(self, before: int | None, limit: int, by: str | None = None) -> EventSlice:
        """What people did, the newest first; `by` asks for one of them. One look may find little, so several are taken
        until there is a page of them; `before` is None if nothing at all is older."""
        actions = EventSlice()
        for width in scan_widths(self._storage):
            found = self._find_actions(before, width, limit - len(actions), by)
            actions += found
            actions.last, before = max(actions.last, found.last), found.before
            if before is None or len(actions) >= limit:
                break
        actions.before = before if before is not None and newest_id(self._storage, before) else None
        return actions

    def _find_actions(self, before: int | None, width: int, limit: int, by: str | None) -> EventSlice:
        """The actions in one range of event ids."""
        top = newest_id(self._storage, before) + 1
        edge = max(0, top - width)
        at_once = limit + 1 if by is None else _AT_ONCE
        lists = [
            self._storage.events(where, limit=at_once, newest_first=True)
            for where in [
                EventFilter(kinds=_JOB_ACTIONS, before=top, after=edge),
                *(EventFilter(subject=subject, before=top, after=edge) for subject in _OTHER_SUBJECTS),
                EventFilter(subject=Subject.FOREMAN, kind=Kind.ORDERED, before=top, after=edge),
                EventFilter(subject=Subject.CLIENT, kind=Kind.SIGNED_OUT, before=top, after=edge),
            ]
        ]
        # A list that is cut says nothing about older events, so leave out older events of every list.
        floor = max((found[-1].id for found in lists if len(found) == at_once), default=edge + 1)
        actions = [event for found in lists for event in found if event.id >= floor and self._is_action(event, by)]
        actions.sort(key=lambda event: -event.id)
        if len(actions) > limit:
            return self._slice(actions[:limit], top - 1, actions[limit - 1].id)
        return self._slice(actions, top - 1, floor if floor > 1 else None)

    def _is_action(self, event: Event, by: str | None) -> bool:
        who = (event.data or {}).get("by")
        return bool(who) and by in (None, who) and self._sees(event)

    # --- workers --------------------------------------------------------------------------------------------------

    def shown_exit(self, departure: ExitedWorker) -> ExitedWorker:
        """A worker's end as this operator may see it: with the jobs of their queues."""
        jobs = [self._shown(event) for event in departure.jobs if self._sees(event)]
        return departure._replace(ended=self._shown(departure.ended), jobs=jobs)

    # --- what may be shown ------------------------------------------------------------------------------------------

    def _slice(self, events: Iterable[Event], last: int, before: int | None) -> EventSlice:
        events_slice = EventSlice(self._shown(event) for event in events if self._sees(event))
        events_slice.last, events_slice.before = last, before
        return events_slice

    def _sees(self, event: Event) -> bool:
        return event.queue is None or self._operator.sees(event.queue)

    def _shown(self, event: Event) -> Event:
        if not event.data:
            return event
        data = {
            name: self._redaction.text(value) if isinstance(value, str) else value for name, value in event.data.items()
        }
        if isinstance(record := data.pop("object", None), dict) and (mine := self._record(record)) is not None:
            data["object"] = mine
        if "args" in data:
            data["args"] = self._redaction.json(str(data["args"]))  # of which task is not told
        return replace(event, data=data)

    def _record(self, record: dict[str, Any]) -> dict[str, Any] | None:
        """The record of a worker with the queues that concern this operator; None if none of them does."""
        if not self._operator.queues:
            return record
        info, sees = record.get("info", {}), self._operator.sees
        chosen = info.get(SERVES)
        queues = [name for name in record.get("queues", ()) if sees(name)]
        serves = [name for name in strings_in(chosen) if sees(name)] if isinstance(chosen, list) else None
        if not queues and not serves:
            return None
        return {**record, "queues": queues, "info": {**info, **({} if serves is None else {SERVES: serves or queues})}}
