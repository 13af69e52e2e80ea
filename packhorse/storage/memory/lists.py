"""Lists and numbers: jobs by filter, tallies, queues, tasks."""

from __future__ import annotations

from collections import Counter, defaultdict

from msgspec.structs import replace

from packhorse.core.job import QUEUED, Job, State
from packhorse.storage import listing
from packhorse.storage.memory.keeper import Keeper, atomic
from packhorse.storage.records import Count, Filter, Page, QueueInfo, Tally, TaskInfo, look_into


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
        counts: defaultdict[str, Counter[State]] = defaultdict(Counter)
        lines: defaultdict[tuple[str, int], list[Job]] = defaultdict(list)
        for job in sorted(self._jobs.values(), key=lambda job: job.seq):
            counts[job.queue][job.state] += 1
            if job.state is QUEUED:
                lines[job.queue, job.rank].append(job)
        depth = look_into(sum(not _is_oldest(line[0]) for line in lines.values()))
        oldest: dict[str, int] = {}
        for (queue, _), line in lines.items():
            since = min(job.queued_at or 0 for job in line[: 1 if _is_oldest(line[0]) else depth])
            oldest[queue] = min(since, oldest.get(queue, since))
        return [
            replace(self._queues[name], counts=dict(counts[name]), oldest_queued_at=oldest.get(name))
            for name in sorted(self._queues)
        ]

    @atomic
    def tasks(self) -> list[TaskInfo]:
        return [self._tasks[name] for name in sorted(self._tasks)]


def _is_oldest(first: Job) -> bool:
    """Has the first of a line waited longer than the others? See `look_into`."""
    return first.queued_at == first.created_at
