"""Jobs that were enqueued by name before their task was announced: its first announcement corrects their queue and
options.

They are read a page at a time, the newest first, together with the events of their enqueueing, which record what their
callers chose. Each page takes a few atomic writes, and a corrected page takes none, so an interrupted process leaves
the rest to the next one, and several may do this concurrently.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from packhorse.core.event import Event, Kind, Subject
from packhorse.core.job import LOWEST_PRIORITY, SETTLED_LATER, WAITING, Job, NewJob
from packhorse.storage import BATCH, Storage
from packhorse.storage.queries import CLOCK_SLACK
from packhorse.storage.records import EventFilter, Filter, JobVersion, TaskInfo

_DEFAULTS = {name: getattr(NewJob("", "", ""), name) for name in SETTLED_LATER if name != "queue"}
"""The options of a job for which neither its caller nor its task sets any."""
_ENQUEUED = frozenset({Kind.ADDED, Kind.REPLACED})
_BY_TASK = "its task"
"""Named in the history as the author of the change."""
_DENSE = 16
"""If there are at most so many events for each job, they are read together; otherwise the jobs are divided first."""
_SAMPLE = 100
"""Events read to estimate how far apart ids are: a storage may leave gaps."""
_FEW = 32
"""For fewer jobs the estimate is not worth its cost."""
_TRIES = 5
"""How often a job is read again because it changed between the read and the write."""


def update_earlier_jobs(storage: Storage, tasks: Sequence[TaskInfo]) -> None:
    """Give the waiting jobs of newly announced tasks the queue and the options of their tasks. What their callers chose
    stays, and so do the changes of operators."""
    if tasks:
        waiting = {tally.task for tally in storage.tallies() if tally.state in WAITING and tally.number}
        for task in tasks:
            if task.name in waiting:
                _update_jobs_of(storage, task)


def _update_jobs_of(storage: Storage, task: TaskInfo) -> None:
    options = {name: task.options.get(name, default) for name, default in _DEFAULTS.items()}
    if task.queue == task.name and options == _DEFAULTS:
        return
    where, cursor = Filter(states=WAITING, task=task.name), None
    while True:
        page = storage.find(where, cursor=cursor, limit=BATCH)
        _update(storage, page.jobs, task, options)
        if page.next is None:
            return
        cursor = page.next


def _update(storage: Storage, jobs: Sequence[Job], task: TaskInfo, options: Mapping[str, Any]) -> None:
    """Update these jobs, the newest first. A job that has changed since it was read is read again."""
    for _ in range(_TRIES):
        outdated = [job for job in jobs if job.state in WAITING and not _has(job, task.queue, options, options)]
        if not outdated:
            return
        chosen = _chosen(storage, outdated)
        groups: dict[tuple[str, tuple[str, ...]], list[Job]] = {}
        for job in outdated:
            queue, names = _target(job, task, chosen.get(job.id))
            if not _has(job, queue, options, names):
                groups.setdefault((queue, names), []).append(job)
        stale: list[str] = []
        for (queue, names), members in groups.items():
            changes = {name: options[name] for name in names}
            ids, seen = [job.id for job in members], [JobVersion.of(job) for job in members]
            answers = storage.set_queue(ids, queue, by=_BY_TASK, seen=seen, options=changes)
            stale += [answer.job_id for answer in answers if answer.stale]
        jobs = sorted(storage.get_many(stale), key=lambda job: -job.seq) if stale else []


def _has(job: Job, queue: str, options: Mapping[str, Any], names: Collection[str]) -> bool:
    """Is it in this queue, with these options?"""
    return job.queue == queue and all(getattr(job, name) == options[name] for name in names)


def _target(job: Job, task: TaskInfo, chosen: Collection[str] | None) -> tuple[str, tuple[str, ...]]:
    """The queue for this job, and the names of the options that it takes from its task. Programs of an earlier version
    did not record what was chosen: their jobs take only queue and priority, if these have the default values."""
    kept = ("max_halts", "expires", "total_timeout", "persistent") if chosen is None else chosen
    queue = task.queue if job.queue == task.name and "queue" not in kept else job.queue
    names = [name for name in _DEFAULTS if name not in kept]
    if job.priority != LOWEST_PRIORITY and "priority" in names:
        names.remove("priority")
    return queue, tuple(names)


# --- the options that callers chose --------------------------------------------------------------------------------


def _chosen(storage: Storage, jobs: Sequence[Job]) -> dict[str, Collection[str]]:
    """The options that the callers of these jobs chose, by job id. Older events may have been pruned."""
    oldest = storage.events(EventFilter(), limit=1)
    kept_from = oldest[0].at - CLOCK_SLACK if oldest else 0
    events = _EnqueueEvents(storage).of([job for job in jobs if job.created_at >= kept_from])
    facts = {job_id: (event.data or {}).get("chosen") for job_id, event in events.items() if event is not None}
    return {job_id: chosen for job_id, chosen in facts.items() if isinstance(chosen, list | tuple)}


class _EnqueueEvents:
    """Reads the latest enqueueing event of each of many jobs. Events are in the order of the jobs, so the others lie
    between those of the newest and the oldest job. If few other events lie there, all are read in one go."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._found: dict[str, Event | None] = {}

    def of(self, jobs: Sequence[Job]) -> dict[str, Event | None]:
        """By job id, for jobs in order from the newest; None if the event is gone."""
        for job in jobs:
            if _may_be_replaced(job):
                self._read_one(job)
        parts: list[Sequence[Job]] = [[job for job in jobs if job.id not in self._found]]
        while parts:
            part = parts.pop()
            if part:
                parts += self._read_part(part)
        return self._found

    def _read_part(self, part: Sequence[Job]) -> list[Sequence[Job]]:
        """Read what can be read together; return the rest, in parts."""
        first, last, rest = self._read_one(part[0]), self._read_one(part[-1]), part[1:-1]
        if not rest:
            return []
        if first is None or last is None or not self._are_near(first, last, len(part)):
            middle = len(rest) // 2
            return [rest[:middle], rest[middle:]]
        self._read_between(first, last, rest)
        unknown = [job for job in rest if job.id not in self._found]
        if 2 * len(unknown) <= len(rest):
            return [unknown]
        for job in unknown:  # their events lie elsewhere
            self._read_one(job)
        return []

    def _are_near(self, first: Event, last: Event, number: int) -> bool:
        """Are there few events between these two, for this number of jobs?"""
        low, high = sorted((first.id, last.id))
        if high - low <= _DENSE * number:
            return True
        if number < _FEW:
            return False
        sample = self._storage.events(EventFilter(after=low - 1, before=high + 1), limit=_SAMPLE, newest_first=True)
        distance = (sample[0].id - sample[-1].id) / len(sample) if sample else 0.0
        return high - low <= _DENSE * number * distance

    def _read_one(self, job: Job) -> Event | None:
        if job.id not in self._found:
            of_job = EventFilter(job_id=job.id, kinds=_ENQUEUED)
            self._found[job.id] = next(iter(self._storage.events(of_job, limit=1, newest_first=True)), None)
        return self._found[job.id]

    def _read_between(self, first: Event, last: Event, jobs: Sequence[Job]) -> None:
        unknown = {job.id for job in jobs}
        is_unique = any(job.unique_key is not None for job in jobs)
        low, high = sorted((first.id, last.id))
        where = EventFilter(
            subject=Subject.JOB,
            kinds=_ENQUEUED,
            queue=first.queue if first.queue == last.queue and not is_unique else None,
            after=low - 1,
        )
        before = high + BATCH  # a job may have been replaced within the batch that added it
        while unknown:
            events = self._storage.events(replace(where, before=before), limit=BATCH, newest_first=True)
            for event in events:
                if event.job_id in unknown:
                    unknown.remove(event.job_id)
                    self._found[event.job_id] = event
            if len(events) < BATCH:
                return
            before = events[-1].id


def _may_be_replaced(job: Job) -> bool:
    """May a later call with the same unique key have replaced its options?"""
    return job.unique_key is not None and job.updated_at != job.created_at
