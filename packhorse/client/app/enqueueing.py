"""Enqueueing by name, one by one and many at once; for plain code and for coroutines.

All enqueueing, here and by the handles of tasks, goes through `_submit` in `home.py`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar, Unpack

from packhorse.client.app.tasks import Tasks
from packhorse.client.job import JobHandle, aenqueue_job, check_same_call, enqueue_job, for_coroutine, handle_of
from packhorse.client.job_builder import Arguments, JobKeywords, NewCall, UntimedKeywords, refuse_connection
from packhorse.core.clock import Duration
from packhorse.core.errors import BadArguments, BadValue
from packhorse.core.job import NewJob
from packhorse.storage import BATCH
from packhorse.storage.after_commit import when_committed

R = TypeVar("R")


class Enqueueing(Tasks):
    def enqueue(
        self, name: str, args: Arguments = None, *, known: bool = True, **options: Unpack[JobKeywords]
    ) -> JobHandle[Any]:
        """Make a job of the task that is called `name`; `args` is a dict of its arguments, or a list in order.

        Options are those of `task.using`. Raises TaskNotFound if the app has tasks and none of this name, and
        BadArguments if they do not fit what its function takes, or what workers announced of it. `known` False takes
        name and arguments as they are, because workers elsewhere know them.

        >>> app.enqueue("send_notice", {"user_id": 1}, priority=5)
        """
        return enqueue_job(
            self, self._asked(name, args, known, options), options.get("connection"), has_own_id="id" in options
        )

    def enqueue_in(
        self,
        delay: Duration,
        name: str,
        args: Arguments = None,
        *,
        known: bool = True,
        **options: Unpack[UntimedKeywords],
    ) -> JobHandle[Any]:
        """`enqueue`, to run after `delay`: seconds, a timedelta, or text such as "10m"."""
        return enqueue_job(
            self,
            self._asked(name, args, known, {**options, "delay": delay}),
            options.get("connection"),
            has_own_id="id" in options,
        )

    def enqueue_at(
        self, at: datetime, name: str, args: Arguments = None, *, known: bool = True, **options: Unpack[UntimedKeywords]
    ) -> JobHandle[Any]:
        """`enqueue`, to run at a moment, a datetime with a time zone; if it is past, now."""
        return enqueue_job(
            self,
            self._asked(name, args, known, {**options, "at": at}),
            options.get("connection"),
            has_own_id="id" in options,
        )

    def enqueue_unique(
        self, name: str, args: Arguments = None, *, known: bool = True, **options: Unpack[JobKeywords]
    ) -> JobHandle[Any]:
        """`enqueue`, unless a job with the same arguments waits: then that one, with `is_new` False."""
        return enqueue_job(
            self,
            self._asked(name, args, known, options, unique=True),
            options.get("connection"),
            has_own_id="id" in options,
        )

    def enqueue_many(self, calls: Iterable[NewCall[R]], *, connection: Any = None) -> list[JobHandle[R]]:
        """Make jobs of many calls, a thousand in one write; the handles come in the order of the calls.

        If an error ends it, some of the jobs may be stored; handing the same calls in again adds only the others. With
        a `connection` of your own they are part of your transaction, as in `task.using`.

        >>> app.enqueue_many([send_notice.call(user_id=i) for i in range(1000)])
        """
        calls = _listed(calls)
        jobs = _jobs_of(calls)
        own_ids = {call.job.id for call in calls if call.has_own_id}
        if self.hooks.before_enqueue is not None:
            jobs = list(map(self.hooks.before_enqueue, jobs))
        if own_ids and connection is None:
            self._refuse_others(jobs, own_ids)
        answers = [
            answer
            for start in range(0, len(jobs), BATCH)
            for answer in self._submit(jobs[start : start + BATCH], connection)
        ]
        return [
            # What `handle_of` would answer for most of them, without a call for each.
            JobHandle(self, new.id, True, new)
            if answer.job_id == new.id and not own_ids
            else handle_of(self, new, answer, has_own_id=new.id in own_ids and connection is None)
            for new, answer in zip(jobs, answers, strict=True)
        ]

    def enqueue_after_commit(self, transaction: Any, calls: Iterable[NewCall[R]]) -> list[JobHandle[R]]:
        """`enqueue_many` as soon as a transaction of yours commits, and not at all if it is rolled back; for jobs that
        are in another storage than your data. `transaction` is a SQLAlchemy Session or Django's `connection`.

        The jobs are lost if this process dies just between the two; `task.using(connection=…)` has no such gap. It asks
        no storage and so has no async form: coroutines call it as it is. The jobs are enqueued by whoever commits.

        >>> app.enqueue_after_commit(session, [send_notice.call(user_id=1)])
        """
        known = _listed(calls)
        jobs = _jobs_of(known)
        when_committed(transaction, lambda: self.enqueue_many(known))
        return [JobHandle(self, new.id, True, new) for new in jobs]

    def call(
        self, name: str, args: Arguments = None, *, known: bool = True, **options: Unpack[JobKeywords]
    ) -> NewCall[Any]:
        """A call by name, for `enqueue_many`."""
        refuse_connection(options, "hand it to enqueue_many(calls, connection=…)")
        return NewCall(self._asked(name, args, known, options), "id" in options)

    async def aenqueue(
        self, name: str, args: Arguments = None, *, known: bool = True, **options: Unpack[JobKeywords]
    ) -> JobHandle[Any]:
        """`enqueue`, for coroutines; many at once share one write."""
        return await aenqueue_job(self, await self._aasked(name, args, known, options), has_own_id="id" in options)

    async def aenqueue_in(
        self,
        delay: Duration,
        name: str,
        args: Arguments = None,
        *,
        known: bool = True,
        **options: Unpack[UntimedKeywords],
    ) -> JobHandle[Any]:
        """`enqueue_in`, for coroutines."""
        new = await self._aasked(name, args, known, {**options, "delay": delay})
        return await aenqueue_job(self, new, has_own_id="id" in options)

    async def aenqueue_at(
        self, at: datetime, name: str, args: Arguments = None, *, known: bool = True, **options: Unpack[UntimedKeywords]
    ) -> JobHandle[Any]:
        """`enqueue_at`, for coroutines."""
        new = await self._aasked(name, args, known, {**options, "at": at})
        return await aenqueue_job(self, new, has_own_id="id" in options)

    async def aenqueue_unique(
        self, name: str, args: Arguments = None, *, known: bool = True, **options: Unpack[JobKeywords]
    ) -> JobHandle[Any]:
        """`enqueue_unique`, for coroutines."""
        new = await self._aasked(name, args, known, options, unique=True)
        return await aenqueue_job(self, new, has_own_id="id" in options)

    async def aenqueue_many(self, calls: Iterable[NewCall[R]], *, connection: Any = None) -> list[JobHandle[R]]:
        """`enqueue_many`, for coroutines."""
        refuse_connection({"connection": connection}, "in a coroutine: await session.run_sync(…)")
        known = _listed(calls)
        return await self._courier.call(lambda: for_coroutine(self, self.enqueue_many(known)))

    def _refuse_others(self, jobs: Sequence[NewJob], own_ids: Collection[str]) -> None:
        """Before anything is stored: JobExists if one of these ids of the caller's own is that of another call."""
        asked = {new.id: new for new in jobs if new.id in own_ids}
        for stored in self.storage.get_many(list(asked)):
            check_same_call(stored, asked[stored.id])

    def _put(self, new: NewJob, options: Mapping[str, Any]) -> JobHandle[Any]:
        return enqueue_job(self, new, options.get("connection"), has_own_id="id" in options)

    def _asked(
        self, name: str, args: Arguments, known: bool, options: Mapping[str, Any], *, unique: bool = False
    ) -> NewJob:
        connection = options.get("connection")
        if connection is not None and not self.storage.can_be_read_beside(connection):
            return self._made(name, args, known, options, unique, asks=False)
        return self._checked(name, lambda: self._made(name, args, known, options, unique))

    def _made(
        self,
        name: str,
        args: Arguments,
        known: bool,
        options: Mapping[str, Any],
        unique: bool,
        *,
        asks: bool = True,
    ) -> NewJob:
        template = self._template(name, known, asks)
        if options:
            template = template.changed(options)
        return (template.made_unique() if unique else template).fill_in(args)

    async def _aasked(
        self, name: str, args: Arguments, known: bool, options: Mapping[str, Any], *, unique: bool = False
    ) -> NewJob:
        refuse_connection(options, "in a coroutine: await session.run_sync(lambda s: app.enqueue(…, connection=s))")
        if not isinstance(name, str) or name in self._templates or self._announced.is_fresh(name):
            try:
                return self._made(name, args, known, options, unique)
            except BadArguments:
                if not isinstance(name, str) or name in self._templates:
                    raise
        return await self._courier.call(self._asked, name, args, known, options, unique=unique)


def _listed(calls: Iterable[NewCall[R]]) -> list[NewCall[R]]:
    if not isinstance(calls, Iterable):
        raise BadValue(f"enqueue_many takes calls, not {calls!r}", hint="make them with task.call(…)")
    return list(calls)


def _jobs_of(calls: Iterable[NewCall[Any]]) -> list[NewJob]:
    jobs = []
    for call in calls:
        if not isinstance(call, NewCall):
            raise BadValue(f"enqueue_many takes calls, not {call!r}", hint="make them with task.call(…)")
        jobs.append(call.job)
    return jobs
