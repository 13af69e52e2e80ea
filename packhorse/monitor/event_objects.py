"""The object of an event, as it was after that event: the job, or the worker's record.

`app.events(object=True)`, the command line and the web use this. A worker's event contains its record; a job is
replayed from its events (`replay.py`). The number of events read is limited, so a job that snoozes endlessly costs no
more.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from packhorse.core.event import Event, Subject
from packhorse.core.job import Job
from packhorse.monitor.replay import Object, replay
from packhorse.monitor.served_queues import SERVES, strings_in
from packhorse.storage import BATCH, Storage
from packhorse.storage.records import EventFilter, JobVersion

MOST_EVENTS = 2_000
"""The most events of one job that are read: the latest. Older ones count as pruned."""
_LOOKS = 3  # reads of a job that changes while its events are read


def with_objects(storage: Storage, events: Sequence[Event]) -> list[Event]:
    """Return these events, each with its `object`; None for a schedule, a queue, a client or a failure."""
    jobs = _job_objects(storage, list(dict.fromkeys(event.job_id for event in events if event.job_id is not None)))
    return [_with_object(event, jobs) for event in events]


def _with_object(event: Event, jobs: dict[int, Object]) -> Event:
    if event.subject is Subject.JOB:
        return replace(event, object=jobs.get(event.id))
    rest = dict(event.data or {})
    return replace(event, object=rest.pop("object", None), data=rest or None)


def _job_objects(storage: Storage, job_ids: Sequence[str]) -> dict[int, Object]:
    """Return the job after each of its events, by the event's id."""
    found: dict[int, Object] = {}
    waiting = list(job_ids)
    for look in range(_LOOKS):
        before = _get(storage, waiting)
        stories = {job_id: _story(storage, job_id) for job_id in waiting}
        after = _get(storage, waiting)
        stable = [job_id for job_id in waiting if _is_same(before.get(job_id), after.get(job_id))]
        for job_id in waiting if look == _LOOKS - 1 else stable:
            # The record of a job that keeps changing may be newer than these events: do not use it.
            stored = after.get(job_id) if job_id in stable else None
            objects = replay(stories[job_id], stored)
            found.update(zip((event.id for event in stories[job_id]), objects, strict=True))
        waiting = [job_id for job_id in waiting if job_id not in stable]
    return found


def _get(storage: Storage, job_ids: Sequence[str]) -> dict[str, Job]:
    parts = [job_ids[start : start + BATCH] for start in range(0, len(job_ids), BATCH)]
    return {job.id: job for part in parts for job in storage.get_many(part)}


def _is_same(before: Job | None, after: Job | None) -> bool:
    return before is after is None or (
        before is not None and after is not None and JobVersion.of(before).is_still(after)
    )


def _story(storage: Storage, job_id: str) -> list[Event]:
    """Return the latest events of a job, oldest first."""
    found: list[Event] = []
    while len(found) < MOST_EVENTS:
        where = EventFilter(job_id=job_id, before=found[-1].id if found else None)
        page = storage.events(where, limit=BATCH, newest_first=True)
        found += page
        if len(page) < BATCH:
            break
    return found[::-1]


def event_queue(event: Event) -> str | None:
    """Return the queue of an event; for a worker, the queues it serves: names separated by commas, or `*` for all."""
    record = event.object if event.object is not None else (event.data or {}).get("object")
    if event.subject is not Subject.WORKER or not isinstance(record, dict):
        return event.queue
    chosen = record.get("info", {}).get(SERVES)
    return ",".join(strings_in(chosen if isinstance(chosen, list) else record.get("queues"))) or "*"
