"""What lies around a job, as far as it tells why the job is where it is: its queue, its line, the workers, a move.

`JobHandle.why` looks here, and `why.py` says it in words. Nothing is read that the state of the job makes irrelevant;
of a long line only the beginning is.
"""

from __future__ import annotations

from packhorse.core.event import Event, Kind
from packhorse.core.job import ABORTED, FINAL, HELD, QUEUED, Job
from packhorse.core.outcome import Failure
from packhorse.monitor.why import Seen
from packhorse.storage import Storage
from packhorse.storage.records import EventFilter, Filter
from packhorse.storage.transfer import problems

_LOOKED_AHEAD = 500
"""Jobs that are counted before "very many" is said."""


def look_around(storage: Storage, lease: int, job: Job) -> Seen:
    """Of this moment; the job may move on meanwhile."""
    if job.state is ABORTED:
        workers = storage.workers() if Failure.goes_on_in(job.error) else ()
        return Seen(storage.now(), lease, workers=workers, aborts=_aborts(storage, job.id))
    if job.state in FINAL:
        return Seen(storage.now(), lease)
    if job.state in HELD:
        return Seen(storage.now(), lease, workers=storage.workers())
    moving = "".join(problems(storage.move())) or None
    if job.state is not QUEUED:
        return Seen(storage.now(), lease, workers=storage.workers(), closed=moving)
    line = storage.find(Filter(states=frozenset({QUEUED}), queue=job.queue), limit=_LOOKED_AHEAD).jobs
    return Seen(
        now=storage.now(),
        lease=lease,
        queue=next((queue for queue in storage.queues() if queue.name == job.queue), None),
        task=next((task for task in storage.tasks() if task.name == job.task), None),
        workers=storage.workers(),
        held=[tally for tally in storage.tallies() if tally.state in HELD],
        ahead=next((place for place, other in enumerate(line) if other.id == job.id), None),
        closed=moving,
    )


def _aborts(storage: Storage, job_id: str) -> list[Event]:
    """How its last life was ended: the events that say who wanted it."""
    events = [event for kind in (Kind.ABORT_ASKED, Kind.ABORTED) for event in _latest(storage, job_id, kind)]
    begun = max((event.id for event in _latest(storage, job_id, Kind.RETRIED)), default=0)
    return [event for event in events if event.id > begun]


def _latest(storage: Storage, job_id: str, kind: Kind) -> list[Event]:
    return storage.events(EventFilter(job_id=job_id, kind=kind), limit=1, newest_first=True)
