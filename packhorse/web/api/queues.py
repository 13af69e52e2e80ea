"""Queues: their jobs and their state; pause, resume and purge."""

from __future__ import annotations

import msgspec

from packhorse.core.clock import from_datetime
from packhorse.monitor.serializers import QueueFields, iso, queue_fields
from packhorse.web.api.endpoint import Call, PartQuery, get, part_of, post
from packhorse.web.api.jobs import BulkAnswer, moment_of
from packhorse.web.security.operator import Role


class QueueList(msgspec.Struct):
    """Every queue, or up to the limit; `next` is the cursor for the rest."""

    items: list[QueueFields]
    next: str | None = None


class PauseBody(msgspec.Struct, forbid_unknown_fields=True):
    """The reason, which other operators see, and the duration (`2h`, or seconds) after which the queue resumes by
    itself. Without a duration it stays paused until it is resumed."""

    why: str | None = None
    duration: str | float | None = None


class PurgeBody(msgspec.Struct, forbid_unknown_fields=True):
    """Jobs that changed after `seen_at`, usually now, are skipped; `cursor` continues."""

    seen_at: str | None = None
    cursor: str | None = None


class Changed(msgspec.Struct):
    """Whether anything changed; false if it was so already."""

    name: str
    changed: bool


@get("/queues")
def list_queues(call: Call, query: PartQuery) -> QueueList:
    """Every queue: its jobs by state, how long the oldest has waited, how many run, and whether it is paused."""
    part, following = part_of(call.reader.queues(), lambda queue: queue.name, query)
    now = call.reader.now()
    return QueueList([queue_fields(queue, now) for queue in part], following)


@get("/queues/{name}")
def get_queue(call: Call, name: str) -> QueueFields:
    """One queue."""
    return queue_fields(call.reader.queue(name), call.reader.now())


@post("/queues/{name}/pause")
def pause_queue(call: Call, name: str, body: PauseBody) -> Changed:
    """Start no job of this queue for a while, or until it is resumed. Forced jobs still start."""
    return Changed(name, call.actions.pause(name, body.why, body.duration))


@post("/queues/{name}/resume")
def resume_queue(call: Call, name: str) -> Changed:
    """Undo a pause."""
    return Changed(name, call.actions.resume(name))


@post("/queues/{name}/purge", role=Role.ADMIN)
def purge_queue(call: Call, name: str, body: PurgeBody) -> BulkAnswer:
    """Delete the waiting jobs of this queue: queued, scheduled or retrying. Running jobs continue. One request deletes
    for up to two seconds; `next` is the cursor for the rest."""
    seen_at = from_datetime(moment_of(body.seen_at)) if body.seen_at else call.reader.now()
    done = call.actions.purge(name, seen_at, body.cursor)
    return BulkAnswer(changed=done.changed, skipped=done.skipped, next=done.next, seen_at=str(iso(seen_at)))
