"""Lists and numbers: jobs by filter, tallies, queues, tasks."""

from __future__ import annotations

from collections import Counter

from msgspec.structs import replace

from packhorse.job import QUEUED, Job
from packhorse.storage import listing
from packhorse.storage.memory.keeper import Keeper, atomic
from packhorse.storage.records import Count, Filter, Page, QueueInfo, Tally, TaskInfo


class Lists(Keeper):
    @atomic
    def find(self, where: Filter, *, cursor: str | None = None, limit: int = 50) -> Page:
        order = listing.order_for(where)
        after = listing.decode_cursor(cursor, order)
        jobs = sorted((job for job in self._jobs.values() if listing.fits(job, where)), key=order.place)
        rest = [job for job in jobs if after is None or order.place(job) > after]
        page = rest[:limit]
        return Page(page, listing.encode_cursor(order, order.place(page[-1])) if len(rest) > limit else None)

    @atomic
    def count(self, where: Filter, *, cap: int = 10_000) -> Count:
        number = sum(listing.fits(job, where) for job in self._jobs.values())
        if listing.is_tallied(where) or number <= cap:
            return Count(number)
        return Count(cap, exact=False)

    @atomic
    def tallies(self) -> list[Tally]:
        counted = Counter((job.queue, job.task, job.state) for job in self._jobs.values())
        return [Tally(queue, task, state, number) for (queue, task, state), number in sorted(counted.items())]

    @atomic
    def queues(self) -> list[QueueInfo]:
        found = []
        for name in sorted(self._queues):
            jobs = [job for job in self._jobs.values() if job.queue == name]
            counts = dict(Counter(job.state for job in jobs))
            heads: dict[int, Job] = {}
            for job in sorted((job for job in jobs if job.state is QUEUED), key=lambda job: job.seq):
                heads.setdefault(job.rank, job)
            oldest = min((job.queued_at or 0 for job in heads.values()), default=None)
            found.append(replace(self._queues[name], counts=counts, oldest_queued_at=oldest))
        return found

    @atomic
    def tasks(self) -> list[TaskInfo]:
        return [self._tasks[name] for name in sorted(self._tasks)]
