"""Finding jobs, and looking around: queues, tasks, workers, failures, events; pausing and resuming queues.

One group of an app's methods. Lists are read a page at a time, so that they may be of any length.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any, Unpack

from msgspec.structs import replace

from packhorse.client.home import Home
from packhorse.client.job import JobHandle
from packhorse.core import clock
from packhorse.core.clock import Duration, microseconds
from packhorse.core.errors import BadValue, JobNotFound, did_you_mean
from packhorse.core.event import Event, Kind, known_kind
from packhorse.core.job import Job
from packhorse.core.task import check_name
from packhorse.monitor.event_objects import with_objects
from packhorse.monitor.filters import SLOWEST_OF, JobFilter, parse_filter, slowest
from packhorse.storage.records import EventFilter, FailureGroup, Filter, Health, Page, QueueInfo, TaskInfo, WorkerInfo

_PAGE = 100
_ANY_NUMBER = 1 << 62


class Looking(Home):
    def get(self, id: str) -> JobHandle[Any]:
        """The job with this id; raises JobNotFound."""
        return self._found(id, self.storage.get(_checked(id)))

    def get_or_none(self, id: str) -> JobHandle[Any] | None:
        """The job with this id, or None."""
        record = self.storage.get(_checked(id))
        return None if record is None else JobHandle.of(self, record)

    def jobs(self, *, limit: int | None = None, **where: Unpack[JobFilter]) -> Iterator[JobHandle[Any]]:
        """The jobs that fit, read a page at a time: those in line by rank and age, finished ones by the latest, others
        by the newest. `state` is a word, or several: a state's own name, "waiting", "failed", "halted" …

        >>> for job in app.jobs(state="dead", queue="mail", limit=20): job.retry()
        >>> app.jobs(args={"user_id": 42}, attempts=">1", took=">30s", since="2h")
        """
        return self._pages(parse_filter(where, self.storage.now), _limit(limit))

    def count(self, **where: Unpack[JobFilter]) -> int:
        """How many jobs fit; quick by state, queue and task, counted one by one otherwise."""
        wanted = parse_filter(where, self.storage.now)
        counted = self.storage.count(wanted, cap=_ANY_NUMBER)
        return counted.number if counted.exact else sum(1 for _ in self._pages(wanted, _ANY_NUMBER))

    async def aget(self, id: str) -> JobHandle[Any]:
        """`get`, for coroutines; many at once share one read."""
        record = await self._courier.share(self._get_each, _checked(id))
        return self._found(id, record, for_coroutine=True)

    async def aget_or_none(self, id: str) -> JobHandle[Any] | None:
        """`get_or_none`, for coroutines; many at once share one read."""
        record = await self._courier.share(self._get_each, _checked(id))
        return None if record is None else JobHandle.of(self, record, for_coroutine=True)

    def ajobs(self, *, limit: int | None = None, **where: Unpack[JobFilter]) -> AsyncIterator[JobHandle[Any]]:
        """`jobs`, for coroutines: `async for job in app.ajobs(…)`."""
        parse_filter(where, clock.now)  # a wrong word is told at once; what it means is for the storage's clock to say
        return self._apages(where, _limit(limit))

    async def acount(self, **where: Unpack[JobFilter]) -> int:
        """`count`, for coroutines."""
        return await self._courier.call(self.count, **where)

    def _found(self, id: str, record: Job | None, *, for_coroutine: bool = False) -> JobHandle[Any]:
        if record is None:
            raise JobNotFound(id)
        return JobHandle.of(self, record, for_coroutine=for_coroutine)

    def _page(self, where: Filter, cursor: str | None, left: int, *, learns: bool = False) -> Page:
        page = self.storage.find(where, cursor=cursor, limit=min(left, _PAGE))
        if learns:
            self._learn_tasks(page.jobs)
        return page

    def _pages(self, where: Filter, left: int) -> Iterator[JobHandle[Any]]:
        if where.order == "took":
            latest = [job.record for job in self._pages(replace(where, order=None), SLOWEST_OF)]
            yield from (JobHandle.of(self, job) for job in slowest(latest, self.storage.now())[:left])
            return
        cursor = None
        while left > 0:
            page = self._page(where, cursor, left)
            yield from (JobHandle.of(self, job) for job in page.jobs)
            left, cursor = left - len(page.jobs), page.next
            if cursor is None:
                return

    async def _apages(self, words: JobFilter, left: int) -> AsyncIterator[JobHandle[Any]]:
        where = await self._courier.call(lambda: parse_filter(words, self.storage.now))
        if where.order == "took":
            for handle in await self._courier.call(lambda: list(self._pages(where, left))):
                yield JobHandle.of(self, handle.record, for_coroutine=True)
            return
        cursor = None
        while left > 0:
            page = await self._courier.call(self._page, where, cursor, left, learns=True)
            for job in page.jobs:
                yield JobHandle.of(self, job, for_coroutine=True)
            left, cursor = left - len(page.jobs), page.next
            if cursor is None:
                return

    # --- looking around and steering ------------------------------------------------------------------------------

    def queues(self) -> list[QueueInfo]:
        """Every queue, with its numbers of jobs by state and whether it is paused."""
        return self.storage.queues()

    def tasks(self) -> list[TaskInfo]:
        """Every task that was enqueued or that a worker announced; those registered here are in `app.registry`."""
        return self.storage.tasks()

    def workers(self) -> list[WorkerInfo]:
        """Every worker and foreman."""
        return self.storage.workers()

    def failures(self, *, limit: int = 50) -> list[FailureGroup]:
        """What went wrong, grouped by cause, the latest first."""
        return self.storage.failures(limit=limit)

    def health(self) -> Health:
        """How the storage is; an empty list of `problems` means well."""
        return self.storage.health()

    def events(
        self,
        *,
        job: str | None = None,
        kind: str | None = None,
        queue: str | None = None,
        worker: str | None = None,
        after: int | None = None,
        limit: int = 100,
        newest_first: bool = False,
        object: bool = False,
    ) -> list[Event]:
        """What happened, by rising id or by falling; `after` continues behind the event with that id. With `object`
        each event has the job or the worker as it was after it, by the names of its fields."""
        where = EventFilter(job_id=job, kind=_kind(kind), queue=queue, owner=worker, after=after)
        found = self.storage.events(where, limit=limit, newest_first=newest_first)
        return with_objects(self.storage, found) if object else found

    def pause(
        self, queue: str, *, by: str | None = None, why: str | None = None, duration: Duration | None = None
    ) -> bool:
        """Let no job of this queue begin until `resume`, but those that are forced; with a duration ("2h", 7200), until
        that is over. One without a duration takes the place of one with. False: it was paused already, and stays so.

        The queue need not be known yet: its first job will find it paused.
        """
        span = None if duration is None else _pause_span(duration)
        return self.storage.pause(check_name(queue, "queue name"), by=by, why=why, duration=span)

    def resume(self, queue: str, *, by: str | None = None) -> bool:
        """Undo `pause`. False: it was not paused."""
        return self.storage.resume(check_name(queue, "queue name"), by=by)

    async def apause(
        self, queue: str, *, by: str | None = None, why: str | None = None, duration: Duration | None = None
    ) -> bool:
        """`pause`, for coroutines."""
        return await self._courier.call(self.pause, queue, by=by, why=why, duration=duration)

    async def aresume(self, queue: str, *, by: str | None = None) -> bool:
        """`resume`, for coroutines."""
        return await self._courier.call(self.resume, queue, by=by)

    # --- the same for coroutines ----------------------------------------------------------------------------------

    async def aqueues(self) -> list[QueueInfo]:
        """`queues`, for coroutines."""
        return await self._courier.call(self.queues)

    async def atasks(self) -> list[TaskInfo]:
        """`tasks`, for coroutines."""
        return await self._courier.call(self.tasks)

    async def aworkers(self) -> list[WorkerInfo]:
        """`workers`, for coroutines."""
        return await self._courier.call(self.workers)

    async def afailures(self, *, limit: int = 50) -> list[FailureGroup]:
        """`failures`, for coroutines."""
        return await self._courier.call(self.failures, limit=limit)

    async def ahealth(self) -> Health:
        """`health`, for coroutines."""
        return await self._courier.call(self.health)

    async def aevents(
        self,
        *,
        job: str | None = None,
        kind: str | None = None,
        queue: str | None = None,
        worker: str | None = None,
        after: int | None = None,
        limit: int = 100,
        newest_first: bool = False,
        object: bool = False,
    ) -> list[Event]:
        """`events`, for coroutines."""
        return await self._courier.call(
            self.events,
            job=job,
            kind=kind,
            queue=queue,
            worker=worker,
            after=after,
            limit=limit,
            newest_first=newest_first,
            object=object,
        )


def _pause_span(duration: Duration) -> int:
    span = microseconds(duration, "duration")
    if span == 0:
        raise BadValue("a pause cannot last no time", hint='leave the duration out, or say e.g. "2h"')
    return span


def _limit(limit: int | None) -> int:
    if limit is None:
        return _ANY_NUMBER
    if isinstance(limit, bool) or not isinstance(limit, int) or limit < 0:
        raise BadValue(f"limit must be a whole number from 0 up, not {limit!r}")
    return limit


def _kind(kind: str | None) -> Kind | None:
    try:
        return None if kind is None else known_kind(str(kind))
    except ValueError:
        near = did_you_mean(str(kind), [each.value for each in Kind])
        raise BadValue(f"there is no kind of event {kind!r}{near}") from None


def _checked(id: Any) -> str:
    """This id; what is none is refused before the storage sees it: each would say it in its own way."""
    if not isinstance(id, str):
        raise BadValue(f"the id of a job is text, not {id!r}", hint="app.get takes job.id")
    return id
