"""Events: what happened, and what operators did (the audit)."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from packhorse.core.event import Kind, Subject, known_kind
from packhorse.monitor.serializers import EventFields, event_fields
from packhorse.storage.records import EventFilter
from packhorse.web.api.endpoint import Call, get
from packhorse.web.api.jobs import EventPage

EventId = Annotated[int, Meta(ge=0, le=2**62)]


class EventsQuery(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Which events: those after an id, oldest first, or those before an id, newest first. With `object=1`, each has the
    job or the worker as it was after the event."""

    job: str | None = None
    job_id: str | None = None  # the same as `job`
    kind: Kind | None = None
    subject: Subject | None = None
    queue: str | None = None
    worker: str | None = None
    owner: str | None = None  # the same as `worker`
    after: EventId | None = None
    before: EventId | None = None
    limit: Annotated[int, Meta(ge=1, le=1_000)] = 100
    object: bool = False

    def __post_init__(self) -> None:
        if self.kind is not None:
            known_kind(self.kind)


class AuditQuery(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Only events before this id; only those of one operator."""

    before: EventId | None = None
    by: str | None = None
    limit: Annotated[int, Meta(ge=1, le=200)] = 100


class AuditPage(msgspec.Struct):
    """What operators did, newest first. `next` continues further back; even an empty page may have it."""

    items: list[EventFields]
    next: int | None


@get("/events")
def list_events(call: Call, query: EventsQuery) -> EventPage:
    """What happened to jobs, workers, queues and schedules."""
    job_id, owner = query.job or query.job_id, query.worker or query.owner
    if job_id is not None:
        events = call.reader.history.of_job(job_id, query.limit, query.after or 0)
    else:
        where = EventFilter(kind=query.kind, subject=query.subject, queue=query.queue, owner=owner, before=query.before)
        if query.after is not None:
            events = call.reader.history.since(replace(where, after=query.after), query.limit)
        else:
            events = call.reader.history.latest(where, query.limit)
    if query.object:
        events = call.reader.history.with_objects(events)
    return EventPage([event_fields(event, object=query.object) for event in events], events.last, events.before)


@get("/audit")
def list_audit(call: Call, query: AuditQuery) -> AuditPage:
    """What operators did: who aborted, forced, moved, retried or deleted which job, who paused what, and when."""
    events = call.reader.history.audit(query.before, query.limit, query.by)
    return AuditPage([event_fields(event) for event in events], events.before)
