"""History for one operator: events, and the audit of what people did. The reader has one; API and pages ask it.

What one request looks through is bounded, and it says where the next one begins; see `looking_back.py`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from msgspec.structs import replace

from packhorse.core.errors import JobNotFound
from packhorse.core.event import Event, Kind, Subject
from packhorse.monitor.event_objects import with_objects
from packhorse.monitor.served_queues import SERVES, strings_in
from packhorse.storage import Storage
from packhorse.storage.records import EventFilter
from packhorse.web.departures import Departure
from packhorse.web.looking_back import look_back, newest_id, stretches
from packhorse.web.security.operator import Operator
from packhorse.web.security.redaction import Redaction

_AT_ONCE = 1_000
# What only operators do, or what says who did it: these events make the audit.
_JOB_DEEDS = frozenset(
    (
        *(Kind.ABORT_ASKED, Kind.ABORTED, Kind.FORCE_STARTED),
        *(Kind.PRIORITY_CHANGED, Kind.QUEUE_CHANGED, Kind.RETRIED, Kind.DELETED),
    )
)
_OTHER_DEEDS = (Subject.QUEUE, Subject.SCHEDULE, Subject.FAILURE)


class Told(list[Event]):
    """Events. `last` is where a look forward goes on, `before` where a look back does: None at the beginning."""

    last: int = 0
    before: int | None = None


class History:
    """What one operator may know of what happened."""

    def __init__(self, storage: Storage, redaction: Redaction, operator: Operator) -> None:
        self._storage = storage
        self._redaction = redaction
        self._operator = operator

    # --- events ---------------------------------------------------------------------------------------------------

    def of_job(self, job_id: str, limit: int, after: int = 0) -> Told:
        """A job's events, the oldest first; JobNotFound if it is of a queue that does not concern them. A job may be
        there although none are left: they are kept for a while only, and a broken record may not lead to them."""
        first = self._storage.events(EventFilter(job_id=job_id), limit=1)
        about = first[0] if first else self._storage.get(job_id)
        if about is None or not self._operator.sees(about.queue):
            raise JobNotFound(job_id)
        found = self._storage.events(EventFilter(job_id=job_id, after=after), limit=limit)
        return self._told(found, found[-1].id if found else after, None)

    def since(self, where: EventFilter, limit: int) -> Told:
        """Events that fit and came after `where.after`, the oldest first."""
        after = where.after or 0
        found: list[Event] = []
        for width in stretches(self._storage):
            edge = after + width
            asked = replace(where, after=after, before=edge + 1)
            found += self._storage.events(asked, limit=limit - len(found))
            if len(found) == limit:
                return self._told(found, found[-1].id, None)
            # Only when one beyond the edge can be seen are all before it sure to be there.
            beyond = self._storage.events(EventFilter(after=edge), limit=1)
            if not beyond:
                return self._told(found, max(after, found[-1].id if found else 0), None)
            after = beyond[0].id - 1
        return self._told(found, after, None)

    def latest(self, where: EventFilter, limit: int) -> Told:
        """Events that fit and came before `where.before`, the newest first."""
        top = newest_id(self._storage, where.before) + 1
        found, before = look_back(self._storage, where, top, limit, stretches(self._storage))
        return self._told(found, found[0].id if found else top - 1, before)

    def with_objects(self, told: Told) -> Told:
        """The same with the job or the worker of each event, as it was after that."""
        shown = Told(self._with_shown_object(event) for event in with_objects(self._storage, told))
        shown.last, shown.before = told.last, told.before
        return shown

    def _with_shown_object(self, event: Event) -> Event:
        if event.object is None or event.subject is not Subject.JOB:
            return event
        return replace(event, object=self._redaction.object(event.object))

    # --- the audit ------------------------------------------------------------------------------------------------

    def audit(self, before: int | None, limit: int, by: str | None = None) -> Told:
        """What people did, the newest first; `by` asks for one of them. One look may find little, so several are taken
        until there is a page of them; `before` is None if nothing at all is older."""
        deeds = Told()
        for width in stretches(self._storage):
            found = self._deeds(before, width, limit - len(deeds), by)
            deeds += found
            deeds.last, before = max(deeds.last, found.last), found.before
            if before is None or len(deeds) >= limit:
                break
        deeds.before = before if before is not None and newest_id(self._storage, before) else None
        return deeds

    def _deeds(self, before: int | None, width: int, limit: int, by: str | None) -> Told:
        """What one look finds."""
        top = newest_id(self._storage, before) + 1
        edge = max(0, top - width)
        at_once = limit + 1 if by is None else _AT_ONCE
        lists = [
            self._storage.events(where, limit=at_once, newest_first=True)
            for where in [
                EventFilter(kinds=_JOB_DEEDS, before=top, after=edge),
                *(EventFilter(subject=subject, before=top, after=edge) for subject in _OTHER_DEEDS),
                EventFilter(subject=Subject.FOREMAN, kind=Kind.ORDERED, before=top, after=edge),
                EventFilter(subject=Subject.CLIENT, kind=Kind.SIGNED_OUT, before=top, after=edge),
            ]
        ]
        # Of a list that was cut short nothing is known below its last one, so nothing below that is told of any.
        floor = max((found[-1].id for found in lists if len(found) == at_once), default=edge + 1)
        deeds = [event for found in lists for event in found if event.id >= floor and self._is_deed(event, by)]
        deeds.sort(key=lambda event: -event.id)
        if len(deeds) > limit:
            return self._told(deeds[:limit], top - 1, deeds[limit - 1].id)
        return self._told(deeds, top - 1, floor if floor > 1 else None)

    def _is_deed(self, event: Event, by: str | None) -> bool:
        who = (event.data or {}).get("by")
        return bool(who) and by in (None, who) and self._sees(event)

    # --- workers --------------------------------------------------------------------------------------------------

    def shown_departure(self, departure: Departure) -> Departure:
        """A worker's end as this operator may see it: with the jobs of their queues."""
        jobs = [self._shown(event) for event in departure.jobs if self._sees(event)]
        return departure._replace(ended=self._shown(departure.ended), jobs=jobs)

    # --- what may be shown ------------------------------------------------------------------------------------------

    def _told(self, events: Iterable[Event], last: int, before: int | None) -> Told:
        told = Told(self._shown(event) for event in events if self._sees(event))
        told.last, told.before = last, before
        return told

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
