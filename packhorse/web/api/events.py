"""Events: what happened, and what people did (the audit)."""

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
    """Which events: after the one with this id, the oldest first; or the newest first, of those before this id. With
    `object=1` each has the job or the worker as it was after it."""

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
    """Further back than the event with this id; of one operator only."""

    before: EventId | None = None
    by: str | None = None
    limit: Annotated[int, Meta(ge=1, le=200)] = 100


class AuditPage(msgspec.Struct):
    """What people did, the newest first. `next` goes further back; it may be there although this page is empty."""

    items: list[EventFields]
    next: int | None


@get("/events")
def list_events(call: Call, query: EventsQuery) -> EventPage:
    """What happened to jobs, workers, queues and schedules."""
    job_id, owner = query.job or query.job_id, query.worker or query.owner
    if job_id is not None:
        told = call.reader.history.of_job(job_id, query.limit, query.after or 0)
    else:
        where = EventFilter(kind=query.kind, subject=query.subject, queue=query.queue, owner=owner, before=query.before)
        if query.after is not None:
            told = call.reader.history.since(replace(where, after=query.after), query.limit)
        else:
            told = call.reader.history.latest(where, query.limit)
    if query.object:
        told = call.reader.history.with_objects(told)
    return EventPage([event_fields(event, object=query.object) for event in told], told.last, told.before)


@get("/audit")
def list_audit(call: Call, query: AuditQuery) -> AuditPage:
    """What people did: who aborted, forced, moved, retried or deleted which job, who paused what, and when."""
    actions = call.reader.history.audit(query.before, query.limit, query.by)
    return AuditPage([event_fields(event) for event in actions], actions.before)
