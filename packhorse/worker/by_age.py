"""Reserving in the order in which jobs were created, whatever their queues; for who sets `order = "created"`.

Storages share the turns of one rank among queues, and take the first of each line. Here it is looked up first in which
lines the oldest jobs stand, and as many are taken from each. Two workers that do so at once may get each other's
neighbours; no job is passed over.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping

from packhorse.core.job import QUEUED, Job
from packhorse.storage.contract import Storage
from packhorse.storage.records import Filter


def reserve_by_age(storage: Storage, owner: str, queues: Mapping[str, int], limit: int) -> list[Job]:
    """`storage.reserve`, by rank and then by age, across these queues."""
    shares = _lines_of_oldest(storage, queues, limit)
    taken = _take(storage, owner, queues, shares)
    if not taken and shares:  # they stand in queues that are paused, perhaps before others
        paused = {queue.name for queue in storage.queues() if queue.is_paused}
        open_queues = {name: weight for name, weight in queues.items() if name not in paused}
        taken = _take(storage, owner, queues, _lines_of_oldest(storage, open_queues, limit)) if open_queues else []
    if not taken:  # nothing is in line, but some may be due; and the storage says if it does not know this worker
        taken = storage.reserve(owner, queues, limit)
    return sorted(taken, key=lambda job: (job.rank, job.seq))


def _lines_of_oldest(storage: Storage, queues: Collection[str], limit: int) -> Counter[str]:
    """How many of the jobs that go next stand in each of these queues; the line of the first of them comes first."""
    where = Filter(states=frozenset({QUEUED}), queues=frozenset(queues))
    return Counter(job.queue for job in storage.find(where, limit=limit).jobs)


def _take(storage: Storage, owner: str, queues: Mapping[str, int], shares: Counter[str]) -> list[Job]:
    return [job for queue, share in shares.items() for job in storage.reserve(owner, {queue: queues[queue]}, share)]
