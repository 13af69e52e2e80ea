"""Jobs that were enqueued by name before anybody had announced their task: its first announcement settles their queue
and options.

They are walked a page at a time, the newest first, and the events of their enqueueing, which tell what their callers
chose, are read alongside. Each page is settled in a few atomic steps, and one that is settled needs none, so whoever is
interrupted leaves the rest to the next, and those who do this at the same time do no harm.
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

_USUAL = {name: getattr(NewJob("", "", ""), name) for name in SETTLED_LATER if name != "queue"}
"""What a job has of these options if neither its caller nor its task says anything."""
_ENQUEUED = frozenset({Kind.ADDED, Kind.REPLACED})
_BY_TASK = "its task"
"""Who is told to have changed a job that was enqueued before its task was known."""
_DENSE = 16
"""Events for each job among which those of the jobs are read all at once; among more, the jobs are divided first."""
_SAMPLE = 100
"""Events that are looked at to learn how far apart ids are: a storage may leave out most of them."""
_FEW = 32
"""For fewer jobs it is not worth that."""
_TRIES = 5
"""How often a job is looked at again that somebody has changed between the look and the write."""


def settle_earlier_jobs(storage: Storage, tasks: Sequence[TaskInfo]) -> None:
    """Give the waiting jobs of tasks that were not known the queue and the options of their tasks. What their callers
    chose stays, and so does what an operator orders, before or meanwhile."""
    if tasks:
        waiting = {tally.task for tally in storage.tallies() if tally.state in WAITING and tally.number}
        for task in tasks:
            if task.name in waiting:
                _settle_jobs_of(storage, task)


def _settle_jobs_of(storage: Storage, task: TaskInfo) -> None:
    wanted = {name: task.options.get(name, usual) for name, usual in _USUAL.items()}
    if task.queue == task.name and wanted == _USUAL:
        return
    where, cursor = Filter(states=WAITING, task=task.name), None
    while True:
        page = storage.find(where, cursor=cursor, limit=BATCH)
        _settle(storage, page.jobs, task, wanted)
        if page.next is None:
            return
        cursor = page.next


def _settle(storage: Storage, jobs: Sequence[Job], task: TaskInfo, wanted: Mapping[str, Any]) -> None:
    """These jobs, the newest first. One that has changed since it was read is read again."""
    for _ in range(_TRIES):
        astray = [job for job in jobs if job.state in WAITING and not _has(job, task.queue, wanted, wanted)]
        if not astray:
            return
        chosen = _chosen(storage, astray)
        groups: dict[tuple[str, tuple[str, ...]], list[Job]] = {}
        for job in astray:
            queue, names = _settled(job, task, chosen.get(job.id))
            if not _has(job, queue, wanted, names):
                groups.setdefault((queue, names), []).append(job)
        stale: list[str] = []
        for (queue, names), members in groups.items():
            options = {name: wanted[name] for name in names}
            ids, seen = [job.id for job in members], [JobVersion.of(job) for job in members]
            answers = storage.set_queue(ids, queue, by=_BY_TASK, seen=seen, options=options)
            stale += [answer.job_id for answer in answers if answer.stale]
        jobs = sorted(storage.get_many(stale), key=lambda job: -job.seq) if stale else []


def _has(job: Job, queue: str, wanted: Mapping[str, Any], names: Collection[str]) -> bool:
    """Is it in this queue, with the wanted values of these options?"""
    return job.queue == queue and all(getattr(job, name) == wanted[name] for name in names)


def _settled(job: Job, task: TaskInfo, chosen: Collection[str] | None) -> tuple[str, tuple[str, ...]]:
    """The queue for this job, and the options that it takes from its task. Programs of an earlier version did not write
    what was chosen: their jobs take queue and priority if they have the usual ones, and nothing else."""
    kept = ("max_halts", "expires", "total_timeout", "persistent") if chosen is None else chosen
    queue = task.queue if job.queue == task.name and "queue" not in kept else job.queue
    names = [name for name in _USUAL if name not in kept]
    if job.priority != LOWEST_PRIORITY and "priority" in names:
        names.remove("priority")
    return queue, tuple(names)


# --- what was chosen ----------------------------------------------------------------------------------------------


def _chosen(storage: Storage, jobs: Sequence[Job]) -> dict[str, Collection[str]]:
    """What the callers of these jobs chose, by the events of their enqueueing. Older events may have been pruned."""
    oldest = storage.events(EventFilter(), limit=1)
    kept_from = oldest[0].at - CLOCK_SLACK if oldest else 0
    told = _Enqueueings(storage).of([job for job in jobs if job.created_at >= kept_from])
    facts = {job_id: (event.data or {}).get("chosen") for job_id, event in told.items() if event is not None}
    return {job_id: chosen for job_id, chosen in facts.items() if isinstance(chosen, list | tuple)}


class _Enqueueings:
    """Reads the latest event of enqueueing of each of many jobs. Events come in the order of the jobs, so those of the
    newest and the oldest job tell where the others are. If few other events lie there, all are read at once."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._told: dict[str, Event | None] = {}

    def of(self, jobs: Sequence[Job]) -> dict[str, Event | None]:
        """By the id of the job, of which the newest come first. None: there is no such event any more."""
        for job in jobs:
            if _may_be_replaced(job):
                self._read_alone(job)
        parts: list[Sequence[Job]] = [[job for job in jobs if job.id not in self._told]]
        while parts:
            part = parts.pop()
            if part:
                parts += self._read_part(part)
        return self._told

    def _read_part(self, part: Sequence[Job]) -> list[Sequence[Job]]:
        """Answers those of which nothing is known yet, in parts."""
        first, last, rest = self._read_alone(part[0]), self._read_alone(part[-1]), part[1:-1]
        if not rest:
            return []
        if first is None or last is None or not self._are_near(first, last, len(part)):
            middle = len(rest) // 2
            return [rest[:middle], rest[middle:]]
        self._read_between(first, last, rest)
        unknown = [job for job in rest if job.id not in self._told]
        if 2 * len(unknown) <= len(rest):
            return [unknown]
        for job in unknown:  # their events are elsewhere
            self._read_alone(job)
        return []

    def _are_near(self, first: Event, last: Event, number: int) -> bool:
        """Do few events lie between these, for so many jobs?"""
        low, high = sorted((first.id, last.id))
        if high - low <= _DENSE * number:
            return True
        if number < _FEW:
            return False
        sample = self._storage.events(EventFilter(after=low - 1, before=high + 1), limit=_SAMPLE, newest_first=True)
        distance = (sample[0].id - sample[-1].id) / len(sample) if sample else 0.0
        return high - low <= _DENSE * number * distance

    def _read_alone(self, job: Job) -> Event | None:
        if job.id not in self._told:
            of_job = EventFilter(job_id=job.id, kinds=_ENQUEUED)
            self._told[job.id] = next(iter(self._storage.events(of_job, limit=1, newest_first=True)), None)
        return self._told[job.id]

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
                    self._told[event.job_id] = event
            if len(events) < BATCH:
                return
            before = events[-1].id


def _may_be_replaced(job: Job) -> bool:
    """May a unique twin have brought it other options, after others were enqueued?"""
    return job.unique_key is not None and job.updated_at != job.created_at
