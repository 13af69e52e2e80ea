"""What a storage has in it, in words: nothing, or the checks must not touch it. `Subject.try_out` and every check ask
first; asking changes nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from packhorse.monitor.text import count_text
from packhorse.storage import Storage
from packhorse.storage.records import EventFilter, Filter


def contents_of(storage: Storage) -> str:
    """ "5 jobs, 1 queue and events", or nothing if it is empty."""
    found = list(_found(storage))
    return " and ".join(part for part in (", ".join(found[:-1]), *found[-1:]) if part)


def _found(storage: Storage) -> Iterator[str]:
    jobs = storage.count(Filter())
    if jobs.number:
        yield f"{'' if jobs.exact else 'at least '}{count_text(jobs.number, 'job')}"
    kinds: dict[str, Sequence[object]] = {
        "queue": storage.queues(),
        "worker": storage.workers(),  # foremen, too
        "schedule": storage.schedules(),
        "task": storage.tasks(),
        "client": storage.clients(),
    }
    for kind, those in kinds.items():
        if those:
            yield count_text(len(those), kind)
    if storage.events(EventFilter(), limit=1):
        yield "events"
